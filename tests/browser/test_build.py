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


def parameters_of(spec: vt.ModelSpec) -> str:
    return f"{sum(p.numel() for p in vt.build(spec).parameters()):,}"


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
    assert fact(page, "parameters") == parameters_of(spec)
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
    assert fact(page, "parameters") == parameters_of(spec)
    check_looks(reader)


def test_what_stands_between_the_parts_of_attention(reader):
    """A gate, exclusive self-attention, an indexer and keys shared by layers: each as the page says, and its reason
    where two of them exclude each other."""
    page = reader.go("build?width=64&layers=4&heads=4&vocab=100&kv_heads=2")
    code = page.get_by_role("region", name="Python for this model")
    expect(code).to_contain_text("layers=4")
    plain = fact(page, "parameters")
    page.get_by_text("More", exact=True).first.click()
    output, indexer, sharing = (
        page.get_by_label(label) for label in ("On the output", "Keys selected by", "Layers per keys")
    )
    assert output.locator("option").all_inner_texts() == ["none", "gate", "exclusive"]
    assert indexer.locator("option").all_inner_texts() == ["none", "top-k"]

    for field, word, part in ((output, "gate", "OutputGate"), (output, "exclusive", "Exclusive")):
        field.select_option(word)
        expect(code).to_contain_text(f"output='{word}'")
        spec = made(saved(page, "Download model.py").decode())
        assert [type(one).__name__ for layer in spec.layers for one in layer.output] == [part] * 4
        assert parameters_of(spec) == fact(page, "parameters") != plain
    output.select_option("none")

    indexer.select_option("top-k")
    expect(code).to_contain_text("indexer='top-k'")
    expect(page).to_have_url(re.compile("indexer=top-k"))
    spec = made(saved(page, "Download model.py").decode())
    assert [type(layer.indexer).__name__ for layer in spec.layers] == ["TopKIndexer"] * 4
    assert parameters_of(spec) == fact(page, "parameters") != plain

    sharing.fill("2")  # beside the indexer: not possible
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text("layer 1 reads the keys of layer 0 and keeps nothing: its indexer cannot either")
    expect(page.get_by_text("Below is the last valid model")).to_be_visible()
    reader.errors.clear()  # the server's refusal
    indexer.select_option("none")
    expect(alert).to_have_count(0)
    expect(code).to_contain_text("kv_sharing=2")
    spec = made(saved(page, "Download model.py").decode())
    assert [layer.source for layer in spec.layers] == [None, 0, None, 2]
    assert parameters_of(spec) == fact(page, "parameters") != plain
    check_looks(reader)


def test_the_drawing_shows_what_stands_around_attention(reader):
    page = reader.go("build?width=64&layers=4&heads=4&vocab=100&output=gate&kv_sharing=2")
    blocks = page.locator(".bld-block")
    expect(blocks).to_have_count(2)  # layers 0 and 2 make keys; 1 and 3 read them
    expect(blocks.nth(0)).to_contain_text("with gated output")
    expect(blocks.nth(1)).to_contain_text("with shared keys, gated output")
    page.get_by_label("Layers per keys").fill("1")
    page.get_by_label("On the output").select_option("exclusive")
    expect(blocks).to_have_count(1)
    expect(blocks).to_contain_text("with exclusive self-attention")
    page.get_by_label("Keys selected by").select_option("top-k")
    expect(blocks).to_contain_text("with top-k indexer, exclusive")
    expect(blocks).to_have_attribute("aria-label", re.compile("then attention with top-k indexer, exclusive"))
    page.get_by_label("On the output").select_option("none")
    expect(blocks).to_contain_text("with top-k indexer")
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
