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
from vantage.studies.study import Number, Parameter, Progress, Result, Study, Values

TEXT = (
    "The lighthouse stood at the end of the long pier, and every evening the keeper climbed its stairs to light the "
    "lamp. He had done so for thirty years. The sea was calm in summer and wild in winter, but the lamp burned in "
    "summer and in winter alike, and the ships that passed knew the light as one knows a friend. One night a boat "
    "without a name came in out of the fog. The keeper saw it first as a shadow, then as a sail, and went down the "
    "stairs to meet whoever it was. On the pier stood a child with a letter in one hand and a small brass key in the "
    "other. The letter was addressed to the keeper of the light, and the key, said the child, was for the door at "
    "the top of the stairs."
)
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
    found = atlas(
        model,
        TEXT,
        longest=tokens,
        progress=lambda done, of: progress(0.05 + 0.65 * done / of, f"layer {done} of {of}"),
    )
    progress(0.7, "the same shape without training")
    control = atlas(_untrained(model), read_tokens(model, TEXT)[:, :tokens])
    progress(0.85, "pictures")
    clear = {kind: found.of(kind)[0] for kind in KINDS if found.of(kind)}
    right = [
        held("some heads look at the token before", "previous" in clear),
        held("some heads look for what came after last time", "induction" in clear),
        held("heads of one layer are of different kinds", _most_kinds(found) > 1),
        held("heads without training are of these kinds", any(control.of(kind) for kind in KINDS), False),
    ]
    also = [Number(f"heads on {where}, of {len(found.heads)}", found.counts[kind]) for kind, where in KINDS.items()]
    also += [
        Number(f"clearest: {KINDS[kind]}, head {_name(head)}", head.measures[kind]) for kind, head in clear.items()
    ]
    also.append(Number("heads of none of these kinds", sum(not _kinds(head) for head in found.heads)))
    also.append(Number("most kinds in one layer", _most_kinds(found)))
    words = (
        f"On {found.tokens} tokens (a text, read twice) the {len(found.heads)} heads of SmolLM2 do different things: "
        + ", ".join(f"{found.counts[kind]} look at {where}" for kind, where in KINDS.items() if found.counts[kind])
        + ". Heads of the same shape with random weights do none of it."
    )
    figures = [_kinds_figure(found), *([_heads_figure(model, clear)] if clear else [])]
    return conclude(words, [*right, *also], figures)


def _untrained(model: Model) -> Model:
    """The first layers of the same model with fresh weights."""
    return build(replace(model.spec, layers=model.spec.layers[:LAYERS])).eval()


def _kinds(head: HeadFacts) -> list[str]:
    return [kind for kind in head.kinds if kind in KINDS]


def _name(head: HeadFacts) -> str:
    return f"{head.layer}.{head.head}"


def _most_kinds(found: Atlas) -> int:
    layers: dict[int, set[str]] = {}
    for head in found.heads:
        layers.setdefault(head.layer, set()).update(_kinds(head))
    return max(len(kinds) for kinds in layers.values())


def _kinds_figure(found: Atlas) -> Figure:
    layers = sorted({head.layer for head in found.heads})
    heads = 1 + max(head.head for head in found.heads)
    panels: list[Heat | Bars] = []
    for kind, where in list(KINDS.items())[:4]:
        grid: list[list[float | None]] = [[None] * heads for _ in layers]
        for head in found.heads:
            value = head.measures[kind]
            grid[head.layer][head.head] = None if math.isnan(value) else value  # a short text may repeat no token
        panels.append(Heat(f"Weight on {where}", "head", "layer", grid))
    counts = Bars("How many heads", "heads", tuple(KINDS), (("heads", [float(found.counts[kind]) for kind in KINDS]),))
    caption = (
        "Every cell is a head, its colour the mean weight it puts there. Most heads rest on the first token; a few "
        "have one clear purpose, and heads of the same layer differ."
    )
    return Figure("atlas", caption, (*panels, counts))


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
    return Figure("heads", "The clearest head of each kind on a short sentence that is read twice.", panels)


STUDY = Study(
    tag="A17",
    title="Heads find different structure",
    sources=("S0",),
    statement="With several heads, each can find a different structure in the text.",
    explanation=(
        "Nobody tells a head what to do; each learns what helps the layers above. In trained models some of the "
        "results have names. A previous-token head looks at the token before. Many heads rest on the first token, "
        "which is where weight goes that has nothing better to do. A head for the same token finds earlier copies of "
        "it. An induction head looks at what came after the last copy, which is how a model goes on with a phrase it "
        "has seen once.\n\n"
        "The study reads a text twice over with SmolLM2, a model of 135 million parameters, and measures for each of "
        "its 270 heads how much weight lies where. A head is counted for a kind if its mean weight there is above a "
        "threshold (see the head atlas in the documentation). The control is a model of the same shape with random "
        "weights: whatever it shows comes from the architecture, not from learning."
    ),
    run=run,
    parameters=(Parameter("tokens", 160, "tokens of the text that are read (twice)", 16, 160),),
    seconds=15.0,
    needs=("smollm2",),
)
