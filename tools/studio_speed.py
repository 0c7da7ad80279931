"""How soon the studio answers, and how soon a slider redraws: ``python tools/studio_speed.py``. Wants a quiet machine.

Starts ``vantage studio`` some times in a process of its own: when its first line comes, and when page and API have
answered. Then opens a text of about 2,000 tokens in Chromium and moves the sliders for head and layer: from the
slider's event to the first picture of the new head, server and page together. Prints every figure and their medians.
Exit code 1 where a median is over its limit.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass

import httpx
from playwright.sync_api import Page, expect, sync_playwright

FIRST_LINE_S, ANSWERED_S, REDRAW_S = 1.0, 4.0, 0.2
SENTENCE = "The lamp burned in summer and in winter alike, and the ships that passed knew the light from far away. "
SENTENCES = 90  # some 2,000 tokens of SmolLM2
TIMEOUT_MS = 600_000
# From the last input to the end of the first drawing that began after the new head had come.
REDRAWN = """() => {
    const come = performance.getEntriesByType('resource').filter((one) => one.name.includes('/head?')
        && one.startTime >= window.moved).map((one) => one.responseEnd);
    const drawn = performance.getEntriesByName('heatmap-draw').map((one) => one.startTime + one.duration);
    const after = drawn.filter((at) => come.length && at > Math.min(...come));
    return after.length ? Math.min(...after) - window.moved : null;
}"""


@dataclass(frozen=True)
class Start:
    """One start. Seconds since the process was made."""

    url: str
    first_line: float
    answered: float


@contextlib.contextmanager
def studio(model: str) -> Iterator[Start]:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "vantage", "studio", model, "--no-browser", "--json", "--port", "0"]
        began = time.monotonic()
        process = subprocess.Popen(
            [*command, "--folder", folder], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            process.stderr.readline()
            first_line = time.monotonic() - began
            url = json.loads(process.stdout.readline())["url"]
            token = re.search(r'name="vantage-token" content="([^"]+)"', httpx.get(url, timeout=60).text)
            assert token, "the page has no token: make web"
            httpx.get(f"{url}api/models", headers={"X-Vantage-Token": token[1]}, timeout=60).raise_for_status()
            yield Start(url, first_line, time.monotonic() - began)
        finally:
            process.terminate()
            process.wait(60)


def redraws(page: Page, slider: str, moves: int) -> list[float]:
    """Seconds from each move of a slider to its picture."""
    seconds = []
    for _ in range(moves):
        page.evaluate("() => { performance.clearMeasures(); performance.clearResourceTimings(); }")
        page.get_by_label(slider, exact=True).press("ArrowRight")
        seconds.append(page.wait_for_function(REDRAWN).json_value() / 1e3)
        page.wait_for_timeout(1500)  # until all of the picture has come
    return seconds


def sliders(url: str, moves: int) -> dict[str, list[float]]:
    browser_file = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser_file is None:
        raise SystemExit("no Chromium is here: make browser")
    expect.set_options(timeout=TIMEOUT_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_file, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.set_default_timeout(TIMEOUT_MS)
        page.add_init_script("localStorage.setItem('vantage-tour', 'seen')")
        page.goto(f"{url}#/attention?view=heat&layer=3&head=0")
        page.get_by_label("Text").fill(SENTENCE * SENTENCES)
        page.get_by_role("button", name="Look").click()
        expect(page.get_by_label(re.compile(r"Heat map of .* \d{4} by \d{4}"))).to_be_visible()
        page.wait_for_timeout(3000)
        page.evaluate("() => document.addEventListener('input', () => { window.moved = performance.now() }, true)")
        found = {"another head": redraws(page, "Head", min(moves, 8)), "another layer": redraws(page, "Layer", moves)}
        browser.close()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2", help="what the studio serves; default: %(default)s")
    parser.add_argument("--starts", type=int, default=4, help="how often it is started; default: %(default)s")
    parser.add_argument("--moves", type=int, default=8, help="of each slider; default: %(default)s")
    args = parser.parse_args()
    starts: list[Start] = []
    moved: dict[str, list[float]] = {}
    for n in range(args.starts):
        with studio(args.model) as start:
            starts.append(start)
            if n == args.starts - 1:
                moved = sliders(start.url, args.moves)
    figures = {
        "first line": ([one.first_line for one in starts], FIRST_LINE_S),
        "page and API answered": ([one.answered for one in starts], ANSWERED_S),
        **{name: (seconds, REDRAW_S) for name, seconds in moved.items()},
    }
    missed = 0
    for name, (seconds, limit) in figures.items():
        middle = statistics.median(seconds)
        missed += middle > limit
        each = ", ".join(f"{one:.3f}" for one in seconds)
        print(f"{name}: {middle:.3f} s, at most {limit:g} wanted ({each})")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
