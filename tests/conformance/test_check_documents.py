"""``vt.check`` packs documents into the rows of transformers models: what separates them, what does not."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import vantage as vt
from tests.conformance.subjects import failed
from tests.parity.case import sharpen
from tests.parity.cases import CASES
from vantage.conformance.adapters import COLLATED, RESTARTING

# the layer through which a document reaches the next one, by family
LEAKS = {
    "qwen3_next": "Qwen3NextGatedDeltaNet",
    "qwen3_5_text": "Qwen3_5GatedDeltaNet",
    "kimi_linear": "KimiLinearDeltaAttention",
    "bamba": "BambaMixer",
    "lfm2": "Lfm2ShortConv",
    "minimax": "MiniMaxLightningAttention",
}
REFUSING = set(LEAKS) - {"minimax"}  # they say that they need a kernel, where documents are marked for one


def theirs(family: str, **options: Any) -> Any:
    case = next(case for case in CASES if case.family == family)
    model = case.make("plain")
    if not options:
        return model
    config = type(model.config)(**{**case.base, **options})
    config._experts_implementation = "eager"
    with torch.random.fork_rng():
        torch.manual_seed(0)
        other = type(model)(config).eval()
        sharpen(other, case.computed)
    return other


@pytest.mark.sampled
@pytest.mark.parametrize("family", ["llama", "mistral", "gpt2", "gemma3n_text", "deepseek_v32", "cohere2"])
def test_attention_keeps_documents_apart(family: str):
    """The control: windows, shared keys and an indexer among them."""
    row = vt.check(theirs(family))["packed"]
    assert (row.status, row.note) == ("ok", ""), row


@pytest.mark.sampled
@pytest.mark.parametrize("family", LEAKS)
def test_a_state_runs_on_into_the_next_document(family: str):
    """Restarting ``position_ids`` separate documents in the attention layers of the same models; beside it, the same
    weights here."""
    model = theirs(family)
    row = vt.check(model)["packed"]
    assert row.status == "failed"
    assert row.fault is not None
    assert row.fault.name == "a packed document sees the one before it"
    assert row.fault.where.endswith(LEAKS[family])
    assert f"documents marked by {RESTARTING}" in row.fault.shows
    assert (f"it refuses {COLLATED}: `causal_conv1d_fn` can't keep packed" in row.fault.shows) is (family in REFUSING)
    assert vt.check(vt.load(model))["packed"].status == "ok"


@pytest.mark.parametrize(
    "family", ["bert-decoder", "openai-gpt", "gpt_oss", "bloom", "mpt", "roformer-decoder", "mamba2"]
)
def test_what_reads_no_documents_is_not_asked(family: str):
    row = vt.check(theirs(family))["packed"]
    assert row.status == "n/a"
    assert f"it does not read {COLLATED} as documents" in row.note
    assert (f"it does not read {RESTARTING} as documents" in row.note) is (
        family in ("bert-decoder", "openai-gpt", "gpt_oss")
    )


def test_mamba2_loses_the_documents_on_the_way_to_its_layers():
    """Its layers refuse documents that they cannot keep apart; its language model does not pass them on."""
    model, tokens = theirs("mamba2"), torch.arange(2, 18)[None]
    documents = torch.tensor([[0] * 5 + [1] * 11], dtype=torch.int32)
    with pytest.raises(ValueError, match="can't keep packed sequences apart"):
        model.backbone(tokens, seq_idx=documents, use_cache=False)
    with torch.no_grad():
        taken, plain = (model(tokens, use_cache=False, **given).logits for given in ({"seq_idx": documents}, {}))
    assert torch.equal(taken, plain)


TOGETHER = {"attention_chunk_size": 64}  # longer than any row of the check
UNSCALED = {"attn_temperature_tuning": False}


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("options", "rows"),
    [
        (TOGETHER | UNSCALED, set()),
        (UNSCALED, {"packed"}),  # chunks are cut by place in the row
        (TOGETHER, {"packed", "padding-left", "padding-cached"}),  # so is the temperature's position
    ],
    ids=["neither", "chunks", "temperature"],
)
def test_llama4_counts_places_for_positions(options: dict[str, Any], rows: set[str]):
    model = theirs("llama4_text", **options)
    assert failed(vt.check(model)) == rows
    assert vt.check(vt.load(model)).ok


# ---- what is rounding


class WideTorch:
    """torch, with float64 wherever a model asks for float32."""

    float32 = float = torch.float64

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


def test_what_qwen3_5_with_experts_is_off_is_rounding(monkeypatch: pytest.MonkeyPatch):
    """Its forked steps are 600 float32 roundings off one pass, and within the tolerance. It computes states and norms
    in float32 whatever its dtype; in float64 throughout, nothing is left of it."""
    from transformers.models.qwen3_5_moe import modeling_qwen3_5_moe

    model = theirs("qwen3_5_moe_text")
    row = vt.check(model)["fork"]
    assert row.status == "ok"
    assert row.measured > 256 * torch.finfo(torch.float32).eps
    monkeypatch.setattr(modeling_qwen3_5_moe, "torch", WideTorch())
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    report = vt.check(model.double())
    assert failed(report) == {"packed"}
    assert report["fork"].measured < 1e-11
