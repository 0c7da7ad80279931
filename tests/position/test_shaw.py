"""Shaw's key and value terms against the paper, written out."""

import pytest
import torch
from hypothesis import given, settings

from tests.position.helpers import F64, SHAPE, bias_of, built, check_gradients, positions, vectors
from vantage.errors import BadInput
from vantage.position import Shaw
from vantage.position.shaw import ShawKeys, ShawValues
from vantage.spec.operations import AttentionWork, PassSize
from vantage.spec.parts import Parts
from vantage.spec.positions import Positions

HERE, THERE = torch.tensor([[5, 0, 9], [2, 3, -1]]), torch.tensor([[0, 1, 5, 6, 20], [3, 2, 1, 0, -1]])


def clip(x: int, n: int) -> int:
    return max(-n, min(n, x))


@pytest.mark.parametrize("n", [1, 3, 16])
def test_key_term(n):
    part, q = built(ShawKeys(n)), vectors(2, 4, 3, SHAPE.key_dim, 5)
    assert part.table.shape == (2 * n + 1, SHAPE.key_dim)
    got = bias_of(part, Positions.of(HERE), Positions.of(THERE), q=q, scale=0.25)
    for b in range(2):
        for h in range(4):
            for t in range(3):
                for s in range(5):
                    a = part.table[clip(int(THERE[b, s] - HERE[b, t]), n) + n]
                    assert got[b, h, t, s].item() == pytest.approx(0.25 * (q[b, h, t] @ a).item())


@pytest.mark.parametrize("n", [1, 3, 16])
def test_value_term(n):
    part = built(ShawValues(n))
    assert part.table.shape == (2 * n + 1, SHAPE.value_dim)
    weights = torch.rand(2, 4, 3, 5, dtype=F64)
    got = part.at(weights, Positions.of(HERE), Positions.of(THERE))
    assert got.shape == (2, 4, 3, SHAPE.value_dim)
    want = torch.zeros_like(got)
    for b in range(2):
        for t in range(3):
            for s in range(5):
                c = part.table[clip(int(THERE[b, s] - HERE[b, t]), n) + n]
                want[b, :, t] += weights[b, :, t, s, None] * c
    torch.testing.assert_close(got, want)


def test_equal_rows_broadcast_in_the_value_term():
    part, weights = built(ShawValues(2)), torch.rand(3, 4, 2, 6, dtype=F64)
    q_pos, k_pos = Positions.arange(3, 2, start=4), Positions.arange(3, 6)
    spread = Positions(k_pos.pos, k_pos.order)
    torch.testing.assert_close(
        part.at(weights, q_pos, k_pos), part.at(weights, Positions(q_pos.pos, q_pos.order), spread)
    )


@settings(deadline=None, max_examples=20)
@given(positions(), positions())
def test_value_term_is_the_sum_over_all_pairs(q_pos, k_pos):
    part = built(ShawValues(4))
    weights = torch.rand(2, 4, q_pos.shape[1], k_pos.shape[1], dtype=F64)
    distance = (k_pos.pos[:, None] - q_pos.pos[..., None]).clamp(-4, 4) + 4
    want = torch.einsum("bhts,btsd->bhtd", weights, part.table[distance])
    torch.testing.assert_close(part.at(weights, q_pos, k_pos), want)


def test_gradients():
    keys, values, weights = built(ShawKeys(2)), built(ShawValues(2)), torch.rand(2, 4, 3, 5, dtype=F64)
    check_gradients(keys, lambda: bias_of(keys, Positions.of(HERE), Positions.of(THERE)))
    check_gradients(values, lambda: values.at(weights, Positions.of(HERE), Positions.of(THERE)))
    weights.requires_grad_()
    assert torch.autograd.gradcheck(lambda w: values.at(w, Positions.of(HERE), Positions.of(THERE)), (weights,))


def test_tables_start_as_xavier_has_it():
    torch.manual_seed(0)
    table = ShawKeys(100).build(SHAPE).table
    limit = (6 / sum(table.shape)) ** 0.5
    assert 0.9 * limit < table.abs().max() <= limit


def test_half_precision():
    part = built(ShawValues(2), dtype=torch.bfloat16)
    pos = Positions.arange(1, 3)
    assert part.at(torch.rand(1, 4, 3, 3), pos, pos).dtype == torch.float32  # kernels may hold weights wider
    assert part.at(torch.rand(1, 4, 3, 3).bfloat16(), pos, pos).dtype == torch.bfloat16
    keys, q = built(ShawKeys(2), dtype=torch.bfloat16), torch.rand(1, 4, 3, 6).bfloat16()
    assert bias_of(keys, pos, pos, q=q, k=q).isfinite().all()


def test_what_it_costs():
    """Queries of 4 heads, and rows of weights, meet 2·3 + 1 distances, in a key's 6 and a value's 5 numbers."""
    work = AttentionWork(SHAPE, PassSize(batch=2, queries=5, keys=9), keys=9, score_width=6)
    assert ShawKeys(3).operations(work) == 2 * (2 * 4 * 5) * 7 * 6
    assert ShawValues(3).operations(work) == 2 * (2 * 4 * 5) * 7 * 5


def test_the_form_of_the_values_begins_at_the_farthest_later_key():
    part = built(ShawValues(3))
    assert part.form().first == -3
    assert torch.equal(part.form().values[0], part.table[-1])


@pytest.mark.parametrize("n", [1, 3])
def test_the_form_of_the_keys_is_what_each_distance_back_adds(n: int):
    """Distances beyond the last are as the last, however many are asked for."""
    part = built(ShawKeys(n))
    form = part.query_form()
    assert form.last == n
    q_pos, k_pos = Positions.arange(1, 1, start=8), Positions.arange(1, 9)
    q = vectors(1, 4, 1, 6, seed=1)
    by_distance = 0.3 * q @ form.keys(9).mT
    torch.testing.assert_close(bias_of(part, q_pos, k_pos, q=q), by_distance.flip(-1))


def test_where_it_acts():
    assert Shaw().parts(causal=True) == Parts(bias=ShawKeys(16), value_bias=ShawValues(16))
    assert Shaw(3, values=False).parts(causal=False) == Parts(bias=ShawKeys(3))
    assert ShawKeys(3).shared is False
    assert ShawValues(3).shared is False


def test_bad_input():
    Shaw(1)
    with pytest.raises(BadInput, match="max_distance=0: use 1 or more"):
        Shaw(0)
    whole, half = Positions.arange(1, 1), Positions.of(torch.tensor([[0.5]]), order=torch.tensor([[0]]))
    for q_pos, k_pos in ((half, whole), (whole, half)):
        with pytest.raises(BadInput, match="Shaw's table has entries for whole positions"):
            bias_of(built(ShawKeys(2)), q_pos, k_pos)
        with pytest.raises(BadInput, match="Shaw's table has entries for whole positions"):
            built(ShawValues(2)).at(torch.ones(1, 4, 1, 1), q_pos, k_pos)
