"""Normalisers: the worked numbers, torch's and the authors' formulas, rows that see nothing, and gradients."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import vantage as vt
from tests.position.helpers import F64, vectors
from vantage.errors import BadInput, Refused
from vantage.spec.masks import Causal
from vantage.spec.normalisers import NORMALISERS, Argmax, Entmax15, OffByOne, Sigmoid, Softmax, Sparsemax, StickBreaking
from vantage.spec.positions import Pair, Positions

INF = float("inf")
SCORES = torch.tensor([1.5, 1.0, 0.0], dtype=F64)[None, None, None]


def pair_of(queries: int, keys: int) -> Pair:
    return Positions.arange(1, queries, keys - queries).against(Positions.arange(1, keys))


@pytest.mark.parametrize(
    ("normaliser", "weights"),
    [
        (Softmax(), [0.5465, 0.3315, 0.1220]),
        (OffByOne(), [0.4871, 0.2955, 0.1087]),
        (Sparsemax(), [0.75, 0.25, 0.0]),
        (Argmax(), [1.0, 0.0, 0.0]),
        (Entmax15(), [0.6712, 0.3240, 0.0048]),
        (Sigmoid(), [0.5990, 0.4754, 0.2500]),
        (Sigmoid(length=3), [0.5990, 0.4754, 0.2500]),
    ],
)
def test_the_worked_numbers(normaliser, weights):
    got = normaliser(SCORES)[0][0, 0, 0]
    torch.testing.assert_close(got, torch.tensor(weights, dtype=F64), atol=5e-5, rtol=0)


def test_scores_that_differ_by_a_rounding_share_the_weight_of_hard_attention():
    """The same token at two places: how a pass was cut must not decide which of them is kept by a cache."""
    near = torch.tensor([[[[2.0, 2.0 + 1e-13, 1.0, -INF], [-INF] * 4]]], dtype=F64)
    weights, _ = Argmax()(near)
    torch.testing.assert_close(weights[0, 0], torch.tensor([[0.5, 0.5, 0, 0], [0, 0, 0, 0]], dtype=F64))
    for scale in (1.0, 1e-15):  # however small the scores are
        other = scale * torch.tensor([[[[2.0, 2.0 + 1e-9, -1.0]]]], dtype=F64)
        assert Argmax()(other)[0].tolist() == [[[[0.0, 1.0, 0.0]]]]


def test_stick_breaking_by_hand():
    """σ(s) = .5, .75, .25 with the last nearest: .09375 .5625 .25. The query's own key is not seen."""
    scores = torch.logit(torch.tensor([0.5, 0.75, 0.25, 0.9], dtype=F64))[None, None, None]
    weights, _ = StickBreaking()(scores, None, pair_of(1, 4))
    torch.testing.assert_close(weights[0, 0, 0], torch.tensor([0.09375, 0.5625, 0.25, 0], dtype=F64))


def stick_breaking(scores: Tensor, order: Tensor, query: int) -> Tensor:
    """Key by key, from the nearest back."""
    weights, left = torch.zeros_like(scores), 1.0
    for j in sorted(range(len(scores)), key=lambda j: -int(order[j])):
        if 0 <= order[j] < query and scores[j] > -INF:
            weights[j] = left * torch.sigmoid(scores[j])
            left = left * (1 - torch.sigmoid(scores[j]))
    return weights


def test_stick_breaking_in_any_arrangement():
    order = torch.tensor([[4, 0, -1, 6, 2], [1, 5, 3, 0, -1]])
    q_pos, k_pos = Positions.of(torch.tensor([[5, 6], [5, 6]])), Positions.of(order)
    scores = vectors(2, 3, 2, 5).masked_fill((order < 0)[:, None, None], -INF)
    scores = scores.masked_fill(order[:, None, None] > q_pos.order[:, None, :, None], -INF)
    weights, _ = StickBreaking()(scores, None, q_pos.against(k_pos))
    for b in range(2):
        for h in range(3):
            for i, query in enumerate((5, 6)):
                torch.testing.assert_close(weights[b, h, i], stick_breaking(scores[b, h, i], order[b], query))


def test_off_by_one_is_torchs_extra_zero_key():
    """``add_zero_attn`` adds a key and a value of zeros."""
    theirs = torch.nn.MultiheadAttention(8, 2, bias=False, add_zero_attn=True, batch_first=True, dtype=F64)
    x = vectors(1, 1, 5, 8)[:, 0]
    q, k, _ = (x @ w.T for w in theirs.in_proj_weight.chunk(3))
    scores = torch.einsum("bihd,bjhd->bhij", q.unflatten(-1, (2, 4)), k.unflatten(-1, (2, 4))) / 2
    _, want = theirs(x, x, x, average_attn_weights=False)
    torch.testing.assert_close(OffByOne()(scores)[0], want[..., :-1])


def test_sparsemax_is_the_nearest_point_of_the_simplex():
    scores = vectors(1, 2, 4, 6)
    weights, tau = Sparsemax()(scores)
    torch.testing.assert_close(weights.sum(-1), torch.ones(1, 2, 4, dtype=F64))
    torch.testing.assert_close(weights, (scores - tau[..., None]).clamp_min(0))
    best = (scores - weights).square().sum(-1)
    for seed in range(50):
        other = vectors(1, 2, 4, 6, seed=seed + 1).softmax(-1)
        assert (best <= (scores - other).square().sum(-1) + 1e-12).all()


@pytest.mark.parametrize("scale", [0.1, 1.0, 30.0])
def test_entmax_is_the_root_that_bisection_finds(scale):
    scores = scale * vectors(2, 3, 4, 9)
    scores[0, 0, 0, :4] = 2.0  # equals
    scores[0, 0, 1, 2:] = -INF
    half = scores / 2
    low, high = half.amax(-1, keepdim=True) - 1, half.amax(-1, keepdim=True)
    for _ in range(80):
        middle = (low + high) / 2
        over = (half - middle).clamp_min(0).square().sum(-1, keepdim=True) > 1
        low, high = torch.where(over, middle, low), torch.where(over, high, middle)
    weights, tau = Entmax15()(scores)
    torch.testing.assert_close(weights, (half - low).clamp_min(0).square())
    torch.testing.assert_close(tau, low[..., 0])
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 3, 4, dtype=F64))


def test_what_sigmoid_counts_is_what_a_query_sees():
    scores = torch.tensor([[1.5, 1.0, 0.0, 2.0]], dtype=F64)[None, None]
    hidden = scores.masked_fill(torch.tensor([False, False, False, True]), -INF)
    torch.testing.assert_close(Sigmoid()(hidden)[0][..., :3], Sigmoid()(SCORES)[0])
    assert Sigmoid()(hidden)[0][..., 3] == 0
    with pytest.raises(BadInput, match="length=0"):
        Sigmoid(0)


@pytest.mark.parametrize("name", NORMALISERS)
def test_a_row_that_sees_nothing_is_zero(name):
    scores = torch.full((1, 1, 2, 3), -INF, dtype=F64)
    scores[..., 0, 0] = 1.0
    weights, _ = NORMALISERS[name].make()(scores, None, pair_of(2, 3))
    assert weights[0, 0, 1].tolist() == [0, 0, 0]
    assert weights.isfinite().all()


@pytest.mark.parametrize("name", ["softmax", "off-by-one", "sparsemax", "entmax", "sigmoid", "stick-breaking"])
def test_gradients(name):
    normaliser = NORMALISERS[name].make()
    scores = vectors(1, 2, 3, 5).requires_grad_()
    hidden = torch.ones(3, 5, dtype=torch.bool).tril(2).logical_not()

    def weights(s: Tensor) -> Tensor:
        return normaliser(s.masked_fill(hidden, -INF), None, pair_of(3, 5))[0]

    assert torch.autograd.gradcheck(weights, scores)


@pytest.mark.parametrize("sinks", [torch.tensor([0.3, -1.0]), torch.randn(1, 2, 3)])
def test_sinks_for_each_head_or_for_each_query(sinks):
    from vantage.kernels.reference import normalise

    scores, sinks = vectors(1, 2, 3, 5), sinks.double()
    weights, lse = normalise(scores, sinks, Softmax())
    wide = sinks[None, :, None].expand(1, 2, 3) if sinks.dim() == 1 else sinks
    whole = torch.cat([scores, wide[..., None]], -1)
    torch.testing.assert_close(weights, whole.softmax(-1)[..., :-1])
    torch.testing.assert_close(lse, whole.logsumexp(-1))


def test_what_cannot_be():
    with pytest.raises(Refused, match="Sparsemax has no sinks"):
        Sparsemax()(SCORES, torch.zeros(1, 1, 1, 1))
    attention = vt.GroupedQuery(2, scores=vt.Scores(normalise=StickBreaking()))
    with pytest.raises(Refused, match="StickBreaking needs causal attention"):
        vt.build(vt.encoder(vocab=9, width=8, layers=1, attention=attention))
    vt.build(vt.decoder(vocab=9, width=8, layers=1, attention=attention, mask=Causal(), position="none"))


def test_a_normaliser_of_ones_own_is_saved_and_loaded(tmp_path):
    from vantage.checkpoints.spec_json import from_json, to_json

    for name in NORMALISERS:
        attention = vt.GroupedQuery(2, scores=vt.Scores(normalise=NORMALISERS[name].make()))
        spec = vt.decoder(vocab=9, width=8, layers=1, attention=attention, position="none")
        assert from_json(to_json(spec), most=1) == spec
