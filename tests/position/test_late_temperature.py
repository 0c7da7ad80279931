"""Grok-2's temperature for late queries, after the softcap."""

import math

import pytest
import torch

from tests.attention.helpers import Listing, attention, check_gradients, run
from tests.attention.helpers import vectors as flat
from tests.position.helpers import SHAPE, bias_of, built, vectors
from vantage.attention import GroupedQuery
from vantage.errors import BadInput
from vantage.position.late_temperature import LateTemperature
from vantage.spec.model import Scores
from vantage.spec.operations import AttentionWork, PassSize
from vantage.spec.parts import BiasInputs, Parts
from vantage.spec.positions import Positions

LENGTH, CAP = 4, 1.5
CONFIG = GroupedQuery(4, 2, head_dim=3, scores=Scores(softcap=CAP))
PARTS = Parts(bias=LateTemperature(LENGTH, CAP))


def test_it_is_its_formula():
    pos = Positions.arange(2, 9)
    q, k = vectors(2, 4, 9, 6, 1), vectors(2, 2, 9, 6, 2)
    got = bias_of(built(LateTemperature(LENGTH, CAP)), pos, pos, q=q, k=k, scale=0.7)
    for h in range(4):
        score = q[:, h] @ k[:, h // 2].transpose(-1, -2) * 0.7
        capped = CAP * torch.tanh(score / CAP)
        for i in range(9):
            grown = capped[:, i] * (math.log2(i) / math.log2(LENGTH) if i > LENGTH else 1.0)
            torch.testing.assert_close(capped[:, i] + got[:, h, i], grown)


def test_up_to_the_length_there_is_no_bias():
    module, pos = built(LateTemperature(8, CAP)), Positions.arange(1, 9)
    assert module.at(BiasInputs(vectors(1, 4, 9, 6), vectors(1, 4, 9, 6), vectors(1, 2, 9, 6), pos, pos, 1.0)) is None


def test_what_it_costs():
    """The scores once more, from the first position past the length on: 8 is the last without."""
    for tokens, cost in ((9, 0), (10, 2 * (2 * 4 * 10) * 10 * 6)):  # rows, heads, queries; keys; a head's numbers
        work = AttentionWork(SHAPE, PassSize(2, tokens, tokens), tokens, 6)
        assert LateTemperature(8, CAP).operations(work) == cost


def test_a_late_row_does_not_touch_an_early_one():
    """Positions the host does not know: an early row and an empty place keep a temperature of 1."""
    pos = Positions.of(torch.tensor([[0, 1, 2], [7, 8, -1]]))
    q, k = vectors(2, 4, 3, 6, 1), vectors(2, 2, 3, 6, 2)
    got = bias_of(built(LateTemperature(LENGTH, CAP)), pos, pos, q=q, k=k)
    assert (got[0] == 0).all()
    assert (got[1, :, 2] == 0).all()
    assert (got[1, :, :2] != 0).all()


@torch.no_grad()
def test_cached_is_uncached():
    module, x = attention(CONFIG, 8, parts=PARTS), flat(2, 12, 8)
    cache, pieces = Listing(), []
    for piece, start in ((x[:, :5], 0), (x[:, 5:6], 5), (x[:, 6:], 6)):
        pieces.append(run(module, piece, pos=Positions.arange(*piece.shape[:2], start), caches=[cache]))
    torch.testing.assert_close(torch.cat(pieces, 1), run(module, x))


def test_gradcheck():
    check_gradients(attention(CONFIG, 4, parts=PARTS), lambda m, x: run(m, x), flat(1, 7, 4))


@pytest.mark.parametrize(("length", "cap", "says"), [(1, 1.0, "length=1"), (4, 0.0, "softcap=0.0")])
def test_what_cannot_be_is_refused(length, cap, says):
    with pytest.raises(BadInput, match=says):
        LateTemperature(length, cap)


def test_the_least_that_can_be_is_taken():
    LateTemperature(2, 0.5)
    assert LateTemperature(LENGTH, CAP).shared  # one for all layers: it has no parameters
