"""A page that guides: the tour, good defaults, the atlas as a picture, terms; what forms and addresses must not do."""

from __future__ import annotations

import re
import struct

import pytest
from playwright.sync_api import Page, expect

from tests.browser.watching import NARROW, check_looks, saved
from tests.generation.folder import chat_model
from tests.serve.studios import running

STEPS = ["Chat and watch", "Attention", "Attention", "Positions", "Attention", "Studies"]


@pytest.fixture(scope="module")
def small(browser, tmp_path_factory):
    with running(tmp_path_factory.mktemp("guides"), load=lambda served: chat_model(layers=6)) as it:
        yield f"{it.url}/studio/"


@pytest.fixture
def reader(visit, small):
    return visit(small)


def dialog(page: Page):
    return page.get_by_role("dialog", name=re.compile("^Tour"))


def test_the_tour_goes_over_the_real_pages(visit, small):
    reader = visit(small, first=True)
    page = reader.go("chat")
    page.get_by_role("button", name="Start the tour").click()
    for number, heading in enumerate(STEPS, 1):
        expect(dialog(page)).to_have_attribute("aria-label", f"Tour, step {number} of {len(STEPS)}")
        expect(page).to_have_url(re.compile(f"tour={number}(&|$)"))
        expect(page.get_by_role("heading", level=1)).to_have_text(heading)
        if heading == "Attention":
            expect(page.locator(".heatmap canvas, .att-lines").first).to_be_visible()
        if number < len(STEPS):
            dialog(page).get_by_role("button", name="Next").click()
    expect(page.locator(".stu-tag", has_text="A4")).to_be_visible()
    dialog(page).get_by_role("button", name="Finish").click()
    expect(dialog(page)).to_have_count(0)


def test_the_tour_can_be_declined_linked_and_left(visit, small):
    reader = visit(small, first=True)
    page = reader.go("chat")
    check_looks(reader)
    page.get_by_role("button", name="Not now").click()
    page.reload()
    expect(page.get_by_role("button", name="Tour", exact=True)).to_be_visible()
    expect(page.get_by_role("button", name="Start the tour")).to_have_count(0)
    page = reader.go("attention?view=lines&find=induction&tour=3")  # as it may stand in a message
    expect(dialog(page)).to_contain_text("An induction head")
    check_looks(reader)
    dialog(page).get_by_role("button", name="Exit tour").click()
    expect(page).not_to_have_url(re.compile("tour="))


def test_attention_opens_on_a_head_worth_seeing_and_says_what_it_does(reader):
    page = reader.go("attention?text=the+cat+sat+on+a+mat.+the+cat+sat+on+a+mat.")
    words = page.locator(".att-words")
    expect(words).to_contain_text(re.compile(r"^\d+·\d+ "))
    layer, head = (int(n) for n in re.match(r"(\d+)·(\d+)", words.inner_text()).groups())
    expect(page.get_by_label("Layer", exact=True)).to_have_value(str(layer))
    expect(page.get_by_label("Head", exact=True)).to_have_value(str(head))
    page.get_by_role("tab", name="Atlas").click()
    table = page.get_by_role("region", name="Atlas of heads")
    shares = {}
    expect(table.locator("tbody tr").first).to_be_visible()
    for row in table.locator("tbody tr").all():
        cells = row.locator("td").all_inner_texts()
        shares[int(cells[0]), int(cells[1])] = 0.0 if cells[8] == "–" else float(cells[8])
    assert shares[layer, head] == max(shares.values())  # the clearest induction head there is
    page.get_by_role("tab", name="Lines").click()
    page.get_by_label("Layer", exact=True).press("ArrowRight")
    expect(page).to_have_url(re.compile(f"head={head}(&|$)"))  # the head that was found stays


def test_the_atlas_is_a_picture(reader):
    page = reader.go("attention?view=atlas&text=the+cat+sat+on+a+mat&layer=0&head=0")
    picture = page.get_by_role("application", name=re.compile("Every head by what it does"))
    expect(picture.locator("rect[data-head]")).to_have_count(24)
    picture.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    expect(page).to_have_url(re.compile("layer=1.*head=1|head=1.*layer=1"))
    assert b"<svg" in saved(page, "Download atlas-picture as SVG")
    check_looks(reader)
    picture.locator('rect[data-head="3.2"]').click()
    expect(page).to_have_url(re.compile("layer=3"))
    picture.focus()
    page.keyboard.press("Enter")
    expect(page.get_by_label(re.compile("Heat map of self attention, layer 3, head 2"))).to_be_visible()


def test_a_heat_map_has_a_legend_and_its_picture_axes(reader):
    page = reader.go("attention?view=heat&text=the+cat+sat+on+a+mat&layer=0&head=0")
    expect(page.get_by_role("img", name="Colours from 0 % to 100 %, by the square root")).to_be_visible()
    expect(page.get_by_text("Rows are queries, columns are the keys they attend to.")).to_be_visible()
    png = saved(page, "Download attention-self-0-0 as PNG")
    width, height = struct.unpack(">II", png[16:24])
    assert width >= 900
    # its cells are square: there is room beside it for tokens, over it for a title, under it for tokens and a legend
    assert width - 96 == height - 34 - 48 - 76
    page = reader.go("attention?view=heat&layer=0&head=0&text=" + "+".join(["the+cat"] * 50))
    expect(page.get_by_role("img", name=re.compile("by the logarithm"))).to_be_visible()


def test_terms_are_explained(reader):
    page = reader.go("attention?view=atlas&text=the+cat+sat+on+a+mat&layer=0&head=0")
    term = page.locator(".term-word").first
    term.focus()
    expect(page.get_by_role("tooltip").first).to_be_visible()
    assert len(page.get_by_role("tooltip").first.inner_text()) > 20
    page = reader.go("chat")
    expect(page.locator("label", has_text="Top-p")).to_have_attribute("title", re.compile("most likely tokens"))
    page = reader.go("compare")
    expect(page.locator("label.check", has_text=re.compile("^alibi$"))).to_have_attribute("title", re.compile("ALiBi"))
    page = reader.go("studies")
    expect(page.get_by_label("Source").locator("option", has_text="S3")).to_have_text(re.compile("Positional"))


def test_a_long_text_leaves_the_address_short(reader, visit, small):
    page = reader.go("attention?model=tiny&layer=0&head=0")
    text = "the cat sat on a mat. " * 100
    page.get_by_label("Text").fill(text)
    page.get_by_role("button", name="Look").click()
    expect(page).to_have_url(re.compile("text=%7E|text=~"))
    assert len(page.url) < 300
    page.reload()
    expect(page.get_by_label("Text")).to_have_value(text)
    there = visit(small).go(page.url.split("#/")[1])
    expect(there.get_by_role("status").filter(has_text="stored only in the browser")).to_be_visible()


def test_a_wrong_field_starts_nothing(reader):
    page = reader.go("compare")
    page.get_by_label("Trained up to length").fill("0")
    page.get_by_role("button", name="Start", exact=True).click()
    expect(page.get_by_role("alert").filter(has_text="not valid")).to_be_visible()
    expect(page.get_by_label("Trained up to length")).to_be_focused()
    expect(page).not_to_have_url(re.compile("id="))
    page.get_by_label("Trained up to length").fill("10")
    page.get_by_label("Tested at lengths").fill("long ones")
    page.get_by_role("button", name="Start", exact=True).click()
    expect(page.get_by_text("Write whole numbers, as in 10, 20, 40.")).to_be_visible()
    expect(page.get_by_label("Tested at lengths")).to_be_focused()
    expect(page).not_to_have_url(re.compile("id="))


def test_a_first_comparison_is_in_reach(visit, small):
    """On a narrow screen the form is several screens long."""
    page = visit(small, width=NARROW).go("compare")
    expect(page.get_by_role("button", name="Try it for 30 seconds")).to_be_in_viewport()


def test_what_pages_begin_with(reader):
    page = reader.go("cost")
    expect(page.get_by_label("Longest context")).to_have_value("4096")  # the model's own
    page.get_by_role("link", name="Build").click()
    expect(page.get_by_label("Kind of attention")).to_have_value("multi-head")
    ring = page.evaluate("() => getComputedStyle(document.querySelector('main')).outlineStyle")
    assert page.evaluate("() => document.activeElement.tagName") == "MAIN"  # for readers of a screen
    assert ring == "none"
    page = reader.go("positions?view=move")
    expect(page.get_by_text("attention that moved")).to_be_visible()
    expect(page.get_by_text("No token has moved yet")).to_have_count(0)
