"""Lightning attention: a worked number, its weights written out, MiniMax's layer, steps, padding, gradients, costs."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from transformers.models.minimax.configuration_minimax import MiniMaxConfig
from transformers.models.minimax.modeling_minimax import MiniMaxLightningAttention

import vantage as vt
from tests.attention.helpers import F64, check_gradients, context, vectors
from tests.attention.model_checks import TOKENS, check_cached, check_generated, check_saved, check_taken_back
from vantage.attention.lightning import LightningAttention, lightning_slopes
from vantage.cache.build import no_caches
from vantage.conformance.scenarios import sharpen
from vantage.errors import BadInput, Refused
from vantage.position import alibi_slopes
from vantage.spec.positions import Positions


def one_layer(config: vt.Lightning, width: int = 16) -> tuple[LightningAttention, tuple]:
    """The layer alone, sharp, and caches for it."""
    model = sharpen(vt.build(vt.decoder(vocab=9, width=width, layers=1, attention=config, position="none")).double())
    return model.blocks[0].sublayers[0], no_caches(model.spec, None, model.dtype)


def run(layer: LightningAttention, caches: tuple, x: torch.Tensor, pos: Positions | None = None) -> torch.Tensor:
    return layer(x, context(Positions.arange(*x.shape[:2]) if pos is None else pos, caches=caches))


def before_silu(wanted: torch.Tensor) -> torch.Tensor:
    """What SiLU makes these positive numbers of, by Newton's method."""
    x = wanted.clone()
    for _ in range(20):
        share = x.sigmoid()
        x = x - (x * share - wanted) / (share * (1 + x * (1 - share)))
    return x


def test_slopes():
    """ALiBi's where heads are a power of two; of others every head has its own power of one number."""
    assert lightning_slopes(8) == pytest.approx(alibi_slopes(8))
    assert lightning_slopes(2) == pytest.approx((1 / 16, 1 / 256))
    assert lightning_slopes(3) == pytest.approx([2 ** (-8 * h / 3) for h in (1, 2, 3)])
    assert lightning_slopes(4, 0.5) == pytest.approx([slope / 2 for slope in alibi_slopes(4)])


@torch.no_grad()
def test_a_worked_number():
    """One head that halves its state with every token, queries and keys 1: values 2, 4, 6 give 2, ½·2 + 4, ½·5 + 6."""
    layer, caches = one_layer(vt.Lightning(1, head_dim=1), width=3)
    layer.slopes = (float(torch.tensor(2.0).log()),)
    layer.qkv.weight.copy_(torch.eye(3))
    seen: list[torch.Tensor] = []
    layer.norm.register_forward_hook(lambda module, given, out: seen.append(given[0]))
    run(layer, caches, before_silu(torch.tensor([[[1.0, 1.0, v] for v in (2.0, 4.0, 6.0)]], dtype=F64)))
    torch.testing.assert_close(seen[0].flatten(), torch.tensor([2.0, 5.0, 8.5], dtype=F64))


@torch.no_grad()
def test_weights_written_out():
    """o_i = Σ_j e^(-slope (i - j)) (q_i·k_j) v_j, no softmax and no scale."""
    layer, caches = one_layer(vt.Lightning(4, vt.RMSNorm(), rate=0.7))
    x, T = vectors(2, 9, 16), 9
    q, k, v = (
        t.unflatten(-1, (4, -1)).transpose(1, 2) for t in torch.nn.functional.silu(layer.qkv(x)).chunk(3, dim=-1)
    )
    at = torch.arange(T, dtype=F64)
    apart = at[:, None] - at
    decay = torch.exp(-0.7 * torch.tensor(alibi_slopes(4), dtype=F64)[:, None, None] * apart)
    heads = torch.where(apart >= 0, decay, 0) * (q @ k.mT) @ v
    want = layer.out(layer.norm(heads.transpose(1, 2).flatten(2)) * layer.gate(x).sigmoid())
    torch.testing.assert_close(run(layer, caches, x), want)


@pytest.mark.parametrize("block", [4, 64], ids=["blocks", "one block"])
@torch.no_grad()
def test_minimaxs_layer(block: int):
    H, d, D, T, count, index = 3, 6, 16, 11, 4, 2
    config = MiniMaxConfig(
        hidden_size=D, num_attention_heads=H, head_dim=d, num_hidden_layers=count, block_size=block,
        layer_types=["linear_attention"] * count, rope_parameters={"rope_type": "default", "rope_theta": 1e4},
    )  # fmt: skip
    theirs = MiniMaxLightningAttention(config, index).double().eval()
    for p in theirs.parameters():
        p.copy_(torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel())) * 0.5)
    rate = 1 - index / (count - 1 + 1e-5) + 1e-5
    ours, caches = one_layer(vt.Lightning(H, vt.RMSNorm(1e-6), d, rate))
    heads = theirs.qkv_proj.weight.unflatten(0, (H, 3, d))  # q, k and v of one head, then of the next
    ours.qkv.weight.copy_(heads.transpose(0, 1).flatten(0, 2))
    for name, module in (("gate", theirs.output_gate), ("norm", theirs.norm), ("out", theirs.out_proj)):
        getattr(ours, name).weight.copy_(module.weight)
    x = vectors(2, T, D)
    want, _ = theirs(x, None, None)  # their slopes are of float32
    torch.testing.assert_close(run(ours, caches, x), want, atol=1e-6, rtol=1e-5)


def hybrid(**options) -> vt.Model:
    spec = vt.decoder(vocab=19, width=16, layers=3, heads=4, kv_heads=2)
    state = replace(spec.layers[0], attention=vt.Lightning(4, vt.RMSNorm(), **options), qk=())
    return sharpen(vt.build(replace(spec, layers=(state, spec.layers[1], state))).double())


@pytest.mark.parametrize("kind", ["contiguous", "paged"])
def test_cached_and_taken_back(kind: str):
    m = hybrid(rate=3.0)
    check_cached(m, kind)
    check_taken_back(m, kind, (7, 9))


def test_generated():
    check_generated(hybrid())


@torch.no_grad()
def test_padding_and_documents():
    m = hybrid(rate=3.0)
    tokens, width = TOKENS[:, :12], 15
    whole = m(tokens)
    for pad, shown in (("left", slice(3, None)), ("right", slice(0, 12))):
        padded = torch.nn.functional.pad(tokens, (3, 0) if pad == "left" else (0, 3))
        got = m(padded, positions=Positions.rows([12, 12], width=width, pad=pad))
        torch.testing.assert_close(got[:, shown], whole, rtol=1e-9, atol=1e-9)
    packed = m(tokens[:1], positions=Positions.packed([[5, 7]]))
    torch.testing.assert_close(packed[:, 5:], m(tokens[:1, 5:]), rtol=1e-9, atol=1e-9)


@torch.no_grad()
def test_right_padding_lets_nothing_fade_for_what_comes_after():
    m, tokens = hybrid(rate=3.0), TOKENS[:, :9]
    cache = m.new_cache(2)
    m(tokens[:, :6], positions=Positions.rows([6, 4], width=6, pad="right"), cache=cache)
    step = m(tokens[:, 6:7], cache=cache)
    torch.testing.assert_close(step[0], m(tokens[:1, :7])[0, -1:], rtol=1e-9, atol=1e-9)
    alone = torch.cat([tokens[1:, :4], tokens[1:, 6:7]], 1)
    torch.testing.assert_close(step[1], m(alone)[0, -1:], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("tokens", [3, 9], ids=["token by token", "in chunks"])
def test_gradients(tokens: int):
    layer, caches = one_layer(vt.Lightning(2, vt.RMSNorm(), head_dim=2), width=3)
    check_gradients(layer, lambda part, x: run(part, caches, x), vectors(1, tokens, 3))


def test_saved_and_loaded(tmp_path):
    check_saved(hybrid(rate=0.3), tmp_path)


def test_what_cannot_be():
    with pytest.raises(BadInput, match="rate=-1"):
        vt.Lightning(2, rate=-1.0)
    with pytest.raises(BadInput, match="width 16 does not divide into 3 heads"):
        vt.Lightning(3).shape(16)
    with pytest.raises(Refused, match="no cross-attention"):
        vt.Lightning(2).build_cross(16, None)
    with pytest.raises(Refused, match="no scores that a position could act on"):
        vt.build(vt.decoder(vocab=9, width=16, layers=1, attention=vt.Lightning(2), position="alibi"))
