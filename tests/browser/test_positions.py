"""The positions page: encodings drawn as their parameters change, a token moved, an encoding swapped on SmolLM2."""

from __future__ import annotations

import csv
import io
import re

import pytest
from playwright.sync_api import Page, expect

from tests.browser.watching import check_looks, saved
from tests.generation.folder import chat_model
from tests.serve.studios import running


@pytest.fixture(scope="module")
def small(browser, tmp_path_factory):
    with running(tmp_path_factory.mktemp("positions"), "tiny", load=lambda served: chat_model()) as it:
        yield f"{it.url}/studio/"


def rows(page: Page, button: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(saved(page, button).decode())))


def chart(page: Page, title: str):
    return page.get_by_label(re.compile(f"^{title}"))


def test_parameters_redraw_the_figures(reader):
    page = reader.go("positions")
    page.get_by_label("Encoding", exact=True).select_option("alibi")
    expect(page).to_have_url(re.compile("encoding=alibi"))
    expect(chart(page, "slopes")).to_be_visible()
    first = [float(row["slope"]) for row in rows(page, "Download slopes as CSV")]
    assert first == [0.25, 0.0625, 0.015625, 0.00390625]
    page.get_by_role("textbox", name="slopes").fill("0.5, 0.125, 0, 1")
    expect(page).to_have_url(re.compile(r"p\.slopes="))
    expect(page.locator(".busy")).to_have_count(0)
    assert [float(row["slope"]) for row in rows(page, "Download slopes as CSV")] == [0.5, 0.125, 0, 1]
    page.get_by_role("textbox", name="slopes").fill("0.5, many")
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text("write numbers")
    expect(alert.get_by_role("button", name="Retry")).to_be_visible()
    page.get_by_role("button", name="Reset").click()
    expect(alert).to_have_count(0)
    expect(page.get_by_role("textbox", name="slopes")).to_have_value("")
    reader.errors.clear()  # the browser notes a 400 by itself
    reader.quiet()
    check_looks(reader)


def test_sliders_and_a_link(reader):
    page = reader.go("positions?encoding=rope-yarn&p.factor=8&length=1024&width=128")
    expect(page.get_by_label("factor", exact=True)).to_have_value("8")
    expect(page.get_by_label("length", exact=True)).to_have_value("1024")
    expect(page.get_by_label("width", exact=True)).to_have_value("128")
    reader.quiet()
    before = rows(page, "Download wavelengths as CSV")
    page.get_by_label("base, slider").press("ArrowRight")
    expect(page).to_have_url(re.compile(r"p\.base="))
    reader.quiet()
    after = rows(page, "Download wavelengths as CSV")
    assert len(before) == len(after)
    slow = [float(table[-2]["positions"]) for table in (before, after)]
    assert slow[1] > slow[0], "a larger base turns more slowly"
    assert saved(page, "Download wavelengths as PNG")[:4] == b"\x89PNG"
    assert b"<svg" in saved(page, "Download wavelengths as SVG")


def test_every_encoding_is_drawn(small, visit):
    page = visit(small).go("positions?length=48&width=16&heads=2")
    # the answer to this first drawing must not be taken for that of the next
    expect(page.get_by_role("region", name="wavelengths", exact=True).locator("svg[data-chart]").first).to_be_visible()
    select = page.get_by_label("Encoding", exact=True)
    names = select.locator("option").evaluate_all("options => options.map(option => option.value)")
    assert {"rope", "alibi", "t5", "fire", "cope", "randomised", "rope-llama3"} <= set(names)
    for name in [one for one in names if one != "rope"] + ["rope"]:
        with page.expect_response("**/positions/show") as coming:
            select.select_option(name)
        assert coming.value.status == 200, (name, coming.value.text())
        drawn = {figure["name"] for figure in coming.value.json()["figures"]}
        assert drawn
        for figure in drawn:
            expect(page.get_by_role("region", name=figure, exact=True).locator("svg[data-chart]").first).to_be_visible()


def test_a_token_is_moved(reader):
    """By the pointer, by the keys and by number; the weights are those of the model."""
    page = reader.go("positions?view=move&text=The+cat+sat+on+the+mat&layer=3&head=1")
    track = page.get_by_role("slider", name="Position of the token")
    expect(track).to_have_attribute("aria-valuenow", "1")
    expect(page.get_by_text("No token has moved yet")).to_be_visible()
    track.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("PageUp")
    expect(track).to_have_attribute("aria-valuenow", "12")
    expect(page).to_have_url(re.compile("to=12"))
    expect(page.get_by_label("Its position")).to_have_value("12")
    page.keyboard.press("Escape")
    expect(track).to_have_attribute("aria-valuenow", "1")
    box = track.bounding_box()
    most = int(track.get_attribute("aria-valuemax"))
    at = [box["x"] + 28 + place * (box["width"] - 56) / most for place in (2, 10)]
    y = track.locator("circle").first.bounding_box()["y"] + 4
    page.mouse.move(at[0], y)
    page.mouse.down()
    page.mouse.move((at[0] + at[1]) / 2, y, steps=3)
    page.mouse.move(at[1], y, steps=3)
    page.mouse.up()
    expect(track).to_have_attribute("aria-valuetext", re.compile("sat, token 2, stands at position 10"))
    expect(page).to_have_url(re.compile("token=2&to=10|to=10&token=2"))
    reader.quiet()
    table = rows(page, "Download moved as CSV")
    weights = {name: [float(r["weight"]) for r in table if r.get("series") == name] for name in ("before", "after")}
    for name in weights:
        kept = weights[name][:6]
        assert sum(kept) == pytest.approx(1, abs=1e-3)
    assert weights["before"][2] != weights["after"][2]
    page.get_by_label("Its position").fill("2")
    expect(page.get_by_text("No token has moved yet")).to_be_visible()
    page.get_by_label("Query", exact=True).select_option("1")
    page.get_by_label("Its position").fill("9")
    expect(page.get_by_text("does not see it")).to_be_visible()
    check_looks(reader)


def test_text_that_is_too_long_is_refused_in_words(reader):
    page = reader.go("positions?view=move")
    page.get_by_label("Text", exact=True).fill("word " * 1100)
    expect(page.get_by_role("alert")).to_contain_text("1,024")
    page.get_by_label("Text", exact=True).fill("")
    expect(page.get_by_text("Write a text")).to_be_visible()
    reader.errors.clear()


def test_swapping_changes_perplexity_and_text(reader):
    page = reader.go("positions?view=swap&tokens=4")
    expect(page.get_by_text("Its own: RoPE")).to_be_visible()
    page.get_by_label("Encoding", exact=True).select_option("none")
    page.get_by_role("button", name="Swap", exact=True).click()
    expect(page.get_by_text("perplexity after")).to_be_visible()

    def fact(name: str) -> float:
        shown = page.locator(".facts > div", has=page.locator("dt", has_text=name)).locator("dd")
        return float(shown.inner_text().replace(",", ""))

    assert fact("perplexity after") > 2 * fact("perplexity before") > 2
    said = [page.locator(f"[data-said={which}]").inner_text() for which in ("before", "after")]
    assert said[0] != said[1]
    table = rows(page, "Download over-position as CSV")
    assert {row["line"] for row in table} == {"before", "after"}
    expect(page).to_have_url(re.compile("swapped=true"))
    check_looks(reader)
    page.get_by_role("button", name="Start from its own").click()
    expect(page.get_by_label("base", exact=True)).to_have_value("100000")
    expect(page.get_by_text("from before your last change")).to_be_visible()
    with page.expect_response(re.compile("/positions/swap")):
        page.get_by_role("button", name="Swap", exact=True).click()
    reader.quiet()
    expect(page.get_by_text("from before your last change")).not_to_be_visible()
    assert fact("perplexity after") == pytest.approx(fact("perplexity before"), rel=1e-3)


def test_a_swap_that_is_refused(reader):
    page = reader.go("positions?view=swap&swap_text=Too+short")
    page.get_by_role("button", name="Swap", exact=True).click()
    expect(page.get_by_role("alert")).to_contain_text("give 16 or more")
    expect(page.get_by_role("button", name="Swap", exact=True)).to_be_enabled()
    reader.errors.clear()
