"""Pictures of every page at both widths, into docs/images: ``python -m tests.browser.screenshots [NAME ...]``."""

from __future__ import annotations

import contextlib
import io
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from playwright.sync_api import Page, expect, sync_playwright

from tests.browser.watching import ARGS, NARROW, PATIENCE, ROOT, WIDE, Visit, chromium
from tests.serve.running import pulled
from tests.serve.studios import Running
from vantage.serve.logs import ServerLog
from vantage.serve.settings import Logs, ServedModel, ServerSettings
from vantage.serve.studio import create_studio

FOLDER = ROOT / "docs/images"
LIMIT = 200_000  # bytes of a picture
FREQUENT = 128  # colours that are kept as they are
TALLEST = 2400  # pixels; what is below is left out
DARK = ("chat", "positions", "studies")
STUDY = (
    "tasks=ordering&positions=none%2Crope%2Calibi&train_length=6&test_lengths=6%2C9%2C12%2C18"
    "&seeds=2&steps=1200&test_examples=128"
)
ANSWER = """\
# vantage exercise A2: a context vector by hand
SCORES = [0.5, 0.2, 0.7]
WEIGHTS = [0.3374, 0.2501, 0.4125]
CONTEXT = [0.7499, 0.6624]
"""


def chat(page: Page) -> None:
    page.get_by_role("button", name="Why is the sky blue?", exact=True).click()
    expect(page.get_by_role("button", name="Stop")).to_have_count(0)
    expect(page.locator("[data-token]").nth(30)).to_be_attached()


def attention(page: Page) -> None:
    expect(page.get_by_text("tokens, read ")).to_be_visible()
    expect(page.locator("svg[data-chart] path").nth(10)).to_be_attached()


def mapped(page: Page) -> None:
    expect(page.get_by_text("tokens, read ")).to_be_visible()
    expect(page.get_by_role("application").locator("visible=true")).to_be_visible()


def beside(page: Page) -> None:
    expect(page.get_by_role("application").locator("visible=true")).to_have_count(2)


def guessed(page: Page) -> None:
    expect(page.get_by_role("region", name="Part by part")).to_be_visible()


def ablated(page: Page) -> None:
    expect(page.locator("[data-answer=after]")).to_be_visible()
    page.get_by_role("button", name="Try every head").click()
    expect(page.get_by_text("Largest effects")).to_be_visible()


def patched(page: Page) -> None:
    expect(page.get_by_text("Largest effects")).to_be_visible()


def drawn(page: Page) -> None:
    expect(page.locator("svg[data-chart]").first).to_be_visible()


def swapped(page: Page) -> None:
    page.get_by_role("button", name="Swap", exact=True).click()
    expect(page.get_by_text("perplexity after")).to_be_visible()


def measured(page: Page) -> None:
    page.get_by_role("button", name="Measure", exact=True).click()
    expect(page.get_by_text("It wrote:")).to_be_visible()


def compared(page: Page) -> None:
    """Trains for some minutes, the first time; the report is there for the other width."""
    form = page.url
    page.get_by_role("tab", name="All comparisons").click()
    page.get_by_role("button", name="Refresh").wait_for()
    page.locator(".busy").first.wait_for(state="hidden")
    if page.locator(".cmp-list a").count():
        page.locator(".cmp-list a").first.click()
    else:
        page.goto(form)
        page.get_by_role("tab", name="New comparison").click()
        page.get_by_role("button", name="Start", exact=True).click()
    frame = page.frame_locator("iframe[title='Report of the comparison']")
    expect(frame.get_by_role("heading", level=1)).to_be_visible(timeout=20 * PATIENCE)


def graded(page: Page) -> None:
    page.get_by_role("textbox", name="Python for A2").fill(ANSWER)
    page.get_by_role("button", name="Grade").click()
    expect(page.get_by_text("checks passed")).to_be_visible()


def ran(page: Page) -> None:
    expect(page.get_by_role("region", name="Figures")).to_be_visible()
    drawn(page)


def nothing(page: Page) -> None:
    page.get_by_role("button").first.wait_for()


# By file name: where it is, and what is done there.
PLACES: dict[str, tuple[str, Callable[[Page], None]]] = {
    "chat": ("chat?temperature=0&max_tokens=48", chat),
    "attention": ("attention?layer=5&head=2&query=20", attention),
    "attention-heat": ("attention?view=heat&layer=3&head=1", mapped),
    "attention-encodings": ("attention?view=heat&layer=3&head=1&compare=encoding", beside),
    "lens": ("lens?stage=24", guessed),
    "lens-ablation": ("lens?view=ablation&layer=23&head=4", ablated),
    "lens-patching": ("lens?view=patching&patched=true", patched),
    "positions": ("positions?encoding=rope-yarn&p.factor=8", drawn),
    "positions-alibi": ("positions?encoding=alibi&heads=8", drawn),
    "positions-move": ("positions?view=move&token=1&to=19&query=7", drawn),
    "positions-swap": ("positions?view=swap&encoding=alibi&tokens=16", swapped),
    "cost": ("cost", drawn),
    "cost-shape": ("cost?of=shape&batch=8", drawn),
    "cost-measure": ("cost?view=measure&tokens=40", measured),
    "compare": ("compare", nothing),
    "compare-report": (f"compare?{STUDY}", compared),
    "studies": ("studies", nothing),
    "studies-study": ("studies?study=P10&ran=true", ran),
    "studies-exercise": ("studies?view=exercises&exercise=A2", graded),
    "build": ("build?layers=12&window=1024&full_every=4&kv_heads=2", drawn),
    "build-pair": ("build?kind=encoder_decoder&bias=true&show=train", drawn),
}


@contextlib.contextmanager
def studio() -> Iterator[str]:
    models = tuple(ServedModel(name, pulled(name)) for name in ("smollm2", "minilm"))
    with tempfile.TemporaryDirectory() as folder:
        log = io.StringIO()
        it = Running(create_studio(ServerSettings(models), log=ServerLog(Logs(), log), folder=Path(folder)), log)
        try:
            yield f"{it.url}/studio/"
        finally:
            it.stop()


def take(visit: Visit, name: str) -> None:
    """The whole page, down to what can be looked at in one go."""
    place, do = PLACES[name]
    page = visit.go(place)
    do(page)
    visit.quiet()
    page.mouse.move(0, 0)
    page.wait_for_timeout(300)
    width = page.viewport_size["width"]
    height = min(TALLEST, page.evaluate("() => document.documentElement.scrollHeight"))
    themes = ("light", "dark") if name in DARK else ("light",)
    for theme in themes:
        page.emulate_media(color_scheme=theme)
        page.locator(f"html[data-theme={theme}]").wait_for()
        page.wait_for_timeout(200)
        file = FOLDER / f"studio-{name}-{width}{'-dark' if theme == 'dark' else ''}.png"
        page.set_viewport_size({"width": width, "height": height})
        page.screenshot(path=file)
        smaller(file)
        print(f"{file.name}: {file.stat().st_size:,} bytes")


def smaller(file: Path) -> None:
    """In 256 colours: the frequent ones as they are (surfaces, text), the others so that rare ones stay apart."""
    from PIL import Image

    with Image.open(file) as read:
        picture = read.convert("RGB")
    colours, at, count = np.unique(np.asarray(picture).reshape(-1, 3), axis=0, return_inverse=True, return_counts=True)
    frequent = colours[np.argsort(-count)[:FREQUENT]]
    covering = picture.quantize(256 - FREQUENT, method=Image.Quantize.MAXCOVERAGE).getpalette() or []
    palette = np.concatenate([frequent, np.reshape(covering, (-1, 3))])[:256]
    nearest = ((colours[:, None].astype(int) - palette[None]) ** 2).sum(-1).argmin(1).astype(np.uint8)
    few = Image.frombytes("P", picture.size, nearest[at.ravel()].tobytes())
    few.putpalette(palette.astype(np.uint8).tobytes())
    few.save(file, optimize=True)
    assert file.stat().st_size < LIMIT, f"{file} has {file.stat().st_size:,} bytes: more than {LIMIT:,}"


def main(names: list[str]) -> None:
    unknown = set(names) - set(PLACES)
    assert not unknown, f"there is no {', '.join(unknown)}: there are {', '.join(PLACES)}"
    FOLDER.mkdir(exist_ok=True)
    expect.set_options(timeout=PATIENCE)
    with studio() as url, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=list(ARGS))
        for name in names or PLACES:
            for width in (WIDE, NARROW):
                visit = Visit(browser, url, width=width)
                take(visit, name)
                assert not visit.errors, visit.errors
                visit.close()
        browser.close()


if __name__ == "__main__":
    main(sys.argv[1:])
