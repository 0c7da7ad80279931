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
from vantage.studies.study import Number, Parameter, Progress, Result, Study, Values

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
        made = sharp_attention(GroupedQuery(heads), width, mask)
        apart = _one_by_one(made, x, heads, head_dim, mask) @ made.out.weight.detach().T
        off = float((run_attention(made, x) - apart).abs().max())
        right.append(compared(f"module against heads one by one, {name}: largest difference", off, 0.0, within=CLOSE))
        pos = Positions.arange(1, tokens)
        weights = site_and_weights(made, x)[1][0].masked_fill(
            ~dense(mask, pos.against(pos))[0, 0], -torch.inf
        )  # empty cells
        panels += [Heat(f"head {h}, {name}", "key", "query", heat_cells(weights[h])) for h in range(min(heads, SHOWN))]
    made = sharp_attention(GroupedQuery(heads), width)
    right.append(compared("width of one head", made.shape.key_dim, width // heads))
    right.append(compared("width of the heads side by side", made.out.in_features, width))
    also = [Number("parameters, whatever the number of heads", sum(p.numel() for p in made.parameters()))]
    also += [Number(f"distance between the weights of heads 0 and {h}", _apart(made, x, h)) for h in range(1, heads)][
        :3
    ]
    words = (
        f"{heads} modules of one head each, with {head_dim} columns of the big maps, put side by side and multiplied "
        "by W^O, give what the module gives, with the causal mask and without."
    )
    figure = Figure(
        "heads",
        "The same tokens seen by each head, with the causal mask and without: every head has weights of its own.",
        tuple(panels),
    )
    return conclude(words, [*right, *also], [figure])


def _one_by_one(made: Any, x: Tensor, heads: int, head_dim: int, mask: Mask) -> Tensor:
    """Each head as a module of its own, with its slice of the maps; their outputs side by side."""
    q, k, v = (w.T for w in made.qkv.weight.detach().chunk(3))
    outs = []
    for h in range(heads):
        cut = slice(h * head_dim, (h + 1) * head_dim)
        one = sharp_attention(GroupedQuery(1, head_dim=head_dim), q.shape[0], mask)
        set_projections(one, q[:, cut], k[:, cut], v[:, cut])
        outs.append(run_attention(one, x)[..., :head_dim])
    return torch.cat(outs, -1)


def _apart(made: Any, x: Tensor, head: int) -> float:
    """Half the sum of differences, mean over the rows: 0 is equal, 1 is that they share nothing."""
    weights = site_and_weights(made, x)[1][0]
    return float((weights[0] - weights[head]).abs().sum(-1).mean() / 2)


STUDY = Study(
    tag="A6",
    title="Multi-head attention",
    sources=("S2",),
    statement=(
        "Instead of one attention of width d there are h of width d/h, each with projections of its own. Their "
        "outputs are put side by side and projected once more with W^O. It works with a mask and without."
    ),
    explanation=(
        "One softmax gives one set of weights for each token: it can look at one thing, or at a mixture. Several "
        "heads look at several things at once. Because each is only d/h wide, all of them together cost as much as "
        "one of full width, and have as many parameters.\n\n"
        "Implementations compute all heads in a few large products and cut the result into heads afterwards. The "
        "study undoes that: it takes the columns of each head out of the large maps, runs a module with one head for "
        "each, puts the outputs side by side and multiplies by W^O. What comes out is the module's output to the "
        "last digits, so the large products hide nothing."
    ),
    run=run,
    parameters=(
        Parameter("heads", 4, "heads", 1, 8),
        Parameter("head_dim", 4, "width of a head", 1, 32),
        Parameter("tokens", 8, "tokens", 2, 64),
    ),
    seconds=0.3,
)
