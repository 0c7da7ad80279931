"""K3: keys and values of three tokens, by hand and in a cache."""

from __future__ import annotations

import torch
from torch import Tensor

from vantage.cache import LayerPlan, make_cache
from vantage.figures import Bars, Figure, Heat
from vantage.kernels import chooser
from vantage.spec.masks import Causal
from vantage.spec.parts import Attended, Context, Need, View
from vantage.spec.positions import Positions
from vantage.studies.k01_projections import worked_module
from vantage.studies.shared.findings import compared, conclude
from vantage.studies.shared.models import F64
from vantage.studies.study import Number, Progress, Result, Values
from vantage.studies.text import StudyText

TEXT = StudyText.beside(__file__)

X = ((1.0, 2.0), (3.0, 4.0), (5.0, 6.0))
KEYS = ((1.0, 4.0), (3.0, 10.0), (5.0, 16.0))
VALUES = ((2.5, 0.5), (5.5, 0.5), (8.5, 0.5))
NAMES = ("x1", "x2", "x3")


def run(values: Values, progress: Progress) -> Result:
    yours = (float(values["first"]), float(values["second"]))
    keys, kept, weights, outs = _generate([*X])
    progress(0.5, "with your third token")
    own_keys, own_kept, own_weights, own_outs = _generate([*X[:2], yours])
    numbers = [
        compared(f"{name}{i + 1}, number {j + 1}", float(computed[i, j]), wanted[i][j], within=1e-12)
        for name, computed, wanted in (("k", keys, KEYS), ("v", kept, VALUES))
        for i in range(3)
        for j in range(2)
    ]
    numbers += [
        compared("attention output at x3, first number", outs[2][0], 8.5, within=1e-6),
        compared("attention output at x3, second number", outs[2][1], 0.5, within=1e-6),
        Number("weight of x3 on itself", weights[2][-1]),
        Number("your third key", _pair(own_keys[2].tolist())),
        Number("your third value", _pair(own_kept[2].tolist())),
        Number("attention output at your third token", _pair(own_outs[2])),
    ]
    progress(1.0, "done")
    words = TEXT.conclusion()
    return conclude(words, numbers, _figures(keys, kept, weights, own_weights))


@torch.no_grad()
def _generate(x: list[tuple[float, float]]) -> tuple[Tensor, Tensor, list[list[float]], list[list[float]]]:
    """One token at a time through the real module and a real cache: keys, values, weights and outputs of each step."""
    module = worked_module()
    cache = make_cache([LayerPlan(1, 2, 2, Causal())], kind="contiguous", dtype=F64)
    weights: list[list[float]] = []
    outs: list[list[float]] = []

    def watch(site: str, index: int, view: View, need: Need, attended: Attended) -> None:
        assert attended.weights is not None  # somebody watches
        weights.append(attended.weights[0, 0, 0, view.pos.order[0] >= 0].tolist())

    for t, token in enumerate(x):
        pos = Positions.arange(1, 1, t)
        with cache.step(pos):
            context = Context(pos, chooser("reference"), cache.layers, watch=watch)
            outs.append(module(torch.tensor([[token]], dtype=F64), context)[0, 0].tolist())
    view = cache.layers[0].view()
    filled = view.pos.order[0] >= 0
    return view.k[0, 0, filled], view.v[0, 0, filled], weights, outs


def _pair(numbers: list[float]) -> str:
    return f"({', '.join(f'{x:.5g}' for x in numbers)})"


def _figures(keys: Tensor, kept: Tensor, weights: list[list[float]], own: list[list[float]]) -> list[Figure]:
    heats = tuple(
        Heat(title, "dimension", "", cells.tolist(), ("1", "2"), tuple(f"{letter}{i}" for i in (1, 2, 3)), written=True)
        for title, letter, cells in (("Keys in the cache", "k", keys), ("Values in the cache", "v", kept))
    )
    series = (("the document's x3", weights[2]), ("yours", own[2]))
    return [
        Figure("cache", TEXT.caption("cache"), heats),
        Figure(
            "weights",
            TEXT.caption("weights"),
            (Bars("Weights of the third query", "weight", NAMES, series),),
        ),
    ]


STUDY = TEXT.study(
    "K3",
    run,
    (
        TEXT.parameter("first", 5.0, -10.0, 10.0),
        TEXT.parameter("second", 6.0, -10.0, 10.0),
    ),
    seconds=0.5,
)
