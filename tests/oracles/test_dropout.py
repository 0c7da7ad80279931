"""Dropout: where transformers has it, drawn in the same order, and never outside of training."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
import torch

import vantage as vt
from tests.parity.case import VOCAB, Case
from tests.parity.rows.bert import PLAIN as BERT
from tests.parity.rows.gpt2 import CASES as GPT2
from tests.parity.rows.gpt_neox import CASES as GPT_NEOX
from tests.parity.rows.marian import MARIAN
from vantage.checkpoints.spec_json import from_json, to_json
from vantage.errors import BadInput, Refused
from vantage.kernels import KERNELS
from vantage.kernels.select import kernel_named
from vantage.spec.masks import Causal
from vantage.spec.parts import Need, View
from vantage.spec.positions import Positions

P = 0.3
TOKENS = torch.randint(3, VOCAB, (2, 12), generator=torch.Generator().manual_seed(3))
SOURCE = torch.randint(3, VOCAB, (2, 9), generator=torch.Generator().manual_seed(4))
NAMES = {
    "gpt2": ("resid_pdrop", "embd_pdrop", "attn_pdrop"),
    "bert-model": ("hidden_dropout_prob", "attention_probs_dropout_prob"),
    "gpt_neox": ("hidden_dropout", "attention_dropout"),  # attention and feed-forward side by side
    "marian": ("dropout", "attention_dropout"),
}


@pytest.fixture(params=[GPT2[0], BERT, GPT_NEOX[0], MARIAN], ids=lambda case: case.family)
def both(request: pytest.FixtureRequest, tmp_path: Any) -> tuple[Any, vt.Model]:
    """A model of transformers that computes its attention weights, and ours that was loaded from it."""
    case: Case = request.param
    options = dict.fromkeys(NAMES[case.family], P) | ({"activation_dropout": 0.0} if case is MARIAN else {})
    changed = Case(case.family, case.model, case.config, {**case.base, **options}, {}, case.kind)
    theirs = changed.make("plain")
    theirs.set_attn_implementation("eager")
    theirs.save_pretrained(tmp_path / "theirs")
    return theirs.double(), vt.load(tmp_path / "theirs", dtype=torch.float64, kernel="reference")


def outputs(theirs: Any, ours: vt.Model, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(seed)
    if ours.encoder is not None:
        with mock.patch("torch.rand", lambda size: torch.ones(size)):  # it draws whether to leave a whole layer out
            wanted = theirs(input_ids=SOURCE, decoder_input_ids=TOKENS, use_cache=False).logits
        torch.manual_seed(seed)
        return wanted, ours(TOKENS, source=SOURCE)
    wanted = theirs(TOKENS)[0]
    torch.manual_seed(seed)
    return wanted, ours(TOKENS)


@torch.no_grad()
def test_in_training_the_same_numbers_are_dropped_in_the_same_places(both: tuple[Any, vt.Model]) -> None:
    theirs, ours = both
    theirs.train()
    ours.train()
    first, _ = outputs(theirs, ours, 0)
    for seed in range(3):
        wanted, got = outputs(theirs, ours, seed)
        torch.testing.assert_close(got, wanted, rtol=0, atol=1e-6 * float(wanted.abs().max()))
    other, _ = outputs(theirs, ours, 1)
    assert not torch.allclose(other, first)


@pytest.mark.parametrize("function", [vt.decoder, vt.encoder, vt.encoder_decoder])
@torch.no_grad()
def test_it_is_off_outside_of_training_and_saved(function: Any, tmp_path: Any) -> None:
    size = {"vocab": VOCAB, "width": 32, "layers": 2, "heads": 4}
    dropped, plain = vt.build(function(**size, dropout=P)).eval(), vt.build(function(**size)).eval()
    plain.load_state_dict(dropped.state_dict())
    source = {} if dropped.encoder is None else {"source": SOURCE}
    assert torch.equal(dropped(TOKENS, **source), plain(TOKENS, **source))
    assert not torch.equal(dropped.train()(TOKENS, **source), dropped(TOKENS, **source))
    assert from_json(to_json(dropped.spec), most=8) == dropped.spec
    vt.save(dropped, tmp_path / "a")
    assert vt.load(tmp_path / "a").spec == dropped.spec != plain.spec


def test_generation_never_drops() -> None:
    size = {"vocab": VOCAB, "width": 32, "layers": 2, "heads": 4}
    dropped, plain = vt.build(vt.decoder(**size, dropout=P)), vt.build(vt.decoder(**size)).eval()
    plain.load_state_dict(dropped.state_dict())
    prompt = TOKENS[0].tolist()
    for draft in (None, vt.Lookup()):
        with pytest.raises(BadInput, match=r"training mode: call model\.eval\(\)"):
            vt.generate(dropped.train(), prompt, draft=draft)
        wanted = vt.generate(plain, prompt, max_tokens=8, draft=draft)
        assert vt.generate(dropped.eval(), prompt, max_tokens=8, draft=draft).tokens == wanted.tokens
    with pytest.raises(BadInput, match=r"training mode: call model\.eval\(\)"):
        vt.beam_search(dropped.train(), prompt, max_tokens=4)


# ---- kernels


def attend(kernel: str, heads: int, kv_heads: int, dropout: float) -> torch.Tensor | None:
    """The weights that a kernel used, as its output for values that are the unit vectors; ``None``: it refuses."""
    T, d = 6, 8
    drawn = torch.Generator().manual_seed(0)
    q = torch.randn(3, heads, T, d, generator=drawn, dtype=torch.float64)
    k = torch.randn(3, kv_heads, T, d, generator=drawn, dtype=torch.float64)
    v = torch.eye(T, dtype=torch.float64).expand(3, kv_heads, T, T)
    pos = Positions.arange(3, T)
    need, view = Need(mask=Causal(), scale=d**-0.5, dropout=dropout), View(k, v, pos)
    chosen = kernel_named(kernel)
    if chosen.refuses(need, q, view) is not None:
        return None
    return chosen(q, view, pos.against(pos), need).out


@pytest.mark.parametrize("heads", [(4, 4), (4, 2), (4, 1)], ids=["multi-head", "grouped", "multi-query"])
@pytest.mark.parametrize("kernel", list(KERNELS))
def test_every_kernel_drops_weights_or_refuses(kernel: str, heads: tuple[int, int]) -> None:
    """A weight is dropped, or kept and made larger by 1 / (1 - p): nothing else, and as often as was asked."""
    torch.manual_seed(0)
    draws = [attend(kernel, *heads, P) for _ in range(100)]
    if draws[0] is None:
        assert kernel.startswith(("chosen", "cudnn", "flex", "fused", "tiles"))
        return
    weights = attend("reference", *heads, 0.0)
    assert weights is not None
    used = torch.stack([draw for draw in draws if draw is not None])
    kept = used != 0
    torch.testing.assert_close(used, torch.where(kept, weights / (1 - P), 0.0).expand_as(used))
    seen = torch.ones(6, 6).tril().bool()
    share = float(kept[..., seen].double().mean())
    assert abs(share - (1 - P)) < 4 * (P * (1 - P) / kept[..., seen].numel()) ** 0.5


def test_in_training_a_model_takes_a_kernel_that_can_drop() -> None:
    model = vt.build(vt.decoder(vocab=VOCAB, width=32, layers=1, heads=4, dropout=P), kernel="flex")
    with torch.no_grad(), pytest.raises(Refused, match="flex has no dropout"):
        model.train()(TOKENS)
    with torch.no_grad():
        model.eval()(TOKENS)
