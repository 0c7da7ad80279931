"""KERPLE against the paper's two kernels."""

import math

import pytest
import torch

from tests.position.helpers import F64, SHAPE, bias_of, built, check_gradients, only_bias
from vantage.errors import BadInput
from vantage.position import Kerple
from vantage.spec.parts import BiasInputs, Shape
from vantage.spec.positions import Positions

MANY = Shape(width=8, heads=500, kv_heads=1, key_dim=4, value_dim=4, rotary_dim=4)
KINDS = pytest.mark.parametrize("kind", ["log", "power"])
HERE, THERE = [4, 100], [0, 3, 4, 9, 99]


def softplus(x: float) -> float:
    return math.log(1 + math.exp(x))


@KINDS
def test_kernel(kind):
    part = built(only_bias(Kerple(kind).parts(causal=True)))
    got = bias_of(part, Positions.of(torch.tensor(HERE)), Positions.of(torch.tensor(THERE)))
    for h in range(4):
        a, raw_p = softplus(part.raw_a[h].item()), part.raw_p[h].item()
        for t, i in enumerate(HERE):
            for s, j in enumerate(THERE):
                far = abs(i - j)
                if kind == "log":
                    want = -a * math.log(1 + softplus(raw_p) * far)
                else:
                    want = -a * far ** (2 / (1 + math.exp(-raw_p)))
                assert got[0, h, t, s].item() == pytest.approx(want, rel=1e-12)


@KINDS
def test_scores_only_ever_fall_with_distance(kind):
    torch.manual_seed(0)
    part = Kerple(kind).build(MANY)
    q = torch.zeros(1, 500, 1, 4)
    fall = bias_of(part, Positions.arange(1, 1), Positions.arange(1, 50), q=q, k=torch.zeros(1, 1, 50, 4), shape=MANY)
    assert (fall[..., 0] == 0).all()
    assert (fall.diff(dim=-1) < 0).all()


@pytest.mark.parametrize(("kind", "a_high", "p_high"), [("log", 2.0, 1.0), ("power", 1.0, 2.0)])
def test_start_is_uniform_as_in_the_authors_code(kind, a_high, p_high):
    torch.manual_seed(0)
    part = Kerple(kind).build(Shape(8, 4000, 1, 4, 4, 4))
    q = torch.zeros(1, 4000, 1, 4)
    bias = part.at(BiasInputs(q, q, q, Positions.arange(1, 1), Positions.arange(1, 1), 1.0))
    for value, high in ((bias.a, a_high), (bias.p, p_high)):
        assert 0.0099 <= value.min() < 0.02 * high
        assert 0.98 * high < value.max() <= high - 0.0099
        assert value.mean().item() == pytest.approx(high / 2, rel=0.05)


@KINDS
def test_gradients(kind):
    part = built(Kerple(kind))
    check_gradients(part, lambda: bias_of(part, Positions.of(torch.tensor(HERE)), Positions.of(torch.tensor(THERE))))


@KINDS
def test_half_precision_is_worked_out_in_float32(kind):
    part = built(Kerple(kind), dtype=torch.bfloat16)
    q = torch.zeros(1, 4, 1, 6, dtype=torch.bfloat16)
    q_pos, k_pos = Positions.arange(1, 1, start=1000), Positions.of(torch.tensor([[999, -1]]))
    bias = part.at(BiasInputs(q, q, q, q_pos, k_pos, 1.0))
    assert bias.a.dtype == bias.p.dtype == torch.float32
    exact = bias_of(part.double(), q_pos, k_pos)
    near = bias_of(part.to(torch.bfloat16), q_pos, k_pos, q=q.float(), k=q.float())
    torch.testing.assert_close(near.double(), exact, rtol=1e-4, atol=1e-4)
    assert built(Kerple(kind)).at(BiasInputs(q, q, q, q_pos, k_pos, 1.0)).a.dtype == F64


def test_where_it_acts():
    assert only_bias(Kerple().parts(causal=False)) == Kerple("log")
    assert Kerple().shared is False
    assert set(dict(Kerple().build(SHAPE).named_parameters())) == {"raw_a", "raw_p"}


def test_bad_input():
    with pytest.raises(BadInput, match="kind='linear': use one of 'log', 'power'"):
        Kerple("linear")
