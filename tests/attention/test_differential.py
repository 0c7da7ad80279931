"""Differential attention: the formula, λ by layer, transformers' layer, caches that forget by head, gradients."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import vantage as vt
from tests.attention.helpers import Listing, attention, check_gradients, context, run, vectors
from vantage.attention.differential import first_lambda
from vantage.conformance.scenarios import sharpen
from vantage.errors import BadInput, Refused
from vantage.spec.parts import Parts
from vantage.spec.positions import Positions


@pytest.mark.parametrize(("layer", "wanted"), [(0, 0.2), (1, 0.3555), (11, 0.7779)])
def test_the_first_lambda_of_a_layer(layer, wanted):
    assert first_lambda(layer) == pytest.approx(wanted, abs=5e-5)


def by_the_formula(module, x):
    """(1 - λ₀) · rms((P₁ - λ P₂) V), one output after another."""
    s, T = module.shape, x.shape[1]
    q, k, v = module.qkv(x).split(module.widths, -1)
    q, k = (t.unflatten(-1, (-1, s.key_dim)).transpose(1, 2) for t in (q, k))
    for transform in module.qk:
        q, k = transform.query(q, Positions.arange(2, T)), transform.key(k, Positions.arange(2, T))
    q, k = q.transpose(1, 2), k.transpose(1, 2)
    v = v.unflatten(-1, (-1, 2 * s.key_dim))
    seen = torch.ones(T, T, dtype=torch.bool).tril()
    later = torch.full((T, T), -torch.inf, dtype=x.dtype).masked_fill(seen, 0.0)
    lam = torch.exp(module.lambda_q1 @ module.lambda_k1) - torch.exp(module.lambda_q2 @ module.lambda_k2) + module.start
    per, outputs = s.heads // s.kv_heads, []
    for pair in range(s.kv_heads // 2):
        for j in range(per):
            weights = [
                torch.softmax(
                    q[:, :, (2 * pair + which) * per + j] @ k[:, :, 2 * pair + which].mT * s.key_dim**-0.5 + later, -1
                )
                for which in range(2)
            ]
            difference = weights[0] - lam * weights[1]
            torch.testing.assert_close(difference.sum(-1), (1 - lam).expand(x.shape[0], T))
            out = difference @ v[:, :, pair]
            outputs.append((1 - module.start) * out * torch.rsqrt(out.square().mean(-1, keepdim=True) + 1e-5))
    return module.out(torch.cat(outputs, -1))


@pytest.mark.parametrize("kv_heads", [8, 4, 2])
@pytest.mark.parametrize("parts", [Parts(), vt.Rope().parts(causal=True)], ids=["no position", "rope"])
@torch.no_grad()
def test_the_formula(kv_heads, parts):
    module = attention(vt.Differential(8, kv_heads, head_dim=4), 16, parts=parts)
    x = vectors(2, 6, 16)
    torch.testing.assert_close(run(module, x), by_the_formula(module, x), rtol=1e-9, atol=1e-10)


@torch.no_grad()
def test_lambda_grows_with_the_depth_of_the_layer():
    model = vt.build(vt.decoder(vocab=9, width=16, layers=3, attention=vt.Differential(4)))
    starts = [block.sublayers[0].start for block in model.blocks]
    assert starts == pytest.approx([first_lambda(i) for i in range(3)])
    fixed = vt.build(vt.decoder(vocab=9, width=16, layers=2, attention=vt.Differential(4, start=0.5)))
    assert [block.sublayers[0].start for block in fixed.blocks] == [0.5, 0.5]


@torch.no_grad()
def test_lambda_begins_where_the_vectors_are_zero():
    module = attention(vt.Differential(2, head_dim=4, start=0.25), 8)
    for name in ("q1", "k1", "q2", "k2"):
        getattr(module, f"lambda_{name}").zero_()
    assert float(module.share()) == 0.25  # e⁰ - e⁰ + λ₀
    module.lambda_q1[0] = module.lambda_k1[0] = 1.0
    assert float(module.share()) == pytest.approx(2.71828 - 1 + 0.25, abs=1e-5)


def test_fresh_vectors_leave_lambda_where_it_begins():
    layer = vt.decoder(vocab=9, width=8, layers=1, attention=vt.Differential(2, head_dim=2048), position="none")
    module = vt.build(layer).blocks[0].sublayers[0]
    vectors_of = torch.stack([getattr(module, f"lambda_{name}").detach() for name in ("q1", "k1", "q2", "k2")])
    assert float(vectors_of.mean()) == pytest.approx(0, abs=0.01)
    assert float(vectors_of.std()) == pytest.approx(0.1, rel=0.05)


@torch.no_grad()
def test_a_pair_of_keys_is_kept_as_one():
    config = vt.Differential(8, 4, head_dim=3)
    kept = config.cache_shape(16)
    assert (kept.kv_heads, kept.key_dim, kept.value_dim) == (2, 6, 6)
    module, x, cache = attention(config, 16), vectors(2, 6, 16), Listing()
    whole = run(module, x)
    steps = [module(x[:, t : t + 1], context(Positions.arange(2, 1, start=t), caches=[cache])) for t in range(6)]
    torch.testing.assert_close(torch.cat(steps, 1), whole)
    assert cache.view().k.shape == (2, 2, 6, 6)


@pytest.mark.parametrize("position", ["fire", "self-extend", "alibi", "fox"])
@torch.no_grad()
def test_pairs_forget_together(position):
    """With room for everything nothing is forgotten: each pair has places of its own, and the result is the same."""
    spec = vt.decoder(vocab=19, width=32, layers=2, attention=vt.Differential(8, 4), position=position, max_length=32)
    m = sharpen(vt.build(spec).double())
    tokens = torch.randint(19, (2, 12), generator=torch.Generator().manual_seed(0))
    cache = m.new_cache(2, kind=vt.HeavyHitterCache(heavy=8, recent=8))
    parts = [m(part, cache=cache) for part in tokens.split((5, 1, 6), 1)]
    torch.testing.assert_close(torch.cat(parts, 1), m(tokens), rtol=1e-9, atol=1e-9)


def test_gradients():
    module = attention(vt.Differential(4, 2, head_dim=2, norm=vt.RMSNorm()), 6)
    check_gradients(module, run, vectors(1, 3, 6))


def test_what_cannot_be():
    for heads, kv_heads in ((3, None), (4, 1), (4, 3), (6, 3)):
        with pytest.raises(BadInput, match="both come in pairs"):
            vt.Differential(heads, kv_heads).shape(12)
    with pytest.raises(BadInput, match="width 14 does not divide into 4 heads"):
        vt.Differential(4).shape(14)
    with pytest.raises(Refused, match="self-attention only"):
        vt.Differential(4).build_cross(16, None)
    layer = vt.decoder(vocab=9, width=16, layers=1, attention=vt.Differential(4)).layers[0]
    spec = vt.decoder(vocab=9, width=16, layers=1, attention=vt.Differential(4))
    with pytest.raises(Refused, match="Differential cannot have an output transform"):
        vt.build(replace(spec, layers=(replace(layer, output=(vt.OutputGate(),)),)))
