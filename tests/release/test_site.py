"""The site: its pages, its reference and its tutorials, and that `make docs` builds it without a network."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from playwright.sync_api import expect, sync_playwright

import vantage as vt
from tests.browser.watching import ARGS, chromium
from tests.processes import PATIENCE, ROOT
from tools import reference

DOCS = ROOT / "docs"
MKDOCS = ROOT / "tools" / ".docs" / "bin" / "mkdocs"
FROM_OUTSIDE = {"index.md", "contributing.md", "changelog.md"}  # by tools/docs_hooks.py


def leaves(node: Any) -> list[str]:
    if isinstance(node, str):
        return [node]
    children = node.values() if isinstance(node, dict) else node
    return [leaf for child in children for leaf in leaves(child)]


def navigation() -> list[str]:
    return leaves(yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"])


def test_every_page_is_in_the_navigation_once() -> None:
    pages = {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")}
    listed = navigation()
    assert len(set(listed)) == len(listed)
    assert {name for name in listed if name.endswith(".md")} == pages | FROM_OUTSIDE
    for name in listed:
        assert name in FROM_OUTSIDE or (DOCS / name).is_file(), name


def test_the_reference_is_what_the_docstrings_say() -> None:
    assert (DOCS / "reference.md").read_text(encoding="utf-8") == reference.page(), (
        "run `python tools/reference.py > docs/reference.md`"
    )


def test_every_public_name_has_an_example_and_words() -> None:
    names = [name for names in reference.grouped().values() for name in names]
    assert sorted(names) == sorted(vt.__all__)
    for name in names:
        assert reference.words(getattr(vt, name)), f"vt.{name} has no docstring"


@pytest.mark.parametrize("source", ["S0", "S1", "S2", "S3", "S4"])
def test_a_tutorial_has_every_study_of_its_document_in_order(source: str) -> None:
    page = (DOCS / "tutorials" / f"{source.lower()}.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| ([A-Z]\d+) \|", page, re.MULTILINE)
    assert listed == [study.tag for study in vt.studies.list() if source in study.sources]


ERRATA = {  # where a document is wrong, by its name
    "S0": "A16 P4",
    "S1": "A9 P1 K1 K4",
    "S2": "A2 A4 A5 P1 P2 P8 T1 K1 K4",
    "S3": "P8 P10 P13",
    "S4": "A12 A13 A14 P5",
}


@pytest.mark.parametrize("source", ERRATA)
def test_a_tutorial_has_the_errata_of_its_document(source: str) -> None:
    """In the last column of its table. What P14 measured stands there as well, which is no erratum."""
    page = (DOCS / "tutorials" / f"{source.lower()}.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([A-Z]\d+) \|[^|]*\|([^|]*)\|$", page, re.MULTILINE)
    assert {tag for tag, erratum in rows if erratum.strip()} - {"P14"} == set(ERRATA[source].split())


@pytest.mark.parametrize("source", ERRATA)
def test_the_sections_of_a_tutorial_have_the_order_of_its_table(source: str) -> None:
    page = (DOCS / "tutorials" / f"{source.lower()}.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| ([A-Z]\d+) \|", page, re.MULTILINE)
    sections = [tag for tags in re.findall(r"^## .*\((.*)\)$", page, re.MULTILINE) for tag in tags.split(", ")]
    assert sections == sorted(sections, key=listed.index)
    assert len(sections) >= 4


# ---- built


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built as `make docs` does, without a network where a process can be without one."""
    if not MKDOCS.is_file():
        pytest.skip("there is no mkdocs here: `make docs-env`")
    folder = tmp_path_factory.mktemp("site")
    alone = ["unshare", "--map-root-user", "--net"]
    if not shutil.which("unshare") or subprocess.run([*alone, "true"], capture_output=True, check=False).returncode:
        alone = []
    command = [*alone, str(MKDOCS), "build", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return folder


@pytest.mark.slow
def test_the_site_has_every_page_and_loads_nothing_from_elsewhere(site: Path) -> None:
    for name in navigation():
        page = (site / name).with_suffix(".html")
        assert (page.with_name("index.html") if page.stem == "README" else page).is_file(), name
    loaded = r'<(?:script|img|iframe)[^>]* src="https?://|<link[^>]* rel="stylesheet"[^>]* href="https?://'
    for page in (site / "index.html", site / "core.html", site / "tutorials" / "s3.html"):
        assert not re.findall(loaded, page.read_text(encoding="utf-8"))


@pytest.mark.slow
def test_search_works_on_a_page_that_is_opened_from_a_folder(site: Path) -> None:
    path = chromium()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(ARGS))
        page = browser.new_page()
        page.goto((site / "tutorials" / "s3.html").as_uri())
        page.focus("input.md-search__input")
        page.keyboard.type("conformance")
        # a page that has no more than words that begin alike may come before it
        expect(page.locator('.md-search-result__link[href*=".html?h=conformance"]').first).to_be_attached(
            timeout=1000 * PATIENCE
        )
        browser.close()
