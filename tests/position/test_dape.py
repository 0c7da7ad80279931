"""DAPE: worked by hand, the formula pair by pair, other biases inside it, gradients, costs, caches and refusals."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import vantage as vt
from tests.attention.model_checks import TOKENS, check_cached, check_costs, check_saved
from tests.position.helpers import F64, bias_of, built, check_gradients, vectors
from vantage.conformance.scenarios import sharpen
from vantage.errors import BadInput, Refused
from vantage.parallel.tensor import divided
from vantage.position import DAPE, alibi_slopes, encoding
from vantage.spec.parts import Parts, Shape
from vantage.spec.positions import Positions

ONE_HEAD = Shape(width=1, heads=1, kv_heads=1, key_dim=1, value_dim=1, rotary_dim=1)


@torch.no_grad()
def test_worked_by_hand():
    """f(s, b) = 2·leaky(s + b), with leaky(x) = x/100 below 0. At s = 1, b = -½ it adds 1; at s = -1, b = -½, -0.03."""
    part = built(DAPE(hidden=1, inner=vt.Alibi(slopes=(0.5,))), ONE_HEAD)
    for p, value in ((part.up.weight, 1.0), (part.up.bias, 0.0), (part.down.weight, 2.0), (part.down.bias, 0.0)):
        p.fill_(value)
    pos = Positions.arange(1, 2)
    for key, wanted in ((1.0, -0.5 + 1.0), (-1.0, -0.5 - 0.03)):
        q, k = torch.ones(1, 1, 2, 1, dtype=F64), torch.full((1, 1, 2, 1), key, dtype=F64)
        bias = bias_of(part, pos, pos, q=q, k=k, shape=ONE_HEAD, scale=1.0)
        assert float(bias[0, 0, 1, 0]) == pytest.approx(wanted)


@pytest.mark.parametrize("softcap", [None, 0.7])
@pytest.mark.parametrize("inner", ["alibi", "kerple", "fire", "t5"])
@torch.no_grad()
def test_the_formula_pair_by_pair(inner: str, softcap: float | None):
    """Scores and biases of all heads of one pair into the network, one number for each head out of it. Where scores are
    capped, the network sees them so."""
    config = DAPE(encoding(inner), hidden=5).parts(causal=True).bias
    part, pos = built(config), Positions.arange(2, 5)
    q, k = vectors(2, 4, 5, 6, seed=1), vectors(2, 2, 5, 6, seed=2)
    plain = bias_of(part.inner, pos, pos, q=q, k=k)
    got = bias_of(part, pos, pos, q=q, k=k, softcap=softcap)
    for i in range(5):
        for j in range(5):
            scores = torch.stack([0.3 * (q[:, h, i] * k[:, h // 2, j]).sum(-1) for h in range(4)], -1)
            scores = scores if softcap is None else softcap * torch.tanh(scores / softcap)
            given = torch.cat((scores, plain[:, :, i, j]), -1)
            change = part.down(torch.nn.functional.leaky_relu(part.up(given)))
            torch.testing.assert_close(got[:, :, i, j], plain[:, :, i, j] + change)


@torch.no_grad()
def test_a_silent_network_leaves_the_bias_as_it_is():
    part, pos = built(DAPE()), Positions.arange(1, 7)
    part.down.weight.zero_(), part.down.bias.zero_()
    slopes = torch.tensor(alibi_slopes(4), dtype=F64)[:, None, None]
    at = torch.arange(7, dtype=F64)
    want = (-slopes * (at[:, None] - at).abs()).expand(1, 4, 7, 7)
    past = torch.ones(7, 7, dtype=torch.bool).tril()
    torch.testing.assert_close(bias_of(part, pos, pos)[..., past], want[..., past])


def test_gradients():
    part, pos = built(DAPE(hidden=3)), Positions.arange(1, 3)
    check_gradients(part, lambda: bias_of(part, pos, pos))


def model(**options) -> vt.Model:
    return sharpen(vt.build(vt.decoder(vocab=19, width=32, layers=2, heads=4, kv_heads=2, **options)).double())


@pytest.mark.parametrize("kind", ["contiguous", "paged"])
@pytest.mark.parametrize("inner", [vt.Alibi(), vt.Fire(hidden=4), vt.T5()], ids=["alibi", "fire", "t5"])
def test_through_a_cache(kind: str, inner: object):
    check_cached(model(position=DAPE(inner, hidden=4)), kind)


@pytest.mark.parametrize("inner", [vt.Alibi(), vt.Fire(hidden=4)], ids=["alibi", "fire"])
def test_costs_are_those_that_torch_counts(inner: Any):
    """Of the bias that is adapted as well, where that multiplies matrices."""
    check_costs(vt.decoder(vocab=19, width=32, layers=2, heads=4, kv_heads=2, position=DAPE(inner, 5)))


def test_saved_and_loaded(tmp_path):
    check_saved(model(position=DAPE(vt.Kerple(), hidden=4)), tmp_path)


@torch.no_grad()
def test_captured_and_taken_apart():
    m = model(position=DAPE(hidden=4))
    assert vt.capture(m, TOKENS[:1], verify=True).error < 1e-12
    split = vt.inspect.decompose(m, TOKENS[:1], layer=1)
    assert split.error < 1e-12


def test_what_does_not_fit():
    with pytest.raises(BadInput, match="hidden=0"):
        DAPE(hidden=0)
    for inner in ("rope", "sinusoidal", "none", "shaw"):
        with pytest.raises(Refused, match="is not that alone"):
            DAPE(encoding(inner)).parts(causal=True)
    for inner in ("fox", "cope", "path"):
        with pytest.raises(Refused, match="reads the tokens between"):
            DAPE(encoding(inner)).parts(causal=True)
    spec = vt.decoder(vocab=19, width=32, layers=1, heads=4, position="dape")
    assert spec.layers[0].bias == DAPE() == DAPE().parts(causal=True).bias
    assert DAPE().parts(causal=False) == Parts(bias=DAPE())
    with pytest.raises(Refused, match="sees the scores of all heads"):
        divided(spec, 0, 2)
    with pytest.raises(Refused, match="looks at every key"):
        vt.build(spec).new_cache(kind="tova")
