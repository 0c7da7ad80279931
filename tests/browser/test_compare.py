"""Compare: a study from the form, live while it trains, stopped and gone on with, and its report in a frame."""

from __future__ import annotations

import csv
import io
import json
import re

import pytest
from playwright.sync_api import Page, expect

from tests.browser.watching import NARROW, check_looks, saved
from tests.generation.folder import chat_model
from tests.serve.studios import running

SIZES = "width=8&layers=1&heads=2&batch=8&test_examples=8"
TINY = f"tasks=case&positions=none%2Crope&train_length=4&test_lengths=4%2C8&seeds=1&steps=3&{SIZES}"
ENDLESS = f"tasks=case&positions=none%2Crope&train_length=4&test_lengths=4%2C8&seeds=1&steps=200000&{SIZES}"


@pytest.fixture(scope="module")
def small(browser, tmp_path_factory):
    """Reports go into a folder of the test's own."""
    with running(tmp_path_factory.mktemp("compare"), "tiny", load=lambda served: chat_model()) as it:
        yield f"{it.url}/studio/"


def begin(page: Page) -> None:
    page.get_by_role("button", name="Start", exact=True).click()
    expect(page).to_have_url(re.compile(r"id=\d{8}-\d{6}-"))


def test_the_form(small, visit):
    reader = visit(small)
    page = reader.go("compare")
    models = page.locator(".facts > div", has=page.locator("dt", has_text="models to train")).locator("dd")
    expect(models).to_have_text("96")
    page.get_by_label("fire", exact=True).check()
    expect(page).to_have_url(re.compile("positions=.*fire"))
    expect(models).to_have_text("112")
    page.get_by_label("Budget").fill("90s")
    expect(page.get_by_text("1 min 30 s")).to_be_visible()
    page.get_by_label("Budget").fill("soon")
    expect(page.get_by_text("Write a number and s, m or h")).to_be_visible()
    page.get_by_label("Tested at lengths").fill("20, 30,")
    expect(page.get_by_label("Tested at lengths")).to_have_value("20, 30,")
    expect(page).to_have_url(re.compile("test_lengths=20%2C30(&|$)"))
    page.get_by_label("multi-head", exact=True).uncheck()
    expect(page.get_by_role("button", name="Start", exact=True)).to_be_disabled()
    check_looks(reader)


def test_what_is_refused_is_said(small, visit):
    reader = visit(small)
    page = reader.go(f"compare?{TINY}&budget=2s")
    page.get_by_role("button", name="Start", exact=True).click()
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text("a budget of 2 seconds")
    expect(alert.get_by_role("button", name="Retry")).to_be_visible()
    page = reader.go("compare?id=20200101-000000-abcd")
    expect(page.get_by_role("alert").first).to_contain_text("there is no comparison")
    reader.errors.clear()


def test_a_comparison_from_start_to_report(small, visit):
    reader = visit(small)
    page = reader.go(f"compare?{TINY}")
    expect(page.get_by_label("Steps")).to_have_value("3")
    begin(page)
    report = page.frame_locator("iframe[title='Report of the comparison']")
    expect(report.get_by_role("heading", level=1)).to_be_visible()
    expect(report.get_by_text("rope").first).to_be_attached()
    frame = page.get_by_title("Report of the comparison")
    assert frame.get_attribute("sandbox") == ""
    expect(page.get_by_text("finished", exact=True)).to_be_visible()
    scores = page.get_by_role("region", name="Scores so far")
    expect(scores.locator("tbody tr")).to_have_count(2)
    table = list(csv.DictReader(io.StringIO(saved(page, "Download scores.csv").decode())))
    assert {row["position"] for row in table if "position" in row} <= {"none", "rope"}
    assert len(table) >= 4
    assert saved(page, "Download verdicts.csv").startswith(b"about,")
    assert json.loads(saved(page, "Download report.json"))
    assert b"<html" in saved(page, "Download report.html")
    assert saved(page, "Download curves as PNG")[:4] == b"\x89PNG"
    check_looks(reader)
    page.get_by_role("link", name="All comparisons").click()
    page.get_by_role("link", name="case: none, rope").first.click()
    expect(report.get_by_role("heading", level=1)).to_be_visible()


def test_stopping_and_going_on(small, visit):
    reader = visit(small)
    page = reader.go(f"compare?{ENDLESS}")
    begin(page)
    expect(page.get_by_text("time left, about")).to_be_visible()
    meter = page.get_by_role("progressbar")
    expect(meter).to_be_visible()
    # long before the first of its models is trained
    expect(page.get_by_role("heading", name="Learning so far")).to_be_visible()
    expect(page.locator("svg[data-chart]")).to_be_visible()
    expect(page.get_by_role("heading", name="Results so far")).to_have_count(0)
    check_looks(reader)
    # another one is refused while it runs
    second = visit(small)
    other = second.go(f"compare?{TINY}")
    other.get_by_role("button", name="Start", exact=True).click()
    expect(other.get_by_role("alert")).to_contain_text("stop it, or wait")
    other.set_viewport_size({"width": NARROW, "height": 900})
    other.get_by_role("button", name="Try it for 30 seconds").click()
    expect(other.get_by_role("alert")).to_be_in_viewport()  # beside its own button, not under the form
    expect(other.get_by_role("alert")).to_contain_text("stop it, or wait")
    second.errors.clear()
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_text("The comparison was stopped")).to_be_visible()
    expect(page.get_by_text("stopped", exact=True)).to_be_visible()
    page.reload()  # the link opens it as it is
    page.get_by_role("button", name="Continue").click()
    expect(page.get_by_role("button", name="Stop")).to_be_visible()
    expect(page.get_by_text("running", exact=True)).to_be_visible()
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_role("button", name="Continue")).to_be_enabled()
