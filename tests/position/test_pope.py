"""PoPE: worked by hand, the formula pair by pair, only distances count, narrow caches, gradients, costs, refusals."""

from __future__ import annotations

from math import cos, log, pi

import pytest
import torch
import torch.nn.functional as F

import vantage as vt
from tests.attention.model_checks import TOKENS, check_cached, check_costs, check_saved, check_taken_back
from tests.position.helpers import F64, SHAPE, built, check_gradients, moved, vectors
from vantage.conformance.scenarios import sharpen
from vantage.errors import BadInput, Refused
from vantage.inspect.kernels import kernel_choices
from vantage.position import PoPE
from vantage.spec.parts import Shape
from vantage.spec.positions import Positions

ONE = Shape(width=1, heads=1, kv_heads=1, key_dim=1, value_dim=1, rotary_dim=1)


@torch.no_grad()
def test_worked_by_hand():
    """Radii of 1 (softplus(ln(e - 1)) = 1) and one frequency, 1: the score is cos(i - j - δ), δ no lower than -2π."""
    part = built(PoPE(), ONE)
    x, pos = torch.full((1, 1, 4, 1), log(torch.e - 1), dtype=F64), Positions.arange(1, 4)
    for delta, held in ((0.0, 0.0), (-0.5, -0.5), (0.7, 0.0), (-9.0, -2 * pi)):
        part.delta.fill_(delta)
        q, k = part.query(x, pos), part.key(x, pos)
        assert q.shape == (1, 1, 4, 2)
        assert float(q[0, 0, 3] @ k[0, 0, 1]) == pytest.approx(cos(2 - held))


@torch.no_grad()
def test_the_formula_pair_by_pair():
    part, pos = built(PoPE(base=50.0)), Positions.of(torch.tensor([[3, 0, 11, 7]]))
    q, k = vectors(1, 4, 4, 6, seed=1), vectors(1, 2, 4, 6, seed=2)
    turned_q, turned_k = part.query(q, pos), part.key(k, pos)
    rate = torch.tensor([50.0 ** (-c / 6) for c in range(6)], dtype=F64)
    delta = part.delta.clamp(-2 * pi, 0)
    for h in range(4):
        for i in range(4):
            for j in range(4):
                apart = (pos.pos[0, i] - pos.pos[0, j]) * rate - delta[h // 2]
                want = (F.softplus(q[0, h, i]) * F.softplus(k[0, h // 2, j]) * apart.cos()).sum()
                torch.testing.assert_close(turned_q[0, h, i] @ turned_k[0, h // 2, j], want)


@torch.no_grad()
def test_only_distances_count():
    part, pos = built(PoPE()), Positions.arange(1, 5)
    q, k = vectors(1, 4, 5, 6, seed=1), vectors(1, 2, 5, 6, seed=2)

    def scores(where: Positions) -> torch.Tensor:
        return part.query(q, where) @ part.key(k, where).repeat_interleave(2, 1).mT

    torch.testing.assert_close(scores(moved(pos, 90_000)), scores(pos), rtol=1e-9, atol=1e-9)


def test_gradients():
    part, pos = built(PoPE()), Positions.arange(1, 3)
    torch.nn.init.uniform_(part.delta, -5.0, -1.0)  # inside its bounds, beyond which it has none
    q, k = vectors(1, 4, 3, 6, seed=1), vectors(1, 2, 3, 6, seed=2)
    check_gradients(part, lambda: part.query(q, pos) @ part.key(k, pos).repeat_interleave(2, 1).mT)


def test_where_the_angles_begin():
    assert PoPE().build(SHAPE).delta.shape == (2, 6)
    assert float(PoPE().build(SHAPE).delta.detach().abs().max()) == 0
    drawn = PoPE(uniform=True).build(Shape(64, 8, 8, 64, 64, 64)).delta.detach()
    assert -2 * pi <= float(drawn.min()) < -6
    assert -0.3 < float(drawn.max()) <= 0


def model(**options) -> vt.Model:
    spec = vt.decoder(vocab=19, width=32, layers=2, heads=4, kv_heads=2, position="pope", **options)
    return sharpen(vt.build(spec).double())


@torch.no_grad()
def test_a_cache_holds_keys_as_they_come():
    """It is as large as for RoPE, and its keys are the layer's own maps."""
    m = model()
    cache = m.new_cache(2, capacity=23)
    rope = vt.build(vt.decoder(vocab=19, width=32, layers=2, heads=4, kv_heads=2)).double()
    assert cache.bytes == rope.new_cache(2, capacity=23).bytes
    m(TOKENS, cache=cache)
    x = m.blocks[0].steps[0].before(m.embed(TOKENS, Positions.arange(2, 23)))
    torch.testing.assert_close(cache.layers[0].view().k, m.blocks[0].sublayers[0].project(x)[1])


@pytest.mark.parametrize("kind", ["contiguous", "paged"])
def test_cached_and_taken_back(kind: str):
    check_cached(model(), kind)
    check_taken_back(model(), kind, (7, 9))


def test_a_window_in_a_ring():
    check_cached(model(window=5), "ring")


@pytest.mark.parametrize("attention", [vt.GroupedQuery(4, 2), vt.Differential(4)], ids=["grouped", "differential"])
@torch.no_grad()
def test_heads_that_keep_keys_of_their_own(attention: object):
    """A cache that forgets nothing yet is one that forgets nothing: each head's keys are widened where they stand."""
    m = sharpen(vt.build(vt.decoder(vocab=19, width=32, layers=2, attention=attention, position="pope")).double())
    cache = m.new_cache(2, kind=vt.HeavyHitterCache(30, 4), length=64)
    got = torch.cat([m(part, cache=cache) for part in TOKENS.split((9, 5, 9), 1)], 1)
    torch.testing.assert_close(got, m(TOKENS), rtol=0, atol=1e-9)


def test_costs_are_those_that_torch_counts():
    """Scores are twice as wide."""
    check_costs(vt.decoder(vocab=19, width=32, layers=2, heads=4, kv_heads=2, position="pope"))
    check_costs(vt.decoder(vocab=19, width=32, layers=1, attention=vt.Differential(4), position="pope"))


def test_saved_and_loaded(tmp_path):
    check_saved(model(), tmp_path)


@torch.no_grad()
def test_captured_and_taken_apart():
    m = model()
    assert vt.capture(m, TOKENS[:1], verify=True).error < 1e-12
    split = vt.inspect.decompose(m, TOKENS[:1], layer=1)
    assert split.error < 1e-12
    assert [term.name for term in split.terms] == ["content", "PoPE"]


def test_what_runs_it():
    """It is a transform before the kernel, so whichever runs RoPE with heads of twice the width runs it."""
    sizes = {"vocab": 19, "width": 32, "layers": 1}
    polar = vt.build(vt.decoder(**sizes, heads=4, position="pope"))
    wide = vt.build(vt.decoder(**sizes, attention=vt.GroupedQuery(4, head_dim=16, value_dim=8)))
    mine, theirs = (kernel_choices(m, context=512, device="cpu")[0].kernel for m in (polar, wide))
    assert mine == theirs != "reference"


def test_what_does_not_fit():
    PoPE(base=1.5)
    with pytest.raises(BadInput, match="base=1"):
        PoPE(base=1.0)
    latent = vt.Latent(2, kv_rank=8, nope_dim=4, rope_dim=4, value_dim=4, norm=vt.RMSNorm())
    with pytest.raises(Refused, match="only 4 of 8 numbers"):
        vt.build(vt.decoder(vocab=9, width=16, layers=1, attention=latent, position="pope"))
    with pytest.raises(Refused, match="PoPE widens keys when they are read, and in HeavilyCompressed"):
        vt.decoder(vocab=9, width=16, layers=1, attention=vt.HeavilyCompressed(2), position="pope")
