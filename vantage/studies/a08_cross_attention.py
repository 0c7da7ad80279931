"""A8: cross-attention: queries from one sequence, keys and values from another."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from vantage.attention import GroupedQuery
from vantage.figures import Figure, Heat
from vantage.studies.shared.attention import heat_cells, run_attention, sharp_attention, site_and_weights
from vantage.studies.shared.findings import compared, conclude, held
from vantage.studies.shared.models import F64, random_normal
from vantage.studies.study import Number, Progress, Result, Values
from vantage.studies.text import StudyText

TEXT = StudyText.beside(__file__)

WANTED = (2, 0, 1, 1)  # which source token each of the four targets asks for
SOURCES = 3
CLOSE = 1e-12


def run(values: Values, progress: Progress) -> Result:
    targets, sources = int(values["targets"]), int(values["sources"])
    copied, weights = _copies(float(values["gain"]))
    attention = sharp_attention(GroupedQuery(4, 2), 16, cross=True)
    x, source = 0.5 * random_normal(1, targets, 16), random_normal(1, sources, 16, seed=1)
    site, seen = site_and_weights(attention, x, source=source)
    index = torch.randperm(sources, generator=torch.Generator().manual_seed(0))
    moved = run_attention(attention, x, source=source[:, index])
    other = run_attention(attention, x, source=source + random_normal(1, sources, 16, seed=2))
    alone = run_attention(attention, x[:, -1:], source=source)
    out = run_attention(attention, x, source=source)
    right = [
        compared(
            "shape of the weights, targets × sources", " × ".join(map(str, seen.shape[2:])), f"{targets} × {sources}"
        ),
        compared("which attention ran", site, "cross"),
        held("the output changes with the source", bool((out - other).abs().max() > 1e-3)),
        compared("a target on its own, against among the others", _off(alone, out[:, -1:]), 0.0, within=CLOSE),
        compared("the source in another order", _off(moved, out), 0.0, within=CLOSE),
    ]
    also = [Number("largest distance of a copied value from the source's, with your gain", copied)]
    words = TEXT.conclusion(targets=targets, sources=sources)
    hand = Heat(
        "Built by hand: copies",
        "source",
        "target",
        heat_cells(weights, 3),
        x_ticks=tuple(f"x{i}" for i in range(SOURCES)),
        y_ticks=tuple(f"asks x{i}" for i in WANTED),
        written=True,
    )
    drawn = Heat("Random weights, head 0", "source", "target", heat_cells(seen[0, 0]))
    return conclude(words, [*right, *also], [Figure("cross", TEXT.caption("cross"), (hand, drawn))])


def _off(a: Tensor, b: Tensor) -> float:
    return float((a - b).abs().max())


def _copies(gain: float) -> tuple[float, Tensor]:
    """Keys are the source tokens and values five times them; each target asks for one, ``gain`` times over."""
    attention: Any = sharp_attention(GroupedQuery(1, head_dim=SOURCES, value_dim=SOURCES), SOURCES, cross=True)
    eye = torch.eye(SOURCES, dtype=F64)
    with torch.no_grad():
        attention.q.weight.copy_(gain * SOURCES**0.5 * eye)  # the module divides by the root again
        attention.kv.weight.copy_(torch.cat([eye, 5 * eye]))
        attention.out.weight.copy_(eye)
    x = eye[None, list(WANTED)]
    _, weights = site_and_weights(attention, x, source=eye[None])
    return _off(run_attention(attention, x, source=eye[None]), 5 * x), weights[0, 0]


STUDY = TEXT.study(
    "A8",
    run,
    (
        TEXT.parameter("targets", 5, 1, 32),
        TEXT.parameter("sources", 7, 2, 32),
        TEXT.parameter("gain", 6.0, 0.0, 60.0),
    ),
    seconds=0.2,
)
