"""The lens page: guesses layer by layer, a token's vector, a part taken away, and patching between two texts."""

from __future__ import annotations

import csv
import io
import re
import threading
import time

import pytest
from playwright.sync_api import Page, expect

import vantage as vt
from tests.browser.watching import check_looks, saved
from tests.generation.folder import chat_model
from tests.processes import until
from tests.serve.studios import running
from vantage.interventions import ablation, logit_lens, patch
from vantage.serve.studio.lens import changes

TEXT = "the cat sat on a mat"
OTHER = "the cat said on a mat"


@pytest.fixture(scope="module")
def small(browser, tmp_path_factory):
    with running(tmp_path_factory.mktemp("lens"), load=lambda served: chat_model(layers=6)) as it:
        yield f"{it.url}/studio/"


@pytest.fixture
def reader(visit, small):
    return visit(small)


def shown(token: str) -> str:
    return token.replace("\n", "⏎").replace(" ", "·")


def place(text: str) -> str:
    return text.replace(" ", "+")


def finished(page: Page, card: str):
    room = page.get_by_role("region", name=card)
    expect(room.get_by_role("button", name="Stop")).to_have_count(0)
    return room


def test_guesses_layer_by_layer_and_one_vector(reader):
    lens = logit_lens(chat_model(layers=6), TEXT, top=10)
    page = reader.go(f"lens?text={place(TEXT)}")
    grid = page.get_by_role("grid", name="Best guesses, layers by tokens")
    cells = grid.get_by_role("gridcell")
    expect(cells).to_have_count(7 * len(lens.labels))
    assert cells.all_inner_texts() == [shown(words[0]) for row in lens.guesses for words in row]
    # a click shows the distribution of that place
    grid.locator('[data-cell="3.1"]').click()
    expect(page).to_have_url(re.compile("stage=3.*token=1|token=1.*stage=3"))
    listed = page.get_by_role("list", name="Likeliest next tokens").get_by_role("listitem")
    expect(listed).to_have_count(10)
    expect(listed.first).to_contain_text(shown(lens.guesses[3][1][0]))
    expect(page.get_by_role("heading", name=re.compile("^After layer 2, at"))).to_be_visible()
    page.keyboard.press("ArrowDown")
    expect(grid.locator('[data-cell="4.1"]')).to_be_focused()
    expect(listed.first).to_contain_text(shown(lens.guesses[4][1][0]))
    # the token's vector: embedding, and two parts of six layers, which add up to the logit
    steps = page.get_by_role("region", name="Part by part").locator("tbody tr")
    expect(steps).to_have_count(13)
    expect(page.get_by_text("The parts add up to the logit of")).to_be_visible()
    expect(page.get_by_label(re.compile("^contribution of each head"))).to_be_visible()
    table = list(csv.DictReader(io.StringIO(saved(page, "Download lens as CSV").decode())))
    assert len(table) == 7 * len(lens.labels) * 10
    assert [row["token"] for row in table[::10]] == [shown(label) for label in lens.labels] * 7  # as other tables do
    assert [row["guess"] for row in table[:10]] == [shown(word) for word in lens.guesses[0][0]]
    reader.quiet()
    check_looks(reader)
    # a target: its probability and place stand beside the guesses
    page.get_by_label("Follow the token").fill(" mat")
    page.get_by_role("button", name="Look", exact=True).click()
    expect(page.get_by_text("probability of ·mat")).to_be_visible()
    expect(page.get_by_text(re.compile("The parts add up to the logit of ' mat'"))).to_be_visible()
    page.get_by_label("Follow the token").fill(" mat on")
    page.get_by_role("button", name="Look", exact=True).click()
    expect(page.get_by_role("alert").first).to_contain_text("give one")
    reader.errors.clear()  # the browser notes a 400 by itself


def test_a_part_is_taken_away(reader):
    model = chat_model(layers=6)
    page = reader.go(f"lens?view=ablation&text={place(TEXT)}&layer=1&head=2&tokens=6")
    room = finished(page, "Before and after")
    before, after = (room.locator(f"[data-answer={which}]") for which in ("before", "after"))
    expect(before).to_have_text(vt.generate(model, TEXT, max_tokens=6).text.strip() or re.compile("nothing"))
    expect(room.get_by_role("heading", name="Without head 2 of layer 1")).to_be_visible()
    page.get_by_label("Part", exact=True).select_option("layer")
    expect(room.get_by_role("heading", name="Without layer 1", exact=True)).to_be_visible()
    edits = [*ablation(model, "layers.1.attention"), *ablation(model, "layers.1.feed_forward")]
    with vt.tracing(model, edits=edits):
        changed = vt.generate(model, TEXT, max_tokens=6).text
    expect(after).to_have_text(changed.strip() or re.compile("nothing"))
    expect(room.get_by_role("region", name="Next token, before and after").locator("tbody tr").nth(7)).to_be_attached()
    # every head in turn, and one of them chosen from the picture
    page.get_by_role("button", name="Try every head").click()
    chart = page.get_by_label(re.compile("^effect of each layer and head"))
    expect(chart).to_be_visible()
    check_looks(reader)
    chart.focus()
    for key in ("ArrowRight", "ArrowRight", "ArrowDown", "Enter"):
        page.keyboard.press(key)
    expect(page.get_by_label("Part", exact=True)).to_have_value("head")
    expect(room.get_by_role("heading", name="Without head 1 of layer 1")).to_be_visible()


def test_patching_between_two_texts(reader):
    page = reader.go(f"lens?view=patching&clean={place(TEXT)}&corrupted={place(OTHER)}")
    page.get_by_role("button", name="Patch", exact=True).click()
    chart = page.get_by_label(re.compile("^effect of each layer and position"))
    expect(chart).to_be_visible()
    table = list(csv.DictReader(io.StringIO(saved(page, "Download patching as CSV").decode())))
    sweep = patch(chat_model(layers=6), TEXT, OTHER)
    drawn = [float(row[next(name for name in row if "value" in name.lower())]) for row in table]
    assert drawn == pytest.approx(sweep.effects.flatten().tolist(), abs=1e-4)
    check_looks(reader)
    page.reload()  # a link to a picture draws it
    expect(chart).to_be_visible()
    page.get_by_label("Second text").fill(OTHER + " and more")
    page.get_by_role("button", name="Patch", exact=True).click()
    expect(page.get_by_role("alert")).to_contain_text("exchange words for others of as many")
    reader.errors.clear()  # the browser notes a 400 by itself


def test_what_takes_long_says_how_far_it_is_and_stops(reader, monkeypatch):
    stopped = threading.Event()

    def held_up(*args, **options):
        for piece in vt.generate(*args, **options):
            yield piece
            stopped.wait(60)
            time.sleep(0.2)  # the request to stop is on its way

    monkeypatch.setattr(changes, "generate", held_up)
    page = reader.go(f"lens?view=ablation&tokens=64&text={place(TEXT)}")
    room = page.get_by_role("region", name="Before and after")
    expect(room.get_by_role("status")).to_contain_text("writing with all its parts")
    expect(room.get_by_role("progressbar", name="Generating")).not_to_have_attribute("aria-valuenow", "0")
    room.get_by_role("button", name="Stop").click()
    stopped.set()
    until(lambda: not any(thread.name == "studio-lens" for thread in threading.enumerate()))
    expect(page.locator("[data-answer]")).to_have_count(0)
    monkeypatch.undo()
    page.get_by_role("button", name="Continue").click()
    expect(page.locator("[data-answer=after]")).to_be_visible()
