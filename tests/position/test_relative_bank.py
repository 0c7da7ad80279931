"""The relative bank: the worked number, transformers' module, and the formula for positions that do not run on."""

from __future__ import annotations

import pytest
import torch
from transformers.models.inkling.modeling_inkling import InklingRelativeLogits

from tests.position.helpers import F64, SHAPE, bias_of, built, one_by_one, vectors
from vantage.errors import BadInput
from vantage.position import RelativeBank
from vantage.spec.parts import BiasInputs
from vantage.spec.positions import Positions


def test_the_worked_number():
    """Rows (1, 2, 3) and (10, 20, 30), r = (1, .1): 2, 4, 6, then 0."""
    part = built(RelativeBank(extent=3, curves=2))
    with torch.no_grad():
        part.bank.copy_(torch.tensor([[1.0, 2, 3], [10, 20, 30]]))
        part.query.weight.zero_()
        part.query.weight[:, 0] = torch.tensor([1, 0.1] * SHAPE.heads)
    x = torch.zeros(1, 1, SHAPE.width, dtype=F64)
    x[..., 0] = 1
    bias = bias_of(part, Positions.arange(1, 1, 5), Positions.arange(1, 8), x=x)
    torch.testing.assert_close(bias[0, 1, 0], torch.tensor([0, 0, 0, 6, 4, 2, 0, 0], dtype=F64))


def test_transformers_has_the_same():
    part, T, S = built(RelativeBank(extent=6, curves=3)), 5, 11
    theirs = InklingRelativeLogits(3, 6).double()
    theirs.proj.data.copy_(part.bank.data)
    x, q_pos, k_pos = vectors(2, 1, T, SHAPE.width)[:, 0], torch.arange(4, 4 + T), torch.arange(S)
    small = part.query(x).view(2, T, SHAPE.heads, 3)
    ours = bias_of(part, Positions.arange(2, T, 4), Positions.arange(2, S), x=x)
    torch.testing.assert_close(ours, theirs(small, q_pos, k_pos))


def test_positions_in_any_arrangement():
    part = built(RelativeBank(extent=4, curves=3))
    q_pos, k_pos = Positions.of(torch.tensor([[7, 3]])), Positions.of(torch.tensor([[6, -1, 0, 3, 40]]))
    x = vectors(1, 1, 2, SHAPE.width)[:, 0]
    by_distance = (part.query(x).view(1, 2, SHAPE.heads, 3) @ part.bank)[0]  # (T, H, extent)
    bias = bias_of(part, q_pos, k_pos, x=x)[0]
    for i, p in enumerate((7, 3)):
        for j, k in enumerate((6, None, 0, 3, 40)):
            if k is not None:
                want = by_distance[i, :, p - k] if 0 <= p - k < 4 else torch.zeros(SHAPE.heads, dtype=F64)
                torch.testing.assert_close(bias[:, i, j], want)
    q = vectors(1, 4, 2, 6)
    alone = part.at(BiasInputs(q, q, vectors(1, 2, 5, 6), q_pos, k_pos, 0.3, x))
    torch.testing.assert_close(one_by_one(alone, q_pos.against(k_pos), SHAPE.heads)[0], bias)


def test_fractions_are_refused():
    half = Positions.of(torch.tensor([[0.5]]), order=torch.tensor([[0]]))
    with pytest.raises(BadInput, match="a relative bank"):
        bias_of(built(RelativeBank(4, 2)), half, half, x=vectors(1, 1, 1, SHAPE.width)[:, 0])


@pytest.mark.parametrize("name", ["extent", "curves"])
def test_a_bank_of_nothing_is_refused(name):
    RelativeBank(**{name: 1})
    with pytest.raises(BadInput, match=f"^{name}=0: use 1 or more$"):
        RelativeBank(**{name: 0})


def test_gradients():
    part, x = built(RelativeBank(extent=3, curves=2)), vectors(1, 1, 4, SHAPE.width)[:, 0].requires_grad_()
    pos = Positions.arange(1, 4)
    assert torch.autograd.gradcheck(lambda x, *_: bias_of(part, pos, pos, x=x), (x, part.bank, part.query.weight))
