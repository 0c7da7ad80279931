"""A6: multi-head attention is heads one by one, side by side, and a projection."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from vantage.attention import GroupedQuery
from vantage.figures import Figure, Heat
from vantage.spec.masks import Causal, Everything, Mask, dense
from vantage.spec.positions import Positions
from vantage.studies.shared.attention import (
    heat_cells,
    run_attention,
    set_projections,
    sharp_attention,
    site_and_weights,
)
from vantage.studies.shared.findings import compared, conclude
from vantage.studies.shared.models import random_normal
from vantage.studies.study import Number, Progress, Result, Values
from vantage.studies.text import StudyText

TEXT = StudyText.beside(__file__)

CLOSE = 1e-12  # float64, sums in another order
SHOWN = 3  # heads in the picture


def run(values: Values, progress: Progress) -> Result:
    heads, head_dim, tokens = int(values["heads"]), int(values["head_dim"]), int(values["tokens"])
    width = heads * head_dim
    x = random_normal(1, tokens, width)
    masks: dict[str, Mask] = {"masked": Causal(), "unmasked": Everything()}
    right: list[Number] = []
    panels: list[Heat] = []
    for name, mask in masks.items():
        attention = sharp_attention(GroupedQuery(heads), width, mask)
        apart = _one_by_one(attention, x, heads, head_dim, mask) @ attention.out.weight.detach().T
        off = float((run_attention(attention, x) - apart).abs().max())
        right.append(compared(f"module against heads one by one, {name}: largest difference", off, 0.0, within=CLOSE))
        pos = Positions.arange(1, tokens)
        weights = site_and_weights(attention, x)[1][0].masked_fill(
            ~dense(mask, pos.against(pos))[0, 0], -torch.inf
        )  # empty cells
        panels += [Heat(f"head {h}, {name}", "key", "query", heat_cells(weights[h])) for h in range(min(heads, SHOWN))]
    attention = sharp_attention(GroupedQuery(heads), width)
    right.append(compared("width of one head", attention.shape.key_dim, width // heads))
    right.append(compared("width of the heads side by side", attention.out.in_features, width))
    also = [Number("parameters, whatever the number of heads", sum(p.numel() for p in attention.parameters()))]
    also += [
        Number(f"distance between the weights of heads 0 and {h}", _apart(attention, x, h)) for h in range(1, heads)
    ][:3]
    words = TEXT.conclusion(heads=heads, head_dim=head_dim)
    figure = Figure(
        "heads",
        TEXT.caption("heads"),
        tuple(panels),
    )
    return conclude(words, [*right, *also], [figure])


def _one_by_one(attention: Any, x: Tensor, heads: int, head_dim: int, mask: Mask) -> Tensor:
    """Each head as a module of its own, with its slice of the maps; their outputs side by side."""
    q, k, v = (w.T for w in attention.qkv.weight.detach().chunk(3))
    outs = []
    for h in range(heads):
        cut = slice(h * head_dim, (h + 1) * head_dim)
        one = sharp_attention(GroupedQuery(1, head_dim=head_dim), q.shape[0], mask)
        set_projections(one, q[:, cut], k[:, cut], v[:, cut])
        outs.append(run_attention(one, x)[..., :head_dim])
    return torch.cat(outs, -1)


def _apart(attention: Any, x: Tensor, head: int) -> float:
    """Half the sum of differences, mean over the rows: 0 is equal, 1 is that they share nothing."""
    weights = site_and_weights(attention, x)[1][0]
    return float((weights[0] - weights[head]).abs().sum(-1).mean() / 2)


STUDY = TEXT.study(
    "A6",
    run,
    (
        TEXT.parameter("heads", 4, 1, 8),
        TEXT.parameter("head_dim", 4, 1, 32),
        TEXT.parameter("tokens", 8, 2, 64),
    ),
    seconds=0.3,
)
