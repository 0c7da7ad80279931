"""FoPE: RoPE where the mixes are the identity, the formula written out, the worked number of slow pairs, gradients."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

import vantage as vt
from tests.position.helpers import F64, SHAPE, built, vectors
from vantage.errors import BadInput
from vantage.position import FoPE, Rope
from vantage.spec.operations import AttentionWork, PassSize
from vantage.spec.parts import Shape
from vantage.spec.positions import Positions


def identity(part: torch.nn.Module) -> torch.nn.Module:
    with torch.no_grad():
        for p in part.parameters():
            p.copy_(torch.eye(p.shape[-1]))
    return part


@pytest.mark.parametrize("pairing", ["halves", "adjacent"])
def test_the_identity_is_rope(pairing):
    long = FoPE(length=100_000, pairing=pairing)  # every pair turns
    part, plain = identity(built(long)), Rope(pairing=pairing).build(SHAPE)
    x, pos = vectors(2, 4, 5, 6), Positions.rows([5, 3], [40, 0])
    torch.testing.assert_close(part.query(x, pos), plain.query(x, pos))
    torch.testing.assert_close(part.key(x[:, :2], pos), plain.key(x[:, :2], pos))
    assert torch.equal(*(FoPE(spread=0.0).build(SHAPE).cos[i] for i in (0, 1)))


def test_the_formula_written_out():
    part, d, pos = built(FoPE(length=100_000)), 6, [3, 11]
    x = vectors(1, 4, 2, d)
    got = part.query(x, Positions.of(torch.tensor([pos])))
    for h in range(4):
        for t, p in enumerate(pos):
            cos = [math.cos(p * 10000 ** (-2 * n / d)) for n in range(3)]
            sin = [math.sin(p * 10000 ** (-2 * n / d)) for n in range(3)]
            for m in range(3):
                c = sum(cos[n] * part.cos[h // 2, n, m] for n in range(3))
                s = sum(sin[n] * part.sin[h // 2, n, m] for n in range(3))
                a, b = x[0, h, t, m], x[0, h, t, m + 3]
                wanted = torch.stack((a * c - b * s, b * c + a * s))
                torch.testing.assert_close(got[0, h, t, [m, m + 3]], wanted)


@pytest.mark.parametrize(("slow", "score"), [("still", 13), ("doubled", 26)])
def test_the_worked_number_of_a_pair_that_is_left_out(slow, score):
    """q = (1, 2), k = (3, 5): 13 where they stand still, 26 with a sine of 1."""
    shape = Shape(width=12, heads=1, kv_heads=1, key_dim=4, value_dim=4, rotary_dim=4)
    part = built(FoPE(length=50, slow=slow), shape)
    assert part.cos.shape == (1, 1, 1)  # ω = 1 turns within 50 positions, ω = 0.01 does not
    q, k = (torch.tensor([0, a, 0, b], dtype=F64).view(1, 1, 1, 4) for a, b in ((1.0, 2.0), (3.0, 5.0)))
    at = [Positions.of(torch.tensor([[p]])) for p in (7, 2)]
    assert (part.query(q, at[0]) * part.key(k, at[1])).sum().item() == pytest.approx(score)


def test_it_is_relative_only_while_the_mixes_are_the_identity():
    def scores(part: torch.nn.Module, by: int) -> torch.Tensor:
        pos = Positions.arange(1, 4, by)
        q, k = vectors(1, 4, 4, 6, 1), vectors(1, 4, 4, 6, 2)
        return part.query(q, pos) @ part.query(k, pos).transpose(-1, -2)

    plain, mixed = identity(built(FoPE())), built(FoPE())
    torch.testing.assert_close(scores(plain, 0), scores(plain, 50))
    assert (scores(mixed, 0) - scores(mixed, 50)).abs().max() > 1e-2


def test_a_rotary_key_for_all_heads_has_one_mix():
    assert FoPE().build(Shape(12, 4, 4, key_dim=10, value_dim=5, rotary_dim=6)).cos.shape[0] == 1
    assert FoPE().build(SHAPE).cos.shape[0] == SHAPE.kv_heads


def test_which_pairs_turn():
    """ω = 1 turns once in 6.28 positions, ω = 0.01 in 628.3; with a base of 1 all pairs are as the first."""
    assert [FoPE(length=n).turning(4) for n in (7, 628, 629)] == [1, 1, 2]
    assert FoPE(length=7, base=1.0).turning(4) == 2


def test_how_it_begins():
    """Around the identity, each mix as far from it whatever the number of pairs: 0.5 / √32 a number."""
    torch.manual_seed(0)
    part = FoPE(length=10**6, spread=0.5).build(Shape(256, 4, 4, 64, 64, 64))
    for mix in (part.cos, part.sin):
        away = mix - torch.eye(32)
        assert away.std().item() == pytest.approx(0.0884, rel=0.05)
        assert away.mean().abs() < 0.01


def test_what_it_costs():
    """Cosines and sines, of queries and of keys, are four products of (5 positions, 3 pairs) with (3, 3)."""
    size = PassSize(batch=2, queries=5, keys=9)
    part, one_key = FoPE(length=100_000), dataclasses.replace(SHAPE, key_dim=10)
    assert part.operations(AttentionWork(SHAPE, size, 9, 6)) == 4 * 2 * (2 * 5 * 3 * 3)  # of two mixes
    assert part.operations(AttentionWork(one_key, size, 9, 6)) == 4 * (2 * 5 * 3 * 3)


@pytest.mark.parametrize("wrong", [{"length": 6}, {"slow": "fast"}, {"pairing": "thirds"}, {"base": 0.0}])
def test_what_cannot_be(wrong):
    with pytest.raises(BadInput, match=next(iter(wrong))):
        FoPE(**wrong)


def test_gradients():
    part, x = built(FoPE(length=30)), vectors(1, 4, 3, 6).requires_grad_()
    assert torch.autograd.gradcheck(lambda x, *_: part.query(x, Positions.arange(1, 3, 2)), (x, part.cos, part.sin))


def test_a_model_in_steps():
    model = vt.build(vt.decoder(vocab=19, width=16, layers=2, heads=4, position=FoPE(20)), seed=0).double().eval()
    tokens, cache = torch.arange(9)[None], model.new_cache(1)
    with torch.no_grad():
        steps = torch.cat([model(tokens[:, i : i + 1], cache=cache) for i in range(9)], 1)
        torch.testing.assert_close(steps, model(tokens))
    assert dataclasses.replace(FoPE(), length=9) != FoPE()
