"""Build: parts chosen, code, sizes and a drawing that follow; what trains it; what cannot be built is said."""

from __future__ import annotations

import json
import re
import tomllib

from playwright.sync_api import Page, expect

import vantage as vt
from tests.browser.watching import check_looks, saved


def fact(page: Page, name: str) -> str:
    shown = page.locator(".facts > div", has=page.locator("dt", has_text=name)).locator("dd")
    return shown.first.inner_text().strip()


def made(code: str) -> vt.ModelSpec:
    """What the code on the page makes."""
    scope: dict = {}
    exec(code.replace("model = vt.build(spec)", ""), scope)
    return scope["spec"]


def test_the_code_makes_what_is_shown(reader):
    page = reader.go("build?width=64&layers=2&vocab=100")
    code = page.get_by_role("region", name="Python for this model")
    expect(code).to_contain_text("width=64")
    page.get_by_label("Encoding", exact=True).select_option("alibi")
    page.get_by_label("Kind of attention").select_option("grouped-query")
    page.get_by_label("Key/value heads").fill("2")
    expect(page).to_have_url(re.compile("position=alibi.*kv_heads=2"))
    expect(code).to_contain_text("alibi")
    expect(code).to_contain_text("kv_heads=2")
    spec = made(saved(page, "Download model.py").decode())
    assert len(spec.layers) == 2
    assert spec.layers[0].attention.kv_heads == 2
    count = sum(p.numel() for p in vt.build(spec).parameters())
    assert fact(page, "parameters") == f"{count:,}"
    shown = page.locator(".bld-block")
    expect(shown).to_have_count(1)
    assert "2 key/value" in shown.text_content()
    page.get_by_role("tab", name="Spec as JSON").click()
    assert json.loads(saved(page, "Download spec.json"))
    check_looks(reader)


def test_normalisers_and_a_delta_rule(reader):
    page = reader.go("build?width=64&layers=2&heads=4&vocab=100&normaliser=sparsemax")
    code = page.get_by_role("region", name="Python for this model")
    expect(code).to_contain_text("Sparsemax")
    page.get_by_label("Weights by").select_option("stick-breaking")
    expect(code).to_contain_text("StickBreaking")
    page.get_by_label("Encoding", exact=True).select_option("none")
    page.get_by_label("Kind of attention").select_option("kimi-delta")
    page.get_by_label("Rank of decays").fill("8")
    page.get_by_label("Convolution taps").fill("3")
    expect(code).to_contain_text("rank=8")
    expect(page.get_by_label("Weights by")).to_have_count(0)
    spec = made(saved(page, "Download model.py").decode())
    assert (spec.layers[0].attention.rank, spec.layers[0].attention.taps) == (8, 3)
    assert fact(page, "parameters") == f"{sum(p.numel() for p in vt.build(spec).parameters()):,}"
    check_looks(reader)


def test_a_link_with_a_layer_pattern(reader):
    page = reader.go("build?layers=6&window=32&full_every=3&show=train")
    expect(page.locator(".bld-block")).to_have_count(2)
    strip = page.get_by_label(re.compile("The layers in order"))
    assert re.findall("[AB]", "".join(strip.locator("g text").all_text_contents())) == list("AABAAB")
    expect(page.get_by_text("There is no command for this one.")).to_be_visible()
    expect(page.get_by_text("The settings of vantage train have no layer patterns")).to_be_visible()
    page.get_by_label("Full every").fill("")
    expect(page.locator(".bld-block")).to_have_count(1)
    expect(page.get_by_role("region", name="Command")).to_have_text("vantage train model.toml")
    settings = tomllib.loads(saved(page, "Download model.toml").decode())
    assert settings["model"]["window"] == 32
    check_looks(reader)


def test_what_cannot_be_built_is_said(reader):
    page = reader.go("build")
    expect(page.locator(".bld-block")).to_have_count(1)
    page.get_by_label("Heads", exact=True).fill("7")
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text("does not divide into 7 heads")
    expect(alert.get_by_role("button", name="Retry")).to_be_visible()
    expect(page.get_by_text("Below is the last valid model")).to_be_visible()
    page.get_by_label("Heads", exact=True).fill("16")
    expect(alert).to_have_count(0)
    reader.errors.clear()


def test_every_kind_and_part(reader):
    page = reader.go("build?layers=2&width=64&vocab=64")
    expect(page.locator(".bld-block")).to_have_count(1)
    page.get_by_label("Wiring").select_option("parallel")
    expect(page.get_by_label(re.compile("side by side"))).to_be_visible()
    page.get_by_label("A mixture of experts").check()
    expect(page.locator(".bld-block")).to_contain_text("2 of 8 experts")
    page.get_by_label("Kind of attention").select_option("latent")
    expect(page.locator(".bld-block")).to_contain_text("latent attention")
    page.get_by_role("button", name="Start over").click()
    page.get_by_label("Kind", exact=True).select_option("encoder_decoder")
    expect(page.locator(".bld-block")).to_have_count(2)
    expect(page.locator(".bld-block").nth(1)).to_contain_text("cross-attention")
    page.get_by_label("Kind", exact=True).select_option("encoder")
    expect(page.get_by_text("An encoder keeps no cache.")).to_be_visible()
    assert saved(page, "Download block as PNG")[:4] == b"\x89PNG"
    assert b"<svg" in saved(page, "Download block as SVG")
    assert b"mask" in saved(page, "Download block as CSV")


def test_the_code_is_copied(reader):
    reader.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page = reader.go("build?layers=3")
    expect(page.get_by_role("region", name="Python for this model")).to_contain_text("layers=3")
    page.get_by_role("button", name="Copy Python for this model").click()
    expect(page.get_by_text("Copied")).to_be_visible()
    assert "layers=3" in page.evaluate("() => navigator.clipboard.readText()")
