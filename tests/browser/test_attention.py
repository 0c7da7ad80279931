"""The attention page: lines, heat map, all heads, atlas and scores; two sides; long texts; every kind of attention."""

from __future__ import annotations

import csv
import io
import re
import statistics
import threading
import time

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.watching import WIDE, check_looks, saved
from tests.generation.folder import chat_model
from tests.processes import until
from tests.serve.studios import running
from tests.serve.test_studio_attention import both_ways
from vantage.serve.studio.attention import routes

REDRAW_MS, SLIDER_MS, SLACK = 50, 200, 3  # the machine is shared with other tests
SENTENCE = "the cat sat on a mat and said: 12 dogs, 3 birds? no! "


@pytest.fixture(scope="module")
def small(browser, tmp_path_factory):
    """A studio over tiny models of every kind: what takes SmolLM2 many seconds takes them none."""
    models = {"tiny": chat_model(), "encoder": both_ways("encoder"), "both": both_ways("both")}
    with running(tmp_path_factory.mktemp("kinds"), *models, load=lambda served: models[served.name]) as it:
        yield f"{it.url}/studio/"


def read(page: Page) -> None:
    expect(page.get_by_text("tokens, read ")).to_be_visible()


def sides(page: Page) -> tuple[Locator, Locator]:
    return page.get_by_role("region", name=re.compile("^Left:")), page.get_by_role("region", name=re.compile("^Right:"))


def rows(page: Page, button: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(saved(page, button).decode())))


def test_reading_says_how_far_it_is_and_stops(visit, small, monkeypatch):
    real = routes.read_text

    def slowly(*args):
        def report(share, doing):
            args[-1](share, doing)
            time.sleep(1.0)

        return real(*args[:-1], report)

    monkeypatch.setattr(routes, "read_text", slowly)
    page = visit(small).go("attention?layer=0&head=0&text=the+cat+sat")
    expect(page.get_by_role("status").filter(has_text="1 of 2 layers")).to_be_visible()
    page.get_by_role("button", name="Stop").click()
    until(lambda: not any(thread.name == "studio-read" for thread in threading.enumerate()))
    expect(page.get_by_text("tokens, read ")).to_have_count(0)
    monkeypatch.undo()
    page.get_by_role("button", name="Read", exact=True).click()
    read(page)
    page.get_by_role("tab", name="Atlas").click()
    expect(page.get_by_role("region", name="Atlas of heads")).to_be_visible()


def test_lines(reader):
    page = reader.go("attention?layer=5&head=2")
    read(page)
    chart = page.get_by_label(re.compile("Attention lines of self attention, layer 5, head 2"))
    expect(chart.locator("path").nth(10)).to_be_attached()
    chart.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    expect(page).to_have_url(re.compile("query=1(&|$)"))
    expect(page.get_by_role("status").filter(has_text="looks at")).to_contain_text("·Mary (1) looks at")
    page.keyboard.press("Escape")
    expect(page).not_to_have_url(re.compile("query="))
    table = rows(page, "Download lines-self-5-2 as CSV")
    for row in table:
        assert int(row["key"]) <= int(row["query"])
    first = [float(row["weight"]) for row in table if row["query"] == "0"]
    assert first == [pytest.approx(1, abs=1e-3)]
    check_looks(reader)


def test_heat_map(reader):
    page = reader.go("attention?view=heat&layer=3")
    read(page)
    canvas = page.get_by_label(re.compile("Heat map of self attention, layer 3, head 0"))
    expect(canvas).to_be_visible()
    corner = {"x": 100, "y": 8}  # the first cell: its label's room is 96 wide
    canvas.hover(position=corner)
    expect(page.get_by_text("When (0) → When (0): 100 %")).to_be_visible()
    canvas.focus()
    page.keyboard.press("+")
    expect(page.get_by_role("button", name="Zoom out")).to_be_enabled()
    page.keyboard.press("0")
    expect(page.get_by_role("button", name="Zoom out")).to_be_disabled()
    canvas.click(position=corner)
    expect(page).to_have_url(re.compile("query=0"))
    page.get_by_label("Head", exact=True).press("ArrowRight")
    expect(page).to_have_url(re.compile("head=1"))
    expect(page.get_by_label(re.compile("layer 3, head 1"))).to_be_visible()
    assert saved(page, "Download attention-self-3-1 as PNG")[:4] == b"\x89PNG"
    assert b"<image" in saved(page, "Download attention-self-3-1 as SVG")
    sums: dict[str, float] = {}
    for row in rows(page, "Download attention-self-3-1 as CSV"):
        sums[row["query"]] = sums.get(row["query"], 0) + float(row["weight"])
    assert len(sums) == 29
    assert all(total == pytest.approx(1, abs=2e-3) for total in sums.values())
    check_looks(reader)


def test_all_heads_and_the_atlas(reader):
    page = reader.go("attention?view=heads&layer=2")
    read(page)
    expect(page.get_by_role("button", name=re.compile("Layer 2, head"))).to_have_count(9)
    page.get_by_role("button", name="Layer 2, head 4").click()
    expect(page).to_have_url(re.compile("head=4"))
    assert saved(page, "Download heads-self-2 as PNG")[:4] == b"\x89PNG"
    assert {row["head"] for row in rows(page, "Download heads-self-2 as CSV")} == {str(head) for head in range(9)}
    check_looks(reader)
    page.get_by_role("tab", name="Atlas").click()
    table = page.get_by_role("region", name="Atlas of heads")
    expect(table.locator("tbody tr")).to_have_count(270)
    expect(page.locator("svg.att-map image")).to_have_count(30)  # a layer's heads in each
    for _ in range(2):
        table.get_by_role("button", name="Previous").click()
    expect(table.get_by_role("columnheader", name="Previous")).to_have_attribute("aria-sort", "descending")
    shares = [float(text) for text in table.locator("tbody tr td:nth-child(6)").all_inner_texts() if text != "–"]
    assert shares == sorted(shares, reverse=True)
    page.get_by_label("Show").select_option("previous")
    expect(table.locator("tbody tr").nth(60)).to_have_count(0)
    assert set(table.locator("tbody tr td:nth-child(3)").all_inner_texts()) == {"previous"}
    check_looks(reader)
    head = table.get_by_role("link").first
    place = re.search(r"layer (\d+), head (\d+)", head.get_attribute("aria-label"))
    head.click()
    expect(
        page.get_by_label(re.compile(f"Heat map of self attention, layer {place[1]}, head {place[2]}"))
    ).to_be_visible()


def test_scores_are_the_sum_of_their_parts(reader):
    page = reader.go("attention?view=scores&layer=4&head=1&query=20")
    read(page)
    expect(page.get_by_label(re.compile(r"Scores of 21 keys in 9 parts"))).to_be_visible()
    table = rows(page, "Download scores-self-4-1-20 as CSV")
    seen = [row for row in table if row["score"]]
    assert len(seen) == 21
    for row in seen:
        parts = [float(value) for name, value in row.items() if name not in ("key", "token", "score")]
        assert sum(parts) == pytest.approx(float(row["score"]), abs=2e-3)
    page.get_by_label("Split position into RoPE frequency bands").uncheck()
    chart = page.get_by_label(re.compile(r"Scores of 21 keys in 2 parts"))
    chart.focus()
    page.keyboard.press("ArrowDown")
    expect(page.get_by_role("status").filter(has_text="content")).to_contain_text("position")
    page.get_by_label("Query").press("ArrowLeft")
    expect(page).to_have_url(re.compile("query=19"))
    expect(page.get_by_label(re.compile("Scores of 20 keys"))).to_be_visible()
    check_looks(reader)


def test_two_sides(reader):
    page = reader.go("attention?layer=1")
    read(page)
    page.get_by_label("Side by side with").select_option("model")
    left, right = sides(page)
    expect(right.get_by_label(re.compile("layer 1, head 0"))).to_be_visible()  # until then it has one head
    right.get_by_label("Head", exact=True).press("ArrowRight")
    expect(page).to_have_url(re.compile("b_head=1"))
    expect(left.get_by_label(re.compile("layer 1, head 0"))).to_be_visible()
    expect(right.get_by_label(re.compile("layer 1, head 1"))).to_be_visible()
    right.get_by_label("Model").select_option("minilm")
    expect(right.get_by_label("Layer", exact=True)).to_have_attribute("max", "5")
    expect(left.get_by_label("Layer", exact=True)).to_have_attribute("max", "29")
    expect(right.locator("svg path").first).to_be_attached()
    check_looks(reader)


def test_two_encodings(reader):
    page = reader.go("attention?view=heat&layer=3&head=1")
    read(page)
    page.get_by_label("Side by side with").select_option("encoding")
    left, right = sides(page)
    expect(left.get_by_label("Heat map of self attention, layer 3, head 1, its own (RoPE).")).to_be_visible()
    expect(left.get_by_text("Its own encoding: RoPE, base 100,000")).to_be_visible()
    expect(right.get_by_label("Heat map of self attention, layer 3, head 1, ALiBi.")).to_be_visible()
    own, alibi = ("attention-self-3-1-own-rope", "attention-self-3-1-alibi")
    tables = {name: rows(page, f"Download {name} as CSV") for name in (own, alibi)}
    for name, spoken in ((own, "its own (RoPE)"), (alibi, "ALiBi")):
        assert {row["encoding"] for row in tables[name]} == {spoken}
        last = [float(row["weight"]) for row in tables[name] if row["query"] == "28"]
        assert sum(last) == pytest.approx(1, abs=2e-3)
    weights = [{(row["query"], row["key"]): float(row["weight"]) for row in table} for table in tables.values()]
    assert max(abs(weights[0].get(at, 0) - weights[1].get(at, 0)) for at in weights[0] | weights[1]) > 0.05
    pictures = {name: saved(page, f"Download {name} as PNG") for name in (own, alibi)}
    assert pictures[own][:4] == pictures[alibi][:4] == b"\x89PNG"
    assert pictures[own] != pictures[alibi]
    assert b"head 1, ALiBi</title>" in saved(page, f"Download {alibi} as SVG")
    check_looks(reader)
    right.get_by_label("Encoding", exact=True).focus()
    page.keyboard.press("ArrowDown")
    expect(page).to_have_url(re.compile("b_encoding=t5"))
    expect(right.get_by_label(re.compile(r"Heat map of .*, T5\."))).to_be_visible()
    expect(right.get_by_text("the model has never trained")).to_be_visible()
    assert saved(page, "Download attention-self-3-1-t5 as PNG") not in pictures.values()


def test_a_link_holds_the_other_encoding(reader):
    page = reader.go("attention?compare=encoding&b_encoding=rope&b_p.base=500&layer=3&b_layer=5&query=20")
    read(page)
    left, right = sides(page)

    def as_linked() -> None:
        expect(left.get_by_label(re.compile(r"lines of .* layer 3, head 0, its own \(RoPE\)\."))).to_be_visible()
        expect(right.get_by_label(re.compile(r"lines of .* layer 5, head 0, RoPE, base 500\."))).to_be_visible()
        for side in (left, right):
            expect(side.get_by_role("status").filter(has_text="(20) looks at")).to_be_visible()

    as_linked()
    page.reload()
    as_linked()
    assert b">RoPE, base 500<" in saved(page, "Download lines-self-5-0-rope-base-500 as SVG")
    right.get_by_role("button", name="Reset").click()
    expect(right.get_by_label(re.compile(r"layer 5, head 0, RoPE\."))).to_be_visible()
    page.get_by_label("Side by side with").select_option("")
    expect(page).not_to_have_url(re.compile("b_|compare"))
    expect(right).to_have_count(0)


def test_scores_of_another_encoding(reader):
    page = reader.go("attention?view=scores&compare=encoding&layer=4&head=1&query=20")
    read(page)
    left, right = sides(page)
    expect(left.get_by_label(re.compile(r"Scores of 21 keys in 9 parts, its own \(RoPE\)"))).to_be_visible()
    expect(right.get_by_label(re.compile(r"Scores of 21 keys in 2 parts, ALiBi"))).to_be_visible()
    expect(right.get_by_text("ALiBi turns no queries and keys, so there are no bands")).to_be_visible()
    expect(right.get_by_label("Split position into RoPE frequency bands")).to_be_disabled()
    table = rows(page, "Download scores-self-4-1-20-alibi as CSV")
    for row in table[:21]:
        assert float(row["content"]) + float(row["bias Alibi"]) == pytest.approx(float(row["score"]), abs=2e-3)
    right.get_by_label("Query").press("ArrowLeft")  # one for both
    expect(left.get_by_label(re.compile("Scores of 20 keys"))).to_be_visible()
    expect(right.get_by_label(re.compile("Scores of 20 keys"))).to_be_visible()
    check_looks(reader)


def test_all_heads_and_the_atlas_of_another_encoding(small, visit):
    reader = visit(small)
    page = reader.go("attention?model=tiny&view=heads&compare=encoding&b_encoding=none")
    read(page)
    for name in ("own-rope", "none"):
        assert saved(page, f"Download heads-self-0-{name} as PNG")[:4] == b"\x89PNG"
    assert b">Layer 0, None (NoPE)<" in saved(page, "Download heads-self-0-none as SVG")
    check_looks(reader)
    page.get_by_role("tab", name="Atlas").click()
    tables = []
    for side in sides(page):
        expect(side.locator(".att-atlas tbody tr")).to_have_count(8)
        tables.append(side.locator(".att-atlas tbody tr td:nth-child(4)").all_inner_texts())
    assert tables[0] != tables[1]
    with page.expect_download() as coming:
        sides(page)[1].get_by_role("button", name="CSV", exact=True).click()
    assert coming.value.suggested_filename == "atlas-none.csv"
    check_looks(reader)


def test_an_encoding_that_is_refused_is_said(small, visit):
    reader = visit(small)
    page = reader.go("attention?model=encoder&compare=encoding&b_encoding=cope")
    read(page)
    left, right = sides(page)
    expect(right.get_by_role("alert")).to_contain_text("CoPE counts back from the query")
    expect(right.locator("svg[data-chart]")).to_have_count(0)
    expect(left.locator("svg[data-chart]")).to_be_visible()
    reader.errors.clear()  # the browser notes a 400 by itself
    right.get_by_label("Encoding", exact=True).select_option("sinusoidal")
    expect(right.get_by_label(re.compile(r"lines of .*, Sinusoidal\."))).to_be_visible()
    page.evaluate("() => { location.hash = location.hash.replace('sinusoidal', 'sinus') }")
    expect(right.get_by_role("alert")).to_contain_text("names an unknown encoding")


def test_a_link_opens_what_it_says(reader):
    page = reader.go("attention?text=One+two+three&view=scores&layer=6&head=3&query=1")
    read(page)
    expect(page.get_by_label("Text")).to_have_value("One two three")
    expect(page.get_by_role("tab", name="Scores")).to_have_attribute("aria-selected", "true")
    expect(page.get_by_label("Layer", exact=True)).to_have_value("6")
    expect(page.get_by_label("Head", exact=True)).to_have_value("3")
    expect(page.get_by_label("Query")).to_have_value("1")


def test_every_kind_of_attention(small, visit):
    reader = visit(small)
    page = reader.go("attention?model=both&text=the+cat+sat+on+a+mat&source=hello+world")
    read(page)
    kind = page.get_by_label("Kind")
    counts = {}
    for name in ("self", "cross", "encoder"):
        kind.select_option(name)
        label = page.get_by_label(re.compile(f"Attention lines of {name} attention"))
        expect(label).to_be_visible()
        page.get_by_role("tab", name="Heat map").click()
        label = page.get_by_label(re.compile(f"Heat map of {name} attention")).get_attribute("aria-label")
        counts[name] = tuple(int(n) for n in re.search(r"(\d+) by (\d+)", label).groups())
        page.get_by_role("tab", name="Lines").click()
    (text, same), (queries, keys), (source, own) = counts["self"], counts["cross"], counts["encoder"]
    assert text == same == queries != keys == source == own
    page.get_by_label("Source").fill("user assistant system")
    page.get_by_role("button", name="Look").click()
    expect(page).to_have_url(re.compile("source=user"))
    check_looks(reader)


def test_an_encoder_looks_both_ways(small, visit):
    page = visit(small).go(
        f"attention?model=encoder&text={SENTENCE.strip().replace(' ', '+')}&view=heat&layer=0&head=0"
    )
    read(page)
    table = rows(page, "Download attention-self-0-0 as CSV")
    assert any(int(row["key"]) > int(row["query"]) for row in table)


def test_two_thousand_tokens_are_smooth(small, visit):
    page = visit(small).go("attention?model=tiny&view=heat&layer=0&head=0")
    read(page)
    page.get_by_label("Text").fill(SENTENCE * 115)
    page.get_by_role("button", name="Look").click()
    canvas = page.get_by_label(re.compile(r"Heat map of .* \d{4} by \d{4}"))
    expect(canvas).to_be_visible()
    assert int(re.search(r"(\d+) by", canvas.get_attribute("aria-label"))[1]) >= 2000
    took = "() => performance.getEntriesByName('heatmap-draw').map(one => one.duration)"
    page.evaluate("() => document.addEventListener('input', () => { window.slid = performance.now() }, true)")
    # from the slider to the drawn picture, less what the server takes: it shares this process with the test
    own = """() => {
        const drawn = performance.getEntriesByName('heatmap-draw').map((one) => one.startTime + one.duration);
        const half = performance.getEntriesByType('resource').filter((one) => one.name.includes('half=true')).at(-1);
        const end = Math.min(...drawn.filter((at) => at > half.responseEnd));
        return half.fetchStart - window.slid + end - half.responseEnd;
    }"""
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    fresh, slid = [], []
    for head in (1, 2, 3):  # another head: all its colours are new
        page.evaluate("() => performance.clearMeasures()")
        page.get_by_label("Head", exact=True).press("ArrowRight")
        expect(page.get_by_label(re.compile(f"head {head}. "))).to_be_visible()
        page.wait_for_function("() => performance.getEntriesByName('heatmap-draw').length > 0")
        expect(page.get_by_role("button", name=f"Download attention-self-0-{head} as CSV")).to_be_visible()
        slid.append(page.evaluate(own))
        page.wait_for_timeout(200)
        fresh.append(max(page.evaluate(took)))
    # at half its size first, and then all of it
    assert [("half=true" in url) for url in asked if "/head?" in url] == [True, False] * 3
    page.evaluate("() => performance.clearMeasures()")
    canvas = page.get_by_label(re.compile("Heat map of"))
    canvas.focus()
    for key in ("+", "+", "+", "ArrowUp", "ArrowRight", "ArrowUp", "-", "-", "0"):
        page.keyboard.press(key)
        page.wait_for_timeout(60)
    moved = page.evaluate(took)
    print(
        f"2,000 tokens: zoom and cursor {statistics.median(moved):.1f} ms, new head {statistics.median(fresh):.1f} ms, "
        f"{statistics.median(slid):.0f} ms of the page between slider and picture"
    )
    assert len(moved) >= 8
    assert statistics.median(moved) < REDRAW_MS * SLACK
    assert statistics.median(fresh) < REDRAW_MS * SLACK
    assert statistics.median(slid) < SLIDER_MS * SLACK
    page.get_by_role("tab", name="Lines").click()  # a window of sixty
    page.get_by_label("Window").press("End")
    expect(page.get_by_label("Attention lines").locator("text").nth(100)).to_be_attached()


def test_a_text_too_long_is_refused_in_words(small, visit):
    reader = visit(small, width=WIDE)
    page = reader.go("attention?model=tiny")
    read(page)
    page.get_by_label("Text").fill(SENTENCE * 300)
    page.get_by_role("button", name="Look").click()
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text("4,096")
    expect(page.locator("svg[data-chart]")).to_have_count(0)  # nor does the old picture stand under the new text
    expect(alert.get_by_role("button", name="Retry")).to_be_visible()
    reader.errors.clear()  # the browser notes a 400 by itself
