"""A17: heads of a trained model specialise."""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from vantage.figures import Bars, Figure, Heat
from vantage.inspect import Atlas, HeadFacts, atlas, capture
from vantage.inspect.select import read_tokens
from vantage.model import Model, build
from vantage.studies.shared.findings import conclude, held
from vantage.studies.shared.models import smollm2
from vantage.studies.study import Number, Progress, Result, Values
from vantage.studies.text import StudyText

TEXT = StudyText.beside(__file__)

STORY = TEXT.passage("Sample text")
SHOWN = "The cat sat on the mat."  # read twice
KINDS = {  # where the weight of such a head lies
    "previous": "the token before",
    "first": "the first token",
    "same": "the same token, earlier",
    "induction": "what came after last time",
    "itself": "the token itself",
}
LAYERS = 3  # of the untrained control


def run(values: Values, progress: Progress) -> Result:
    model = smollm2()
    tokens = int(values["tokens"])
    progress(0.05, "reading the text")
    head_atlas = atlas(
        model,
        STORY,
        longest=tokens,
        progress=lambda done, of: progress(0.05 + 0.65 * done / of, f"layer {done} of {of}"),
    )
    progress(0.7, "the same shape without training")
    control = atlas(_untrained(model), read_tokens(model, STORY)[:, :tokens])
    progress(0.85, "pictures")
    clear = {kind: head_atlas.of(kind)[0] for kind in KINDS if head_atlas.of(kind)}
    right = [
        held("some heads look at the token before", "previous" in clear),
        held("some heads look for what came after last time", "induction" in clear),
        held("heads of one layer are of different kinds", _most_kinds(head_atlas) > 1),
        held("heads without training are of these kinds", any(control.of(kind) for kind in KINDS), False),
    ]
    also = [
        Number(f"heads on {where}, of {len(head_atlas.heads)}", head_atlas.counts[kind])
        for kind, where in KINDS.items()
    ]
    also += [
        Number(f"clearest: {KINDS[kind]}, head {_name(head)}", head.measures[kind]) for kind, head in clear.items()
    ]
    also.append(Number("heads of none of these kinds", sum(not _kinds(head) for head in head_atlas.heads)))
    also.append(Number("most kinds in one layer", _most_kinds(head_atlas)))
    kinds = [f"{head_atlas.counts[kind]} look at {where}" for kind, where in KINDS.items() if head_atlas.counts[kind]]
    words = TEXT.conclusion(tokens=head_atlas.tokens, heads=len(head_atlas.heads), kinds=", ".join(kinds))
    figures = [_kinds_figure(head_atlas), *([_heads_figure(model, clear)] if clear else [])]
    return conclude(words, [*right, *also], figures)


def _untrained(model: Model) -> Model:
    """The first layers of the same model with fresh weights."""
    return build(replace(model.spec, layers=model.spec.layers[:LAYERS])).eval()


def _kinds(head: HeadFacts) -> list[str]:
    return [kind for kind in head.kinds if kind in KINDS]


def _name(head: HeadFacts) -> str:
    return f"{head.layer}.{head.head}"


def _most_kinds(head_atlas: Atlas) -> int:
    layers: dict[int, set[str]] = {}
    for head in head_atlas.heads:
        layers.setdefault(head.layer, set()).update(_kinds(head))
    return max(len(kinds) for kinds in layers.values())


def _kinds_figure(head_atlas: Atlas) -> Figure:
    layers = sorted({head.layer for head in head_atlas.heads})
    heads = 1 + max(head.head for head in head_atlas.heads)
    panels: list[Heat | Bars] = []
    for kind, where in list(KINDS.items())[:4]:
        grid: list[list[float | None]] = [[None] * heads for _ in layers]
        for head in head_atlas.heads:
            value = head.measures[kind]
            grid[head.layer][head.head] = None if math.isnan(value) else value  # a short text may repeat no token
        panels.append(Heat(f"Weight on {where}", "head", "layer", grid))
    counts = Bars(
        "How many heads", "heads", tuple(KINDS), (("heads", [float(head_atlas.counts[kind]) for kind in KINDS]),)
    )
    return Figure("atlas", TEXT.caption("atlas"), (*panels, counts))


@torch.inference_mode()
def _heads_figure(model: Model, clear: dict[str, HeadFacts]) -> Figure:
    once = read_tokens(model, SHOWN)
    twice = torch.cat([once, once], 1)
    layers = sorted({head.layer for head in clear.values()})
    seen = capture(model, twice, layers=layers)
    names = tuple(token.replace("Ġ", " ").strip() for token in seen.tokens())
    panels = tuple(
        Heat(
            f"Head {_name(head)}: {KINDS[kind]}",
            "key",
            "query",
            [
                [float(w) if k <= q else None for k, w in enumerate(row)]
                for q, row in enumerate(seen.weights(head.layer, head.head))
            ],
            x_ticks=names,
            y_ticks=names,
        )
        for kind, head in clear.items()
    )
    return Figure("heads", TEXT.caption("heads"), panels)


STUDY = TEXT.study(
    "A17",
    run,
    (TEXT.parameter("tokens", 160, 16, 160),),
    seconds=15.0,
    needs=("smollm2",),
)
