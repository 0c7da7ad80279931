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
from vantage.studies.study import Number, Parameter, Progress, Result, Study, Values

WANTED = (2, 0, 1, 1)  # which source token each of the four targets asks for
SOURCES = 3
CLOSE = 1e-12


def run(values: Values, progress: Progress) -> Result:
    targets, sources = int(values["targets"]), int(values["sources"])
    copied, weights = _copies(float(values["gain"]))
    made = sharp_attention(GroupedQuery(4, 2), 16, cross=True)
    x, source = 0.5 * random_normal(1, targets, 16), random_normal(1, sources, 16, seed=1)
    site, seen = site_and_weights(made, x, source=source)
    index = torch.randperm(sources, generator=torch.Generator().manual_seed(0))
    moved = run_attention(made, x, source=source[:, index])
    other = run_attention(made, x, source=source + random_normal(1, sources, 16, seed=2))
    alone = run_attention(made, x[:, -1:], source=source)
    out = run_attention(made, x, source=source)
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
    words = (
        f"{targets} queries over {sources} keys: each target has weights over the source and mixes its values. "
        "Targets do not see each other, and the order of the source makes no difference, as nothing here says where "
        "a token stands."
    )
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
    caption = (
        "Left: keys are the source tokens, and each target asks for one of them. Right: a random head. The matrix is "
        "as high as there are targets and as wide as there are sources."
    )
    return conclude(words, [*right, *also], [Figure("cross", caption, (hand, drawn))])


def _off(a: Tensor, b: Tensor) -> float:
    return float((a - b).abs().max())


def _copies(gain: float) -> tuple[float, Tensor]:
    """Keys are the source tokens and values five times them; each target asks for one, ``gain`` times over."""
    made: Any = sharp_attention(GroupedQuery(1, head_dim=SOURCES, value_dim=SOURCES), SOURCES, cross=True)
    eye = torch.eye(SOURCES, dtype=F64)
    with torch.no_grad():
        made.q.weight.copy_(gain * SOURCES**0.5 * eye)  # the module divides by the root again
        made.kv.weight.copy_(torch.cat([eye, 5 * eye]))
        made.out.weight.copy_(eye)
    x = eye[None, list(WANTED)]
    _, weights = site_and_weights(made, x, source=eye[None])
    return _off(run_attention(made, x, source=eye[None]), 5 * x), weights[0, 0]


STUDY = Study(
    tag="A8",
    title="Cross-attention",
    sources=("S0", "S2"),
    statement=(
        "In cross-attention the queries are projections of one sequence and the keys and values projections of "
        "another, such as what an encoder has made of the source of a translation."
    ),
    explanation=(
        "Attention never asked that queries and keys come from the same place. With N queries from the target and M "
        "keys and values from the source, the weights are an N × M matrix: each row says how much a target token "
        "takes from each source token. This is what A1 to A3 do in a recurrent network, with the decoder's state as "
        "the query.\n\n"
        "The study runs the module that encoder-decoders here are made of. The left picture is built by hand: keys "
        "are the source tokens themselves and each target asks for one, so with a high gain it copies that token's "
        "value. The right one has random maps. Nothing is masked, each target is on its own, and the source could "
        "come in any order: where its tokens stand must be told by the encoder."
    ),
    run=run,
    parameters=(
        Parameter("targets", 5, "target tokens", 1, 32),
        Parameter("sources", 7, "source tokens", 2, 32),
        Parameter("gain", 6.0, "how strongly the head that was built by hand asks", 0.0, 60.0),
    ),
    seconds=0.2,
)
