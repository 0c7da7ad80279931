"""The page of studies: whole, self-contained, and true to what was found."""

from __future__ import annotations

import json
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from playwright.sync_api import sync_playwright

import vantage as vt
from tests.browser.watching import ARGS, chromium
from tests.studies.synthetic import study
from vantage.errors import BadInput, Refused
from vantage.studies.report import JSON, FailedStudy, write_report
from vantage.studies.report_folder import check_report
from vantage.studies.runner import conduct
from vantage.studies.study import Number

VOID = {"meta", "link", "br", "img", "input", "hr"}


class Page(HTMLParser):
    """What a page has, and whether its elements close."""

    def __init__(self, text: str):
        super().__init__()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        said = dict(attrs)
        self.tags.add(tag)
        if said.get("id"):
            self.ids.append(said["id"])
        if tag == "a":
            self.links.append(said["href"])
        self.loaded += [said[name] for name in ("src", "xlink:href") if name in said]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, f"{tag} closes what it did not open"


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    outcomes = [conduct(study("A90"), {"size": 3}), vt.studies.run("K3"), vt.studies.run("T4")]
    failed = [FailedStudy(study("P90"), "it needs <something>: run `vantage pull something`")]
    path = write_report(folder, outcomes, failed, command="vantage study all --report here")
    return path, path.read_text(), outcomes


def test_the_page_is_well_formed_and_needs_nothing_else(report) -> None:
    _, text, _ = report
    page = Page(text)
    assert page.open == []
    assert len(page.ids) == len(set(page.ids))
    assert "script" not in page.tags
    assert all(name.startswith(("data:", "#")) for name in page.loaded)
    for link in page.links:
        assert link == JSON or link[1:] in page.ids
    assert "http" not in text.replace("http://www.w3.org/", "")


def test_every_study_has_its_place_with_all_that_was_found(report) -> None:
    _, text, outcomes = report
    for outcome in outcomes:
        assert f'id="{outcome.tag}"' in text
        assert f'href="#{outcome.tag}"' in text
        assert f"vantage study run {outcome.tag}" in text
    flat = " ".join(text.split())
    assert "<code>two</code>" in flat
    assert "The size is 3.0." in flat
    assert "[2.9, 3.1]" in flat
    assert "does not agree" in flat
    assert '<span class="badge mixed">agrees in part</span>' in flat
    assert "2 agree, 1 agrees in part; " in flat
    assert "vantage study all --report here" in flat
    assert "torch" in flat[flat.index("Made with") :]
    panels = sum(len(figure.panels) for outcome in outcomes for figure in outcome.result.figures)
    assert text.count("<svg ") == panels


def test_what_could_not_run_is_said(report) -> None:
    _, text, _ = report
    assert "it needs &lt;something&gt;: run <code>vantage pull something</code>" in text
    assert "1 could not run" in text


def test_texts_are_escaped(report) -> None:
    _, text, _ = report
    assert "&lt;b&gt;no markup&lt;/b&gt;" in text
    assert "<b>no markup" not in text
    assert "Made &lt;up&gt;" in text


def test_long_tables_stay_out_of_the_page_and_are_in_the_json(report) -> None:
    path, text, outcomes = report
    told = json.loads((path.parent / JSON).read_text())
    assert [one["tag"] for one in told["studies"]] == [outcome.tag for outcome in outcomes]
    assert told["failed"][0]["tag"] == "P90"
    assert told["command"] == "vantage study all --report here"
    assert told["versions"]["torch"]
    assert len(told["studies"][0]["figures"][0]["panels"][3]["values"]) == 30
    assert "it stands in studies.json" in text  # samples are


def test_light_and_dark_and_narrow_and_print(report) -> None:
    text = report[1]
    for rule in ("prefers-color-scheme: dark", "max-width: 34rem", "@media print", 'name="viewport"'):
        assert rule in text
    assert "/* LIGHT */" not in text
    assert "--s0: #" in text


@pytest.mark.sampled
def test_wide_tables_scroll_in_their_own_box_and_long_cells_wrap(tmp_path) -> None:
    """In a real browser: the page itself never scrolls sideways, and the numbers are in sight on a wide screen."""
    words = "position 18 is past the end of a learned table of 18 rows (0 to 17): shorten the input, or choose " * 3

    def talks(values, progress):
        found = study().run(values, progress)
        return replace(found, numbers=(*found.numbers, Number("what it says", words, "no extrapolation", True)))

    path = write_report(tmp_path, [conduct(study(run=talks), {})])
    measure = """() => {
      const boxes = [...document.querySelectorAll(".scroll")].map(box => [box.scrollWidth, box.clientWidth]);
      return [document.documentElement.scrollWidth, boxes];
    }"""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=list(ARGS))
        page = browser.new_page()
        page.goto(path.as_uri())
        page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true })")
        for width in (375, 600, 1100, 1280):
            page.set_viewport_size({"width": width, "height": 900})
            wide, (numbers, *tables) = page.evaluate(measure)
            assert wide == width
            assert any(inside > box for inside, box in tables)  # there is a table that is wider than the page
            if width != 600:
                assert numbers[0] == numbers[1]
        browser.close()


def test_nothing_to_report_is_refused(tmp_path) -> None:
    with pytest.raises(BadInput, match="at least one"):
        write_report(tmp_path / "report", [])
    assert not (tmp_path / "report").exists()


def test_a_place_that_cannot_be_is_refused_before_anything_runs(tmp_path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BadInput, match="no report can be written"):
        check_report(tmp_path / "file" / "report")


def test_without_matplotlib_it_says_what_to_install(tmp_path, monkeypatch) -> None:
    import sys

    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(Refused, match="vantage\\[plot\\]"):
        check_report(tmp_path)
    outcome = conduct(study(), {})
    assert "vantage[plot]" in outcome._repr_html_()  # a notebook still shows the numbers
    with pytest.raises(Refused, match="vantage\\[plot\\]"):
        write_report(tmp_path / "report", [outcome])
