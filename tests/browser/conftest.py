"""The studio and the browser that all browser tests share. Each test is a reader with a page of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, expect, sync_playwright

from tests.browser.watching import ARGS, PATIENCE, Process, Visit, chromium, started
from tests.serve.running import pulled

expect.set_options(timeout=PATIENCE)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Not for longer: while Playwright is there an event loop runs in this thread, and no other test could have one."""
    path = chromium()
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=path, args=list(ARGS))
        yield launched
        launched.close()


@pytest.fixture(scope="session")
def studio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    """SmolLM2, MiniLM, and a model that cannot be loaded."""
    chromium()
    folder = tmp_path_factory.mktemp("studio")
    broken = folder / "broken"
    broken.mkdir()
    (broken / "config.json").write_text('{"model_type": "nothing-of-the-kind"}')
    with started(folder, pulled("smollm2"), pulled("minilm"), f"broken={broken}") as it:
        yield it


@pytest.fixture
def visit(browser: Browser) -> Iterator[Callable[..., Visit]]:
    """Opens pages: ``visit(url)``. At the end none of them may have written an error to its console."""
    visits: list[Visit] = []

    def open_page(url: str, **how: Any) -> Visit:
        visits.append(Visit(browser, url, **how))
        return visits[-1]

    yield open_page
    errors = [error for one in visits for error in one.errors]
    for one in visits:
        one.close()
    assert errors == []


@pytest.fixture
def reader(visit: Callable[..., Visit], studio: Process) -> Visit:
    """One reader of the shared studio."""
    return visit(studio.url)
