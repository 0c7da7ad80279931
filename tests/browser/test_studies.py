"""Studies and exercises: the list and its filter, a study run, stopped and linked; an answer written and graded."""

from __future__ import annotations

import csv
import io
import re

import pytest
from playwright.sync_api import expect

from tests.browser.watching import check_looks, saved
from vantage.studies.exercises import exercises
from vantage.studies.registry import studies


def test_the_list_and_its_filter(reader):
    page = reader.go("studies")
    cards = page.locator(".stu-entry")
    expect(cards).to_have_count(len(studies()))
    for name in ("Attention", "Position", "Transformers", "The cache"):
        expect(page.get_by_role("heading", name=name, exact=True)).to_be_visible()
    page.get_by_label("Find").fill("alibi slope")
    expect(page).to_have_url(re.compile("find=alibi"))
    expect(cards.filter(has_text="P10")).to_have_count(1)
    assert cards.count() < len(studies())
    page.get_by_label("Find").fill("zebra crossing")
    expect(page.get_by_text("No study matches")).to_be_visible()
    page.get_by_label("Find").fill("")
    page.get_by_label("Source").select_option("S4")
    expect(cards).to_have_count(sum("S4" in study.sources for study in studies().values()))
    check_looks(reader)


def test_a_study_is_run_with_other_values(reader):
    page = reader.go("studies?study=A10")
    expect(page.get_by_role("heading", name="Temperature")).to_be_visible()
    page.get_by_label("temperature", exact=True).fill("0.5")
    expect(page).to_have_url(re.compile(r"p\.temperature=0\.5"))
    page.get_by_role("button", name="Run", exact=True).click()
    found = page.get_by_role("region", name="Result")
    expect(found.locator(".stu-verdict")).to_have_text(re.compile("Agrees|Erratum|Agrees in part"))
    expect(found.get_by_text("vantage study run A10 --set temperature=0.5")).to_be_visible()
    table = list(csv.DictReader(io.StringIO(saved(page, "Download A10-numbers as CSV").decode())))
    assert len(table) == page.get_by_role("region", name="Numbers").locator("tbody tr").count()
    assert page.get_by_role("region", name="Figures").locator("svg[data-chart]").count() >= 1
    page.get_by_label("temperature", exact=True).fill("2")
    expect(page.get_by_text("found with other values")).to_be_visible()
    check_looks(reader)
    page.get_by_role("link", name=re.compile("^A11")).first.click()
    expect(page.get_by_role("heading", name=studies()["A11"].title)).to_be_visible()
    page.get_by_role("link", name=re.compile("A10")).first.click()
    expect(found.locator(".stu-verdict")).to_be_visible()  # what was found stays


def test_an_erratum_by_its_link(reader):
    """Quick results show themselves when their link is opened."""
    page = reader.go("studies?study=A2&ran=true")
    found = page.get_by_role("region", name="Result")
    expect(found.locator(".stu-verdict")).to_have_text("Erratum")
    expect(found.get_by_text("no", exact=True).first).to_be_visible()


def test_a_long_study_says_how_far_it_is_and_stops(reader):
    page = reader.go("studies?study=A1&p.steps=5000")
    page.get_by_role("button", name="Run", exact=True).click()
    expect(page.get_by_role("progressbar")).to_be_visible()
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_role("button", name="Run", exact=True)).to_be_enabled()
    expect(page.get_by_role("progressbar")).to_have_count(0)


def test_a_study_that_is_not_there(reader):
    page = reader.go("studies?study=Z9")
    expect(page.get_by_role("alert")).to_contain_text("There is no study Z9")
    page = reader.go("studies?study=A10&p.temperature=1e9")
    page.get_by_role("button", name="Run", exact=True).click()
    expect(page.get_by_role("alert").last).to_contain_text("between")
    reader.errors.clear()


@pytest.fixture
def exercise():
    return exercises()["A2"]


def test_an_answer_is_graded(reader, exercise):
    page = reader.go("studies?view=exercises")
    expect(page.locator(".stu-entry")).to_have_count(len(exercises()))
    check_looks(reader)
    page.get_by_role("link", name=re.compile("A2 ")).first.click()
    editor = page.get_by_role("textbox", name="Python for A2")
    expect(editor).to_have_value(exercise.starter)
    expect(page.get_by_role("button", name="Show the answer")).to_have_count(0)
    editor.fill(exercise.answer.replace("0.4123", "0.5"))
    page.get_by_role("button", name="Grade").click()
    expect(page.get_by_text("Not yet", exact=True)).to_be_visible()
    checks = page.locator(".stu-checks li")
    expect(checks.filter(has_text="the weights")).to_contain_text("0.5")
    expect(checks.filter(has_text="the scores")).to_contain_text("passed")
    check_looks(reader)
    page.reload()  # the code stays in the browser
    expect(editor).to_have_value(exercise.answer.replace("0.4123", "0.5"))
    page.get_by_role("button", name="Show the answer").click()
    expect(page.get_by_role("region", name="An answer")).to_have_text(exercise.answer)
    editor.fill(exercise.answer)
    editor.press("Control+Enter")
    expect(page.get_by_text("Correct", exact=True)).to_be_visible()
    expect(page.get_by_text("solved", exact=True)).to_be_visible()
    page.get_by_role("button", name="Start over").click()
    expect(editor).to_have_value(exercise.starter)


def test_the_editor_by_keyboard(reader):
    page = reader.go("studies?view=exercises&exercise=A4")
    editor = page.get_by_role("textbox", name="Python for A4")
    editor.fill("")
    editor.press_sequentially("def f(x):\nreturn x")
    expect(editor).to_have_value("def f(x):\n    return x")
    editor.press("Shift+Tab")
    expect(editor).to_have_value("def f(x):\nreturn x")
    editor.press("Home")
    editor.press("Tab")
    expect(editor).to_have_value("def f(x):\n    return x")
    expect(editor).to_be_focused()
    expect(page.locator(".stu-gutter")).to_have_text("1\n2")
    editor.press("Escape")
    editor.press("Tab")
    expect(page.get_by_role("button", name="Grade")).to_be_focused()
