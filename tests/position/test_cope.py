"""CoPE against the authors' code, and wherever the keys are kept."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.position.helpers import F64, SHAPE, bias_of, built, check_gradients, only_bias, permuted, vectors
from vantage.errors import BadInput, Refused
from vantage.position import CoPE
from vantage.spec.parts import BiasInputs, Shape
from vantage.spec.positions import Positions

ONE = Shape(width=12, heads=1, kv_heads=1, key_dim=6, value_dim=5, rotary_dim=6)


def authors(query, attn_logits, pos_emb):
    """The listing in the paper. attn_logits are scaled and masked with -inf; pos_emb is (head_dim, npos_max)."""
    gates = torch.sigmoid(attn_logits)
    pos = gates.flip(-1).cumsum(dim=-1).flip(-1)
    pos = pos.clamp(max=pos_emb.shape[1] - 1)
    pos_ceil, pos_floor = pos.ceil().long(), pos.floor().long()
    logits_int = torch.matmul(query, pos_emb)
    logits_ceil, logits_floor = logits_int.gather(-1, pos_ceil), logits_int.gather(-1, pos_floor)
    w = pos - pos_floor
    return logits_ceil * w + logits_floor * (1 - w)


@pytest.mark.parametrize("max_positions", [2, 4, 64])
def test_bias_is_the_authors(max_positions):
    part = built(only_bias(CoPE(max_positions).parts(causal=True)), ONE)
    q, k, T = vectors(3, 1, 9, 6, 1), vectors(3, 1, 9, 6, 2), 9
    causal = torch.ones(T, T).tril().log()
    want = authors(q[:, 0], q[:, 0] @ k[:, 0].transpose(-1, -2) * 0.4 + causal, part.table.T)
    got = bias_of(part, Positions.arange(3, T), Positions.arange(3, T), q=q, k=k, shape=ONE, scale=0.4)
    torch.testing.assert_close(got[:, 0].tril(), want.tril())


def brute_force(part, q, k, q_pos, k_pos, scale):
    """p_ij by its definition, for every pair: over filled keys of the query's document, from j up to i in order."""
    (B, H, T, _), G, S = q.shape, k.shape[1], k.shape[2]
    out, last = torch.zeros(B, H, T, S, dtype=F64), part.table.shape[0] - 1
    for b in range(B):
        for h in range(H):
            for t in range(T):
                for s in range(S):
                    count = 0.0
                    for u in range(S):
                        if not k_pos.order[b, s] <= k_pos.order[b, u] <= q_pos.order[b, t] or k_pos.order[b, u] < 0:
                            continue
                        if k_pos.segment is not None and k_pos.segment[b, u] != q_pos.segment[b, t]:
                            continue
                        count += torch.sigmoid(scale * q[b, h, t] @ k[b, h * G // H, u]).item()
                    count = min(count, last)
                    low = min(int(count), last - 1)
                    e = part.table[low] * (low + 1 - count) + part.table[low + 1] * (count - low)
                    out[b, h, t, s] = q[b, h, t] @ e
    return out


def seen(q_pos, k_pos):
    """Pairs that a causal kernel may look at."""
    q, k = q_pos.order[:, None, :, None], k_pos.order[:, None, None, :]
    mask = (q >= 0) & (k >= 0) & (k <= q)
    if q_pos.segment is not None:
        mask = mask & (q_pos.segment[:, None, :, None] == k_pos.segment[:, None, None, :])
    return mask.expand(-1, 4, -1, -1)


CASES = {
    "equal rows": Positions.arange(2, 6),
    "padded left": Positions.rows([6, 3], pad="left"),
    "padded right": Positions.rows([6, 3]),
    "packed": Positions.packed([[3, 2], [1, 4]], width=6),
    "stretched": Positions.of(torch.tensor([[0, 10, 20, 30, 40, 50]] * 2), order=torch.arange(6).expand(2, 6)),
}


@pytest.mark.parametrize("case", CASES)
@settings(deadline=None, max_examples=6)
@given(order=st.permutations(range(6)), seed=st.integers(0, 9))
def test_counts_go_by_order_in_any_arrangement(case, order, seed):
    """Heads in groups, rows unequal, documents packed, keys kept in any slots: as by definition."""
    pos, part, index = CASES[case], built(CoPE(4)), torch.tensor(order)
    q, k = vectors(2, 4, 6, 6, seed), vectors(2, 2, 6, 6, seed + 20)
    straight = bias_of(part, pos, pos, q=q, k=k)
    k_pos = permuted(pos, index)
    shuffled = bias_of(part, pos, k_pos, q=q, k=k[:, :, index])
    mask = seen(pos, k_pos)
    torch.testing.assert_close(shuffled[mask], straight[..., index][mask])
    if seed == 0:
        want = brute_force(part, q, k[:, :, index], pos, k_pos, 0.3)
        torch.testing.assert_close(shuffled[mask], want[mask])


@pytest.mark.parametrize("case", CASES)
def test_counts_by_definition(case):
    pos, part = CASES[case], built(CoPE(3))
    q, k = vectors(2, 4, 6, 6, 1), vectors(2, 2, 6, 6, 2)
    mask = seen(pos, pos)
    got = bias_of(part, pos, pos, q=q, k=k)
    assert got.isfinite().all()
    torch.testing.assert_close(got[mask], brute_force(part, q, k, pos, pos, 0.3)[mask])


def test_cached_steps_equal_the_whole():
    part, q, k = built(CoPE(4)), vectors(1, 4, 8, 6, 1), vectors(1, 2, 8, 6, 2)
    whole = bias_of(part, Positions.arange(1, 8), Positions.arange(1, 8), q=q, k=k)
    for t in range(8):
        step = bias_of(
            part, Positions.arange(1, 1, start=t), Positions.arange(1, t + 1), q=q[:, :, t : t + 1], k=k[:, :, : t + 1]
        )
        torch.testing.assert_close(step, whole[:, :, t : t + 1, : t + 1])
    ring = Positions.of(torch.tensor([[4, 5, 6, 7, 3]]))  # a window of 5: the keys before are gone, and not missed
    got = bias_of(part, Positions.arange(1, 1, start=7), ring, q=q[:, :, 7:], k=k[:, :, [4, 5, 6, 7, 3]])
    torch.testing.assert_close(got[..., 0, :], whole[:, :, 7][..., [4, 5, 6, 7, 3]])


def test_gates_see_what_is_scored_and_the_table_sees_the_raw_query():
    """Absorbed MLA: q and k are of another width than the raw query."""
    part = built(CoPE(4))
    q_raw, q, k = vectors(1, 4, 1, 6, 1), vectors(1, 4, 1, 9, 2), vectors(1, 1, 3, 9, 3)
    q_pos, k_pos = Positions.arange(1, 1, start=2), Positions.arange(1, 3)
    got = part.at(BiasInputs(q_raw, q, k, q_pos, k_pos, 0.2)).value
    count = torch.sigmoid(0.2 * q @ k.transpose(-1, -2)).flip(-1).cumsum(-1).flip(-1)
    low = count.floor().long()
    e = torch.lerp(part.table[low], part.table[low + 1], (count - low)[..., None])
    torch.testing.assert_close(got, torch.einsum("bhtd,bhtsd->bhts", q_raw, e))


def test_gradients():
    part = built(CoPE(3))
    check_gradients(part, lambda: bias_of(part, Positions.arange(1, 3), Positions.of(torch.tensor([[2, 0, 1, -1]]))))
    q, k = vectors(1, 4, 3, 6, 1).requires_grad_(), vectors(1, 2, 4, 6, 2).requires_grad_()

    def call(q, k):
        return bias_of(part, Positions.arange(1, 3), Positions.of(torch.tensor([[2, 0, 1, -1]])), q=q, k=k)

    assert torch.autograd.gradcheck(call, (q, k))


def test_half_precision_counts_in_float32():
    part = built(CoPE(64), dtype=torch.bfloat16)
    q, k = torch.zeros(1, 4, 1, 6).bfloat16(), torch.zeros(1, 2, 400, 6).bfloat16()
    value = part.at(BiasInputs(q, q, k, Positions.arange(1, 1, start=399), Positions.arange(1, 400), 1.0)).value
    assert value.dtype == torch.float32


def test_it_starts_with_no_effect_and_learns():
    part = CoPE().build(SHAPE).double()
    assert part.table.shape == (64, 6)
    assert (part.table == 0).all()
    bias_of(part, Positions.arange(1, 3), Positions.arange(1, 3)).sum().backward()
    assert (part.table.grad[:3] != 0).any()


def test_where_it_acts():
    assert only_bias(CoPE().parts(causal=True)) == CoPE(64)
    assert CoPE().shared is False
    with pytest.raises(Refused, match="CoPE counts back from the query and so needs causal attention"):
        CoPE().parts(causal=False)


def test_bad_input():
    CoPE(2)
    with pytest.raises(BadInput, match="max_positions=1: use 2 or more"):
        CoPE(1)
