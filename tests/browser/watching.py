"""A real studio in a process of its own, a real browser, and what tests ask of a page."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from tests import processes
from tests.processes import ROOT, VANTAGE, start

PAGE = ROOT / "vantage/serve/studio/page"
AXE = ROOT / "web/node_modules/axe-core/axe.min.js"
PATIENCE = 180_000  # ms: the machine may be busy with other tests
WIDE, NARROW = 1280, 390
ARGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def chromium() -> str:
    """The browser's file, or a skip. Where VANTAGE_BROWSER is ``required``, a failure."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if found := shutil.which(name):
            return found
    words = "no Chromium is here, so the browser tests are left out: apt-get install chromium"
    if os.environ.get("VANTAGE_BROWSER") == "required":
        pytest.fail(words)
    pytest.skip(words)


class Process:
    """``vantage studio`` as a user starts it."""

    def __init__(self, folder: Path, *models: str, port: int = 0):
        assert (PAGE / "index.html").is_file(), "the page is not built: make web"
        folder.mkdir(exist_ok=True)
        self._err = folder / "studio.log"
        kept = {k: v for k, v in os.environ.items() if not k.startswith("VANTAGE_") or k == "VANTAGE_HOME"}
        with self._err.open("a") as err:
            self.process = start(
                [*VANTAGE, "studio", *models, "--no-browser", "--json", "--port", str(port), "--folder", str(folder)],
                cwd=ROOT,
                stdout=subprocess.PIPE,
                stderr=err,
                text=True,
                env={**kept, "OMP_NUM_THREADS": "1"},
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self._err.read_text()
        self.url: str = json.loads(line)["url"]

    @property
    def port(self) -> int:
        return int(self.url.split(":")[2].split("/")[0])

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(processes.PATIENCE)
        finally:
            self.process.kill()
            self.process.wait()
            assert self.process.stdout is not None
            self.process.stdout.close()


@contextlib.contextmanager
def started(folder: Path, *models: str, port: int = 0) -> Iterator[Process]:
    it = Process(folder, *models, port=port)
    try:
        yield it
    finally:
        it.stop()


class Visit:
    """One reader: a page of its own, and what its console said. ``first``: who was never here is offered the tour."""

    def __init__(self, browser: Browser, url: str, *, width: int = WIDE, theme: Any = "light", first: bool = False):
        self.url = url
        self._context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=theme, accept_downloads=True
        )
        if not first:
            self._context.add_init_script("try { localStorage.setItem('vantage-tour', 'seen') } catch {}")
        self.page: Page = self._context.new_page()
        self.page.set_default_timeout(PATIENCE)
        self.page.set_default_navigation_timeout(PATIENCE)
        self.errors: list[str] = []
        self.page.on("console", lambda said: self.errors.append(said.text) if said.type == "error" else None)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))

    def go(self, place: str) -> Page:
        """``place``: what stands after #/ in the address."""
        self.page.goto(f"{self.url}#/{place}")
        self.page.get_by_role("heading", level=1).wait_for()
        return self.page

    def quiet(self) -> None:
        """Waits until nothing is under way on the page."""
        self.page.locator(".busy").first.wait_for(state="hidden")

    def close(self) -> None:
        self._context.close()


def grave(page: Page) -> list[str]:
    """What axe finds that is serious or critical, in words."""
    if not page.evaluate("() => 'axe' in window"):
        page.evaluate(AXE.read_text(encoding="utf-8"))
    found = page.evaluate("() => axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{one['id']}: {one['help']}: {[node['html'][:160] for node in one['nodes'][:3]]}"
        for one in found["violations"]
        if one["impact"] in ("serious", "critical")
    ]


def overflow(page: Page) -> int:
    """How many pixels the page is wider than the window."""
    return page.evaluate("() => document.documentElement.scrollWidth - document.documentElement.clientWidth")


def check_looks(visit: Visit) -> None:
    """Both widths and both themes: nothing sticks out, and axe finds nothing grave."""
    page = visit.page
    for width in (WIDE, NARROW):
        page.set_viewport_size({"width": width, "height": 900})
        for theme in ("light", "dark"):
            page.emulate_media(color_scheme=theme)
            page.locator(f"html[data-theme={theme}]").wait_for()
            assert overflow(page) <= 0, (width, theme)
            found = grave(page)
            assert not found, (width, theme, found)
    page.set_viewport_size({"width": WIDE, "height": 900})
    page.emulate_media(color_scheme="light")


def saved(page: Page, button: str) -> bytes:
    """The file that a button gives."""
    with page.expect_download() as coming:
        page.get_by_role("button", name=button, exact=True).click()
    return Path(coming.value.path()).read_bytes()
