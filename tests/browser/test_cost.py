"""Cache and cost: the calculator on a model and on a shape, and a measurement whose curves grow."""

from __future__ import annotations

import csv
import io
import re
import time

import pytest
from playwright.sync_api import Page, expect

from tests.browser.watching import check_looks, saved
from tests.generation.folder import chat_model
from tests.serve.studios import running


def unhurried_model():
    """Takes its time for every pass, so that there is time to stop it on any machine."""
    model = chat_model()
    model.register_forward_pre_hook(lambda module, args: time.sleep(0.02))
    return model


@pytest.fixture(scope="module")
def unhurried(browser, tmp_path_factory):
    with running(tmp_path_factory.mktemp("cost"), "tiny", load=lambda served: unhurried_model()) as it:
        yield f"{it.url}/studio/"


def rows(page: Page, button: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(saved(page, button).decode())))


def test_the_sizes_of_a_model(reader):
    page = reader.go("cost?context=4096")
    table = page.get_by_role("region", name="Bytes of the cache by kind")
    expect(table.locator("tbody tr")).to_have_count(6)
    sizes = {row["kind"]: row for row in rows(page, "Download cache-sizes as CSV")}
    own, wide = sizes["as it is"], sizes["MHA"]
    assert int(own["bytes a token"]) * 3 == int(wide["bytes a token"])  # 3 key/value heads of 9
    assert int(own["bytes at 4096"]) == 4096 * int(own["bytes a token"])
    page.get_by_label("Batch", exact=True).fill("4")
    expect(page).to_have_url(re.compile("batch=4"))
    expect(page.get_by_text("4,096 tokens, batch 4")).to_be_visible()
    four = {row["kind"]: row for row in rows(page, "Download cache-sizes as CSV")}["as it is"]
    assert int(four["bytes at 4096"]) == 4 * int(own["bytes at 4096"])
    page.get_by_label("Longest context").select_option("16384")
    expect(table.get_by_role("columnheader", name="16,384")).to_be_visible()
    assert saved(page, "Download cache as PNG")[:4] == b"\x89PNG"
    assert b"<svg" in saved(page, "Download operations as SVG")
    check_looks(reader)


def test_the_sizes_of_a_shape(reader):
    page = reader.go("cost?of=shape&window=1024&context=8192")
    expect(page.get_by_label("Window")).to_have_value("1024")
    expect(page.get_by_role("rowheader", name="MHA, window 1,024")).to_be_visible()
    page.get_by_role("button", name="GPT-2").click()
    expect(page.get_by_label("Layers")).to_have_value("12")
    expect(page.get_by_label("Key/value heads")).to_have_value("")
    expect(page).to_have_url(re.compile("layers=12"))
    expect(page.get_by_text("36.0 KiB").first).to_be_visible()  # 2 · 12 · 768 · 2 bytes
    page.get_by_label("Heads", exact=True).fill("7")
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text("does not divide into 7 heads")
    expect(alert.get_by_role("button", name="Retry")).to_be_visible()
    page.get_by_label("Heads", exact=True).fill("12")
    expect(alert).to_have_count(0)
    page.get_by_label("Layers").fill("0")
    expect(alert).to_contain_text("At least 1")
    reader.errors.clear()
    page.get_by_role("button", name="DeepSeek-V2").click()
    expect(page.get_by_role("rowheader", name="MLA (512 + 64)")).to_be_visible()


def test_an_encoder_has_no_cache(reader):
    page = reader.go("cost?model=minilm")
    expect(page.get_by_role("alert")).to_contain_text("keeps no cache")
    reader.errors.clear()


def test_curves_grow_and_can_be_stopped(unhurried, visit):
    reader = visit(unhurried)
    page = reader.go("cost?view=measure&tokens=400")
    page.get_by_role("button", name="Measure", exact=True).click()
    meter = page.get_by_role("progressbar")
    expect(meter).to_be_visible()
    seen = meter.get_attribute("aria-label")
    expect(meter).not_to_have_attribute("aria-label", seen)
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_text("Stopped after")).to_be_visible()
    table = [row for row in rows(page, "Download measured as CSV") if row["panel"] == "keys projected"]
    cached = [int(row["keys"]) for row in table if row["line"] == "with a cache"]
    uncached = [int(row["keys"]) for row in table if row["line"] == "without"]
    assert 2 <= len(cached) < 400
    start = cached[0]
    assert cached == [start + n for n in range(len(cached))]
    assert uncached == [sum(start + i for i in range(n + 1)) for n in range(len(cached))]
    check_looks(reader)


def test_a_measurement_to_its_end(reader):
    page = reader.go("cost?view=measure&tokens=8")
    expect(page.get_by_label("Tokens")).to_have_value("8")
    page.get_by_role("button", name="Measure", exact=True).click()
    expect(page.get_by_text("Both ways chose the same token every time (8).")).to_be_visible()
    expect(page.get_by_text("It wrote:")).to_be_visible()
    expect(page.get_by_role("button", name="Measure", exact=True)).to_be_enabled()
