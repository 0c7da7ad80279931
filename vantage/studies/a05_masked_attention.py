"""A5: masked attention, and where the mask may stand."""

from __future__ import annotations

import torch
from torch import Tensor

from vantage.attention import GroupedQuery
from vantage.figures import Figure, Heat
from vantage.spec.masks import Causal, dense
from vantage.spec.positions import Positions
from vantage.studies.shared.attention import attend, heat_cells, sharp_attention, site_and_weights
from vantage.studies.shared.findings import compared, conclude, held
from vantage.studies.shared.models import F64, random_normal
from vantage.studies.study import Number, Progress, Result, Values
from vantage.studies.text import StudyText

TEXT = StudyText.beside(__file__)

FEW = (6, 4)  # tokens, width: not the same, so that QKᵀ and QᵀK differ in shape
FINITE = -10.0  # a "large negative number", too small to hide anything


def run(values: Values, progress: Progress) -> Result:
    tokens, width = int(values["tokens"]), int(values["width"])
    M = _mask(tokens)
    attention = sharp_attention(GroupedQuery(1), width)
    x = 0.6 * random_normal(1, tokens, width)
    with torch.no_grad():
        q, k, _ = (t[0, 0] for t in attention.project(x))
    site, weights = site_and_weights(attention, x)
    w = weights[0, 0]
    other = sharp_attention(GroupedQuery(1), width, cross=True)
    across, _ = site_and_weights(other, x, source=random_normal(1, tokens + 1, width, seed=1))
    above = torch.ones(tokens, tokens).triu(1).bool()
    right = [
        held("M is 0 where j ≤ i and −∞ where j > i", bool((M[~above] == 0).all() and (M[above] == -torch.inf).all())),
        compared("largest weight above the diagonal", float(w[above].max()), 0.0),
        *(_forms(name, dtype, tokens, width) for name, dtype in (("float64", F64), ("float32", torch.float32))),
    ]
    slips = [
        compared(f"shape of the scores of {FEW[0]} tokens, {FEW[1]} wide, and of QᵀK", *_shapes()),
        compared("which attention the mask is in", site, across),
    ]
    also = [
        Number("largest distance of a row's sum from 1", float((w.sum(-1) - 1).abs().max())),
        Number(f"largest difference of the two forms with {FINITE:g} for −∞", _finite(tokens, width)),
    ]
    words = TEXT.conclusion(shape=_shapes()[0], transposed_shape=_shapes()[1])
    return conclude(words, [*right, *also], _figures(q @ k.T * attention.scorer.scale, w, M), slips)


def _mask(tokens: int) -> Tensor:
    """M, from the mask that models use."""
    pos = Positions.arange(1, tokens)
    return torch.zeros(tokens, tokens, dtype=F64).masked_fill(~dense(Causal(), pos.against(pos))[0, 0], -torch.inf)


def _two_forms(M: Tensor, tokens: int, width: int) -> tuple[Tensor, Tensor]:
    """The output with softmax((QKᵀ + M) / √d), and with softmax(QKᵀ / √d + M)."""
    q, k, v = (random_normal(tokens, width, seed=s).to(M.dtype) for s in (2, 3, 4))
    inside = attend(q, k, v, scale=width**-0.5, bias=M * width**-0.5)[0]
    return inside, attend(q, k, v, scale=width**-0.5, bias=M)[0]


def _forms(name: str, dtype: torch.dtype, tokens: int, width: int) -> Number:
    inside, outside = _two_forms(_mask(tokens).to(dtype), tokens, width)
    return held(f"both places of the mask give the same bits in {name}", torch.equal(inside, outside))


def _finite(tokens: int, width: int) -> float:
    M = _mask(tokens)
    inside, outside = _two_forms(torch.where(M == 0, 0.0, FINITE).to(F64), tokens, width)
    return float((inside - outside).abs().max())


def _shapes() -> tuple[str, str]:
    """The shape of a module's scores, and that of QᵀK with its queries and keys."""
    tokens, width = FEW
    attention, x = sharp_attention(GroupedQuery(1), width), random_normal(1, tokens, width)
    q, k, _ = (t[0, 0] for t in attention.project(x))
    both = (site_and_weights(attention, x)[1][0, 0], q.T @ k)
    ours, product = (" × ".join(map(str, t.shape)) for t in both)
    return ours, product


def _figures(scores: Tensor, weights: Tensor, M: Tensor) -> list[Figure]:
    written = len(M) <= 8
    panels = (
        Heat("QKᵀ/√d", "key", "query", heat_cells(scores, 2), diverging=True, written=written),
        Heat("QKᵀ/√d + M", "key", "query", heat_cells(scores + M, 2), diverging=True, written=written),
        Heat("weights", "key", "query", heat_cells(weights, 2), written=written),
    )
    return [Figure("mask", TEXT.caption("mask"), panels)]


STUDY = TEXT.study(
    "A5",
    run,
    (
        TEXT.parameter("tokens", 6, 2, 64),
        TEXT.parameter("width", 4, 2, 64),
    ),
    seconds=0.2,
)
