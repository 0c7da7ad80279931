"""Self-Extend and dual chunk attention: the worked distances, rotations at the written positions, and whole models."""

from __future__ import annotations

import dataclasses

import pytest
import torch

import vantage as vt
from tests.position.helpers import F64, SHAPE, vectors
from vantage.errors import BadInput, Refused
from vantage.position import DualChunk, LogTemperature, Rope, SelfExtend
from vantage.position.scaling import YaRN
from vantage.spec.masks import Window
from vantage.spec.model import Scores
from vantage.spec.operations import AttentionWork, PassSize
from vantage.spec.parts import BiasInputs, Shape
from vantage.spec.positions import Positions

BOTH = [SelfExtend(2, 4), DualChunk(6, 2)]


def places(rule, i: int, j: int) -> tuple[int, int]:
    """Where query i and key j meet, written out."""
    if isinstance(rule, SelfExtend):
        if i - j < rule.window:
            return i, j
        return i // rule.group + rule.window - rule.window // rule.group, j // rule.group
    c = rule.chunk - rule.local
    if i // c == j // c:
        return i % c, j % c
    if i // c == j // c + 1:
        return min(i % c + c, rule.chunk), j % c
    return min(2 * c - 1, rule.chunk), j % c


@pytest.mark.parametrize(
    ("rule", "query", "distances"),
    [
        (SelfExtend(4, 8), 20, {13: 7, 12: 8, 8: 9, 0: 11}),
        (DualChunk(12, 4), 20, {18: 2, 15: 5, 8: 12, 7: 5, 0: 12}),
        (DualChunk(12, 4), 23, {16: 7, 15: 5, 8: 12, 7: 5, 0: 12}),  # 15 where it stands, but no more than the chunk
        (DualChunk(12, 7), 23, {20: 3, 16: 7, 11: 8, 2: 7, 0: 9}),  # chunks of 5: the farthest stand at 9
    ],
    ids=["self-extend", "dual-chunk", "dual-chunk, end", "dual-chunk, short"],
)
def test_the_worked_distances(rule, query, distances):
    """From the regions themselves, and from the formulas above."""
    keys = torch.tensor([list(distances)])
    got = {j: query - j for j in distances}
    for region in rule.regions(torch.tensor([[query]]), keys):
        for n, j in enumerate(distances):
            if region.pairs[0, 0, n]:
                got[j] = int(region.queries[0, 0] - region.keys[0, n])
    assert got == distances
    assert {j: places(rule, query, j)[0] - places(rule, query, j)[1] for j in distances} == distances


def scores(rule, q: torch.Tensor, k: torch.Tensor, q_pos: list[int], k_pos: list[int], rope: Rope, scale: float):
    """Pair by pair: raw vectors turned to where they meet, (H, T, S)."""
    turn = rope.build(SHAPE)
    out = torch.zeros(4, len(q_pos), len(k_pos), dtype=F64)
    for a, i in enumerate(q_pos):
        for b, j in enumerate(k_pos):
            at = [Positions.of(torch.tensor([[p]])) for p in places(rule, i, j)]
            query = turn.query(q[:, :, a : a + 1], at[0])
            key = turn.key(k[:, :, b : b + 1], at[1]).repeat_interleave(2, 1)
            out[:, a, b] = (query * key).sum(-1)[0, :, 0] * scale
    return out


@pytest.mark.parametrize("rope", [Rope(), Rope(pairing="adjacent", share=0.7), Rope(scaling=YaRN(4.0, 8))], ids=str)
@pytest.mark.parametrize("softcap", [None, 0.7])
@pytest.mark.parametrize("rule", BOTH, ids=["self-extend", "dual-chunk"])
def test_scores_are_those_of_the_written_positions(rule, softcap, rope):
    rule, scale = dataclasses.replace(rule, rope=rope), 0.4
    q_pos, k_pos = [9, 21, 2], [20, 0, 7, 3, 13, 2]  # in no order
    q, k = vectors(1, 4, 3, 6, 1), vectors(1, 2, 6, 6, 2)
    where = [Positions.of(torch.tensor([p])) for p in (q_pos, k_pos)]
    turn = rope.build(SHAPE)
    turned = turn.query(q, where[0]), turn.key(k, where[1])
    bias = rule.build(SHAPE).at(BiasInputs(q, *turned, *where, scale, softcap=softcap)).value[0]

    def capped(score: torch.Tensor) -> torch.Tensor:
        return score if softcap is None else softcap * torch.tanh(score / softcap)

    plain = (turned[0] @ turned[1].repeat_interleave(2, 1).transpose(-1, -2))[0] * scale
    wanted = capped(scores(rule, q, k, q_pos, k_pos, rope, scale))
    seen = torch.tensor(q_pos)[:, None] >= torch.tensor(k_pos)
    torch.testing.assert_close((capped(plain) + bias)[:, seen], wanted[:, seen])


@torch.no_grad()
@pytest.mark.parametrize("rule", BOTH, ids=["self-extend", "dual-chunk"])
def test_a_prompt_in_pieces_is_the_prompt_in_one(rule):
    """LongLM's code differs here: it shifts queries only where the call's highest lies past the window."""
    spec = vt.decoder(
        vocab=19, width=16, layers=2, attention=vt.GroupedQuery(2, 1, scores=Scores(softcap=3.0)), position=rule
    )
    model = vt.build(spec, seed=0).double().eval()
    tokens = torch.randint(19, (1, 20), generator=torch.Generator().manual_seed(0))
    cache = model.new_cache(1)
    pieces = torch.cat([model(piece, cache=cache) for piece in tokens.split([3, 9, 1, 1, 6], 1)], 1)
    torch.testing.assert_close(pieces, model(tokens))
    assert (model(tokens) - vt.swap(model, Rope())(tokens)).abs().max() > 1e-6


def test_near_rows_are_plain_rope_and_need_no_bias():
    q, pos = vectors(1, 4, 4, 6), Positions.arange(1, 4)
    for rule in (SelfExtend(2, 4), DualChunk(6, 2)):
        assert rule.build(SHAPE).at(BiasInputs(q, q, q[:, :2], pos, pos, 1.0)) is None


@pytest.mark.parametrize(("rule", "products"), [(SelfExtend(2, 4), 2), (DualChunk(6, 2), 3)])
def test_what_it_costs(rule, products):
    """Nothing for rows of 4, the window and the first chunk; then so many products of all queries and keys."""
    for tokens, cost in ((4, 0), (5, products * 2 * (2 * 4 * 5) * 5 * 6)):  # rows, heads, queries; keys; numbers
        assert rule.operations(AttentionWork(SHAPE, PassSize(2, tokens, tokens), tokens, 6)) == cost


@torch.no_grad()
def test_swap_changes_the_rotation_under_it():
    model = vt.build(vt.decoder(vocab=19, width=16, layers=1, heads=2, position=SelfExtend(2, 4)), seed=0)
    other = vt.swap(model, base=50.0)
    assert other.spec.layers[0].bias == SelfExtend(2, 4, Rope(50.0))
    tokens = torch.arange(12)[None]
    direct = vt.build(vt.decoder(vocab=19, width=16, layers=1, heads=2, position=SelfExtend(2, 4, Rope(50.0))), seed=0)
    torch.testing.assert_close(other(tokens), direct(tokens))


def test_latent_heads_are_moved_in_their_rotary_part_alone():
    shape = Shape(12, 4, 2, key_dim=10, value_dim=5, rotary_dim=6)
    q, k = vectors(1, 4, 1, 10, 1), vectors(1, 2, 1, 10, 2)
    at = [Positions.of(torch.tensor([[p]])) for p in (30, 0)]
    bias = SelfExtend(2, 4).build(shape).at(BiasInputs(q, q, k, *at, 1.0)).value
    part = SelfExtend(2, 4).build(SHAPE).at(BiasInputs(q[..., 4:], q[..., 4:], k[..., 4:], *at, 1.0)).value
    torch.testing.assert_close(bias, part)


def test_what_cannot_be():
    with pytest.raises(BadInput, match="multiple of the group"):
        SelfExtend(3, 4)
    with pytest.raises(BadInput, match="local=6"):
        DualChunk(6, 6)
    assert DualChunk(6, 0).step == 6
    assert SelfExtend(1, 1).unchanged == 1
    for rule in BOTH:
        with pytest.raises(Refused, match="causal"):
            rule.parts(causal=False)
    spec = vt.decoder(vocab=19, width=16, layers=1, heads=2, position=SelfExtend(2, 4))
    with pytest.raises(BadInput, match="moves what Rope"):
        dataclasses.replace(spec.layers[0], qk=())
    with pytest.raises(BadInput, match=r"QKNorm.* cannot stand behind that"):
        dataclasses.replace(spec.layers[0], qk=(Rope(), vt.QKNorm(vt.RMSNorm())))
    assert dataclasses.replace(spec.layers[0], qk=(vt.QKNorm(vt.RMSNorm()), Rope(), LogTemperature())).bias
    windowed = vt.decoder(vocab=19, width=16, layers=1, heads=2, position=SelfExtend(2, 4), window=3)
    assert Window(3) in (windowed.layers[0].mask.a, windowed.layers[0].mask.b)


@pytest.mark.parametrize("rule", BOTH, ids=["self-extend", "dual-chunk"])
def test_gradients(rule):
    part, q_pos, k_pos = rule.build(SHAPE), Positions.arange(1, 2, 9), Positions.arange(1, 11)
    q, k = vectors(1, 4, 2, 6).requires_grad_(), vectors(1, 2, 11, 6, 1).requires_grad_()
    assert torch.autograd.gradcheck(lambda q, k: part.at(BiasInputs(q, q, k, q_pos, k_pos, 0.3)).value, (q, k))
