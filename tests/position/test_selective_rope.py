"""Selective RoPE: worked by hand, RoPE as a special case, the formula token by token, gradients, costs, refusals."""

from __future__ import annotations

from math import pi

import pytest
import torch

import vantage as vt
from tests.attention.helpers import context
from tests.attention.model_checks import TOKENS, check_cached, check_costs, check_saved, check_taken_back
from tests.position.helpers import F64, SHAPE, bias_of, built, check_gradients, vectors
from vantage.cache.build import no_caches
from vantage.conformance.scenarios import sharpen
from vantage.errors import BadInput, Refused
from vantage.position import SelectiveRope
from vantage.spec.kept import KeptStream
from vantage.spec.parts import Shape
from vantage.spec.positions import Positions

PAIR = Shape(width=2, heads=1, kv_heads=1, key_dim=2, value_dim=2, rotary_dim=2)


def scores_of(part, q, k, pos: Positions, shape: Shape, stream: torch.Tensor) -> torch.Tensor:
    """q·k, turned: plain scores and the bias."""
    bias = bias_of(part, pos, pos, q=q, k=k, shape=shape, scale=1.0, streams=(stream,), own=(stream,))
    return q @ k.repeat_interleave(shape.heads // shape.kv_heads, 1).mT + bias


@torch.no_grad()
def test_worked_by_hand():
    """Every token turns by a quarter: q = k = (1, 0) score 1 at the token itself, 0 one before it, -1 two before it.
    Where the last token turns by nothing, the one before it scores 1."""
    part = built(SelectiveRope(rank=1, taps=2), PAIR)
    part.filters.copy_(torch.tensor([[0.0, 1.0]]))
    x, pos = torch.tensor([1.0, 0.0], dtype=F64).expand(1, 1, 3, 2), Positions.arange(1, 3)
    quarter = torch.full((1, 1, 3, 1), pi / 2, dtype=F64)
    row = scores_of(part, x, x, pos, PAIR, quarter)[0, 0, 2]
    torch.testing.assert_close(row, torch.tensor([-1.0, 0.0, 1.0], dtype=F64))
    quarter[0, 0, 2] = 0.0
    row = scores_of(part, x, x, pos, PAIR, quarter)[0, 0, 2]
    torch.testing.assert_close(row, torch.tensor([0.0, 1.0, 1.0], dtype=F64))


@torch.no_grad()
def test_equal_angles_are_rope():
    part, pos = built(SelectiveRope(taps=3, base=10_000.0)), Positions.arange(2, 9)
    part.filters.copy_(torch.tensor([0.0, 0.0, 1.0]).expand_as(part.filters))
    q, k = vectors(2, 4, 9, 6, seed=1), vectors(2, 2, 9, 6, seed=2)
    got = scores_of(part, q, k, pos, SHAPE, torch.ones(2, 2, 9, 3, dtype=F64))
    rope = vt.Rope().build(SHAPE)
    want = rope.query(q, pos) @ rope.key(k, pos).repeat_interleave(2, 1).mT
    past = torch.ones(9, 9, dtype=torch.bool).tril()
    torch.testing.assert_close(got[..., past], want[..., past])


@torch.no_grad()
def test_a_softcap_caps_plain_and_turned_scores():
    part, pos, cap = built(SelectiveRope(rank=3)), Positions.arange(2, 5), 0.8
    q, k = vectors(2, 4, 5, 6, seed=1), vectors(2, 2, 5, 6, seed=2)
    plain = 0.3 * q @ k.repeat_interleave(2, 1).mT
    turned = plain + bias_of(part, pos, pos, q=q, k=k)
    capped = cap * torch.tanh(plain / cap) + bias_of(part, pos, pos, q=q, k=k, softcap=cap)
    torch.testing.assert_close(capped, cap * torch.tanh(turned / cap), rtol=1e-9, atol=1e-9)


@torch.no_grad()
def test_a_layer_token_by_token():
    """Written out with loops: the normed input, the convolution over the last tokens, the sum of angles between."""
    spec = vt.decoder(
        vocab=11, width=8, layers=1, heads=2, kv_heads=1, position=SelectiveRope(rank=3, taps=3, base=20.0)
    )
    model = sharpen(vt.build(spec, kernel="reference").double())
    attention, T = model.blocks[0].sublayers[0], 7
    part, x = attention.scorer.bias, vectors(1, 1, 7, 8)[0, 0]
    shares = x.view(T, 2, 4)
    normed = (shares / (shares.square().sum(-1, keepdim=True) + 1e-6).sqrt()).reshape(T, 8)
    features = normed @ part.down.weight.T @ part.up.weight.T  # (T, 2)
    phi = torch.stack(
        [
            sum(part.filters[:, 2 - back] * features[t - back] for back in range(3) if t >= back)  # type: ignore[misc]
            for t in range(T)
        ]
    )
    q, k, v = (t[0] for t in attention.project(x[None]))
    want = torch.zeros(T, 2, 4, dtype=F64)
    for h in range(2):
        for i in range(T):
            scores = []
            for j in range(i + 1):
                angle = phi[j + 1 : i + 1].sum(0) * torch.tensor([1.0, 20.0**-0.5], dtype=F64)
                c, s = angle.cos(), angle.sin()
                a, b = q[h, i, :2], q[h, i, 2:]
                scores.append(torch.cat((a * c - b * s, a * s + b * c)) @ k[0, j] / 2)
            want[i, h] = torch.stack(scores).softmax(0) @ v[0, : i + 1]
    seen: list[torch.Tensor] = []
    attention.out.register_forward_pre_hook(lambda module, given: seen.append(given[0]))
    attention(x[None], context(Positions.arange(1, T), caches=no_caches(model.spec, None, model.dtype)))
    torch.testing.assert_close(seen[0][0].view(T, 2, 4), want)


def test_how_the_filters_begin():
    """Features of variance 1 become angles of variance 1."""
    torch.manual_seed(0)
    for taps in (4, 16):
        filters = SelectiveRope(taps=taps).build(Shape(1024, 16, 16, 64, 64, 64)).filters.detach()
        assert float(filters.std()) == pytest.approx(taps**-0.5, rel=0.1)


def test_a_process_with_some_heads_norms_its_input_as_all_heads_would():
    assert SelectiveRope().of_heads(2, 2, 4) == SelectiveRope(shares=4)
    assert SelectiveRope(shares=8).of_heads(0, 2, 4) == SelectiveRope(shares=8)


def test_gradients():
    part, pos = built(SelectiveRope(rank=2, taps=3)), Positions.arange(1, 4)
    x = vectors(1, 1, 4, 12)[:, 0]

    def call() -> torch.Tensor:
        streams = part.keep(x, pos)
        return bias_of(part, pos, pos, streams=streams, own=streams)

    check_gradients(part, call)


def model(**options) -> vt.Model:
    spec = vt.decoder(vocab=19, width=32, layers=2, heads=4, kv_heads=2, position=SelectiveRope(rank=4), **options)
    return sharpen(vt.build(spec).double())


@pytest.mark.parametrize("kind", ["contiguous", "paged"])
def test_cached_and_taken_back(kind: str):
    check_cached(model(), kind)
    check_taken_back(model(), kind, (7, 9))


def test_a_window_in_a_ring():
    """The convolution reads two tokens before the oldest key that a query sees, and the ring keeps them."""
    check_cached(model(window=5), "ring")
    assert SelectiveRope(taps=4).before == 2
    assert SelectiveRope().streams(SHAPE) == (KeptStream(2, 3),)


def test_costs_are_those_that_torch_counts():
    check_costs(vt.decoder(vocab=19, width=32, layers=2, heads=4, kv_heads=2, position=SelectiveRope(rank=4)))


def test_saved_and_loaded(tmp_path):
    check_saved(model(), tmp_path)


@torch.no_grad()
def test_captured_and_taken_apart():
    m = model()
    assert vt.capture(m, TOKENS[:1], verify=True).error < 1e-12
    assert vt.inspect.decompose(m, TOKENS[:1], layer=1).error < 1e-12


def test_what_does_not_fit():
    SelectiveRope(rank=1, taps=2, base=1.5)
    for wrong in ({"rank": 0}, {"taps": 1}, {"base": 1.0}):
        with pytest.raises(BadInput, match="give a rank of 1 or more"):
            SelectiveRope(**wrong)
    with pytest.raises(Refused, match="needs causal attention"):
        vt.encoder(vocab=9, width=8, layers=1, heads=2, position="selective-rope")
    with pytest.raises(BadInput, match="an even number"):
        SelectiveRope().build(Shape(12, 4, 2, 5, 5, 5))
    with pytest.raises(BadInput, match="5 do not divide 12"):
        SelectiveRope().build(Shape(12, 5, 5, 6, 6, 6))
    with pytest.raises(Refused, match="only 4 of 8 numbers"):
        SelectiveRope().build(Shape(12, 4, 4, 8, 8, 4))
