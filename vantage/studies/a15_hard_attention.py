"""A15: how far a node sees through hard attention."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from vantage.attention import GroupedQuery
from vantage.figures import Figure, Heat, Line, Lines
from vantage.model import Model, build, decoder
from vantage.spec.model import Scores
from vantage.spec.normalisers import Argmax, Softmax
from vantage.spec.parts import BiasInputs, Pointwise, Shape
from vantage.spec.positions import Place
from vantage.studies.shared.findings import compared, conclude, held
from vantage.studies.shared.models import random_normal
from vantage.studies.study import Number, Progress, Result, Values
from vantage.studies.text import StudyText

TEXT = StudyText.beside(__file__)

HEADS = (1, 2, 3)
WIDTH = 16
ABOVE = 1e6  # what the offset that a head is told to look at is preferred by
NODES = 8  # nodes asked in a random stack


@dataclass(frozen=True)
class LookBack:
    """A score bias that tells head h to look (h + 1)·step tokens back, whatever stands there."""

    step: int

    shared = False  # no annotation: not a field

    def build(self, shape: Shape) -> nn.Module:
        return _Looks(self.step)


class _Looks(nn.Module):
    def __init__(self, step: int):
        super().__init__()
        self.step = step

    def at(self, inputs: BiasInputs) -> _Offset:
        return _Offset(self.step)


@dataclass(frozen=True, eq=False)
class _Offset(Pointwise):
    step: int

    def __call__(self, b: Tensor, h: Tensor, i: Tensor, q: Place, k: Place) -> Tensor:
        return ABOVE * (q.order - k.order == (h + 1) * self.step)


def stack(heads: int, depth: int, tokens: int, *, directed: bool, soft: bool = False, seed: int = 0) -> Model:
    """A decoder with hard attention. ``directed``: layer l looks back in steps of (h + 1)^l, so no two paths meet."""
    scores = Scores(normalise=Softmax() if soft else Argmax())
    attention = GroupedQuery(heads, head_dim=8, scores=scores)
    spec = decoder(vocab=tokens, width=WIDTH, layers=depth, attention=attention)
    if directed:
        layers = (replace(layer, bias=LookBack((heads + 1) ** i)) for i, layer in enumerate(spec.layers))
        spec = replace(spec, layers=tuple(layers))
    model = build(spec, seed=seed)
    model.kernel = "reference"
    return model


def seen_from(model: Model, node: int) -> Tensor:
    """(tokens,): whether anything of a token's embedding reaches this node's output, by the gradient.

    Every token is another one, so a row of the table's gradient belongs to one position.
    """
    out = model.hidden(torch.arange(model.spec.vocab)[None])[0, node]
    table = model.embed.tokens.weight
    (grad,) = torch.autograd.grad(out @ random_normal(len(out)).to(out.dtype), table)
    return (grad != 0).any(-1)


def run(values: Values, progress: Progress) -> Result:
    depth = int(values["depth"])
    directed: dict[int, list[int]] = {h: [] for h in HEADS}
    free: dict[int, list[int]] = {h: [] for h in HEADS}
    for i, heads in enumerate(HEADS):
        tokens = (heads + 1) ** depth
        for n in range(depth + 1):
            progress((i + n / (depth + 1)) / len(HEADS), f"{_many(heads, 'head')}, {_many(n, 'layer')}")
            directed[heads].append(_reach(heads, n, tokens, directed=True, nodes=1))
            free[heads].append(_reach(heads, n, tokens, directed=False, nodes=NODES))
    most = 4**depth
    soft = int(seen_from(stack(3, 1, most, directed=False, soft=True), most - 1).sum())
    right = [
        compared(f"positions seen through {_many(n, 'layer')}, {_many(h, 'head')}", directed[h][n], (h + 1) ** n)
        for h in HEADS
        for n in range(1, depth + 1)
    ]
    right += [
        held(f"random stacks stay within the bound, {_many(h, 'head')}", all(f <= b for f, b in _pairs(free[h], h)))
        for h in HEADS
    ]
    also = [
        Number(f"most that a random stack of {_many(depth, 'layer')} sees, {_many(h, 'head')}", free[h][depth])
        for h in HEADS
    ]
    also.append(Number(f"positions seen through 1 layer of softmax, of {most}", soft))
    words = TEXT.conclusion(
        one_head=directed[1][depth],
        two_heads=directed[2][depth],
        three_heads=directed[3][depth],
        depth=depth,
        soft=soft,
    )
    return conclude(words, [*right, *also], _figures(directed, free, depth))


def _reach(heads: int, depth: int, tokens: int, *, directed: bool, nodes: int) -> int:
    """How many positions the last nodes of a stack see, the most of them. No layers: a token sees itself."""
    if depth == 0:
        return 1
    model = stack(heads, depth, tokens, directed=directed)
    first = max(0, tokens - nodes)
    return max(int(seen_from(model, node).sum()) for node in range(first, tokens))


def _many(n: int, what: str) -> str:
    return f"{n} {what}{'' if n == 1 else 's'}"


def _pairs(places: list[int], heads: int) -> list[tuple[int, int]]:
    return [(f, (heads + 1) ** n) for n, f in enumerate(places)]


def _figures(directed: dict[int, list[int]], free: dict[int, list[int]], depth: int) -> list[Figure]:
    layers = [float(n) for n in range(depth + 1)]
    lines = [Line(f"h = {h}, told where", layers, [float(x) for x in directed[h]]) for h in HEADS]
    lines += [Line(f"h = {h}, random", layers, [float(x) for x in free[h]], look="dashed") for h in HEADS]
    growth = Lines("Positions that a node sees", "layers", "positions", tuple(lines), log_y=True)
    tokens = 2**depth
    rows = [[float(p == tokens - 1) for p in range(tokens)]]
    for n in range(1, depth + 1):
        rows.append(seen_from(stack(1, n, tokens, directed=True), tokens - 1).double().tolist())
    who = Heat(
        "One head: what the last token sees",
        "position",
        "layers",
        rows,
        x_ticks=tuple(map(str, range(tokens))),
        y_ticks=tuple(map(str, range(depth + 1))),
    )
    return [Figure("reach", TEXT.caption("reach"), (growth, who))]


STUDY = TEXT.study(
    "A15",
    run,
    (TEXT.parameter("depth", 4, 1, 5),),
    seconds=2.0,
)
