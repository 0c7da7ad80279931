"""``vt.check`` on real models: ours and transformers'; bad input; the report."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
import torch
import transformers
from rich.console import Console

import vantage as vt
from tests.conformance.subjects import (
    CACHED,
    COUNTED,
    INSIDE,
    NAMES,
    VOCAB,
    Net,
    failed,
    forgetting_positions,
    not_applicable,
    ours,
    with_windows,
)
from vantage.conformance.adapters import TransformersModel
from vantage.conformance.factors import encodings
from vantage.conformance.scenarios import sharpen
from vantage.errors import BadInput
from vantage.model.norms import RMSNorm
from vantage.spec.masks import Causal, Chunked, Prefix, SameSegment, Window

# ---- our own models


@pytest.mark.sampled
@pytest.mark.parametrize("name", encodings())
def test_ours_hold_with_every_encoding(name: str):
    report = vt.check(ours(position=encodings()[name](), max_length=64))
    assert report.ok, report
    changing = name in ("rope-ntk", "rope-longrope")
    assert not_applicable(report) == {"window-exact"} | (set() if changing else {"length-dependent-rope"})


def test_ours_hold_with_a_window():
    report = vt.check(ours(window=4, layers=3))
    assert report.ok, report
    row = report["window-exact"]
    assert (row.status, row.measured, row.tolerance, row.unit) == ("ok", 9, 9, "tokens")


def test_windows_of_different_layers_add_up():
    assert vt.check(sharpen(vt.build(with_windows(2, 5, 3))))["window-exact"].measured == 1 + 4 + 2


def test_a_layer_without_a_window_hides_the_others():
    spec = vt.decoder(vocab=VOCAB, width=32, layers=2, heads=4)
    local = replace(spec.layers[0], mask=spec.layers[0].mask & Window(3))
    report = vt.check(sharpen(vt.build(replace(spec, layers=(local, spec.layers[1])))))
    assert report.ok
    assert "some layers have no window" in report["window-exact"].note


def test_ours_hold_with_latent_attention():
    attention = vt.Latent(4, kv_rank=12, nope_dim=8, rope_dim=8, value_dim=6, norm=RMSNorm())
    report = vt.check(ours(attention=attention, heads=None))
    assert report.ok, report


def test_ours_hold_with_keys_of_another_layer():
    spec = vt.decoder(vocab=VOCAB, width=32, layers=2, heads=4, kv_heads=2)
    spec = replace(spec, layers=(spec.layers[0], replace(spec.layers[1], source=0)))
    report = vt.check(sharpen(vt.build(spec)))
    assert report.ok, report


def test_the_cache_can_be_chosen():
    model = ours(window=4)
    report = vt.check(model, new_cache=lambda batch: model.new_cache(batch, kind="ring", draft=2))
    assert report.ok, report
    assert not not_applicable(report) & CACHED


def test_an_encoder_has_no_cached_rows():
    model = sharpen(vt.build(vt.encoder(vocab=VOCAB, width=32, layers=2, heads=4, window=3)))
    report = vt.check(model)
    assert report.ok, report
    assert not_applicable(report) == CACHED | COUNTED | {"causal", "shorter-row", "length-dependent-rope"}
    assert "see later ones" in report["cached-steps"].note
    assert report["window-exact"].measured == 4


def test_an_encoder_decoder_reads_a_fixed_source():
    model = sharpen(vt.build(vt.encoder_decoder(vocab=VOCAB, width=32, layers=2, heads=4)))
    report = vt.check(model)
    assert report.ok, report
    assert report["fork"].status == "ok"


@pytest.mark.sampled
@pytest.mark.parametrize(("window", "layers"), [(64, 4), (4, 12)])
def test_a_window_whose_edge_is_lost_in_rounding_is_seen_in_float64(window: int, layers: int):
    model = vt.build(vt.decoder(vocab=VOCAB, width=32, layers=layers, heads=4, window=window))
    row = vt.check(model)["window-exact"]
    assert (row.status, row.measured) == ("ok", layers * (window - 1))
    assert next(model.parameters()).dtype == torch.float32


def test_a_window_that_cannot_be_seen_is_not_judged():
    note = vt.check(ours(window=512))["window-exact"].note
    assert "reach 1022 back together, further than the 512 tokens" in note
    note = vt.check(ours(window=20, position="learned", max_length=24))["window-exact"].note
    assert "reach 38 back together, and there are only 24 positions" in note


def test_masks_that_are_no_plain_windows():
    report = vt.check(ours(mask=Causal() & Chunked(4) & SameSegment()))
    assert report.ok, report
    assert "no plain window" in report["window-exact"].note
    report = vt.check(ours(mask=(Causal() | Prefix(3)) & SameSegment()))
    assert report.ok, report
    assert report["causal"].status == "ok"
    assert report["cached-steps"].status == "ok"


def test_positions_are_told_apart():
    def kind(position: str) -> str:
        return vt.check(ours(position=position, max_length=64))["positions-honoured"].note.split(":")[0]

    assert {name: kind(name) for name in ("none", "alibi", "learned")} == {
        "none": "ignored",
        "alibi": "relative",
        "learned": "absolute",
    }


@pytest.mark.parametrize("name", ["rope-ntk", "rope-longrope"])
def test_length_dependent_rope_holds_with_a_declared_length_and_grows_by_counting(name: str):
    model = ours(position=encodings()[name](), layers=3)
    row = vt.check(model)["length-dependent-rope"]
    assert row.status == "ok"
    original = model.spec.original_length
    assert f"computed {original} tokens again" in row.note


def test_the_model_is_left_as_it_was():
    model = vt.build(vt.decoder(vocab=VOCAB, width=32, layers=2, heads=4))
    model.train()
    model.blocks[0].eval()
    before = [module.training for module in model.modules()]
    report = vt.check(model)
    assert "training mode" in report["repeatable"].note
    assert [module.training for module in model.modules()] == before
    assert all(p.grad is None for p in model.parameters())


def test_dtypes_have_their_own_tolerance():
    wide, narrow = vt.check(ours().double()), vt.check(ours())
    assert wide.ok
    assert narrow.ok
    assert (wide.dtype, narrow.dtype) == ("float64", "float32")
    assert wide.relative < narrow.relative


# ---- transformers


def tiny(**said: Any) -> dict[str, Any]:
    return {
        "vocab_size": VOCAB,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
        "initializer_range": 0.3,  # sharp enough for attention to matter
        **said,
    }


def seeded(kind: Any, config: Any) -> Any:
    torch.manual_seed(0)
    return kind(config)


def llama(**said: Any) -> Any:
    return seeded(transformers.LlamaForCausalLM, transformers.LlamaConfig(**tiny(**said)))


def test_a_transformers_llama_holds():
    report = vt.check(llama())
    assert report.ok, report
    assert not_applicable(report) == INSIDE | {"window-exact", "length-dependent-rope"}
    assert report["positions-honoured"].note.startswith("relative")


def test_a_transformers_mistral_holds_its_window():
    model = seeded(transformers.MistralForCausalLM, transformers.MistralConfig(**tiny(sliding_window=4)))
    report = vt.check(model)
    assert report.ok, report
    assert (report["window-exact"].status, report["window-exact"].measured) == ("ok", 9)
    assert "does not go back" in report["rollback"].note  # transformers refuses past the window, and says so


def test_a_transformers_gpt2_holds():
    config = transformers.GPT2Config(
        vocab_size=VOCAB,
        n_embd=32,
        n_layer=3,
        n_head=4,
        n_positions=64,
        bos_token_id=None,
        eos_token_id=None,
        initializer_range=0.3,
    )
    report = vt.check(seeded(transformers.GPT2LMHeadModel, config))
    assert report.ok, report
    assert report["positions-honoured"].note.startswith("absolute")


DYNAMIC = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0}
LONG = {
    "rope_type": "longrope",
    "factor": 2.0,
    "rope_theta": 10000.0,
    "short_factor": [1.0, 1.0, 1.0, 1.0],
    "long_factor": [2.0, 3.0, 4.0, 5.0],
    "original_max_position_embeddings": 32,
}


@pytest.mark.parametrize("rope", [DYNAMIC, LONG], ids=["dynamic", "longrope"])
def test_transformers_length_dependent_rope_fails_by_name(rope: dict[str, Any]):
    report = vt.check(llama(max_position_embeddings=64 if rope is LONG else 32, rope_parameters=rope))
    assert failed(report) == {"length-dependent-rope"}, report
    row = report["length-dependent-rope"]
    assert row.measured is not None
    assert row.measured > 0.1
    assert "keep the frequencies of a shorter length" in row.note
    assert "equals no full pass at all" in row.note


def test_a_callable_says_where_its_rule_changes():
    peer = TransformersModel(llama(max_position_embeddings=32, rope_parameters=DYNAMIC).eval())
    said = {"vocab": VOCAB, "new_cache": peer.new_cache, "original_length": 32}
    report = vt.check(peer.run, **said)
    assert failed(report) == {"length-dependent-rope"}, report
    report = vt.check(peer.run, **said, max_length=32)
    assert "none past the original length of 32" in report["length-dependent-rope"].note


def test_a_full_pass_that_keeps_what_a_longer_one_left_is_named():
    report = vt.check(llama(max_position_embeddings=32, rope_parameters=DYNAMIC))
    assert "a full pass after a longer one keeps the frequencies of that one" in report["length-dependent-rope"].note


def test_transformers_default_weights_are_sharp_enough():
    """Fresh weights of 0.02 hardly use positions, and the gap still shows."""
    report = vt.check(llama(initializer_range=0.02, max_position_embeddings=32, rope_parameters=DYNAMIC))
    assert failed(report) == {"length-dependent-rope"}, report


def test_transformers_is_never_imported_for_our_own_models():
    lines = (
        "import sys, vantage as vt",
        "vt.check(vt.build(vt.decoder(vocab=9, width=8, layers=1, heads=2)))",
        "sys.exit('transformers' in sys.modules)",
    )
    subprocess.run([sys.executable, "-c", "\n".join(lines)], check=True)


def test_other_transformers_models_are_refused():
    config = transformers.T5Config(vocab_size=VOCAB, d_model=32, d_kv=8, d_ff=32, num_layers=1, num_heads=2)
    with pytest.raises(BadInput, match="not a causal language model"):
        vt.check(transformers.T5ForConditionalGeneration(config))


# ---- bad input


@pytest.mark.parametrize(
    ("said", "match"),
    [
        ({"vocab": 1}, "at least 2"),
        ({"vocab": VOCAB, "window": 4}, "of how many layers"),
        ({"vocab": VOCAB, "window": (4, 4), "layers": 3}, "2 windows for 3 layers"),
        ({"vocab": VOCAB, "window": (4, 0)}, "at least 1"),
        ({"vocab": VOCAB, "max_length": 3}, "3 positions"),
        ({"vocab": VOCAB, "tolerance": -1.0}, "tolerance=-1.0"),
    ],
)
def test_bad_input_is_refused(said: dict[str, Any], match: str):
    with pytest.raises(BadInput, match=match):
        vt.check(Net(), **said)


def test_what_is_no_model_is_refused():
    with pytest.raises(BadInput, match=r"neither a vantage\.Model"):
        vt.check("llama")
    with pytest.raises(BadInput, match="says these itself: leave out vocab=, causal="):
        vt.check(ours(), vocab=VOCAB, causal=True)
    with pytest.raises(BadInput, match=r"returned torch\.float32 \(3, 16\)"):
        vt.check(lambda tokens, positions, cache: tokens.float(), vocab=VOCAB)


# ---- the report


def test_a_report_prints_itself():
    report = vt.check(forgetting_positions("key"))
    assert [row.name for row in report.rows] == NAMES
    text = str(report)
    assert "6 of 15 rows fail" in text
    assert all(name in text for name in NAMES)
    console = Console(file=io.StringIO(), width=100)
    console.print(report.table())
    assert "cached-steps" in console.file.getvalue()  # type: ignore[attr-defined]
    page = report._repr_html_()
    assert page.count("<tr>") == len(NAMES) + 1
    told = json.loads(json.dumps(report.to_json(), allow_nan=False))
    assert told["ok"] is False
    assert told["rows"][NAMES.index("cached-steps")]["status"] == "failed"
    with pytest.raises(BadInput, match="no row is called 'steps'"):
        report["steps"]
