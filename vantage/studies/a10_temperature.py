"""A10: temperature, and its two limits."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from vantage.figures import Bars, Figure, Line, Lines
from vantage.spec.normalisers import Argmax, Softmax
from vantage.studies.shared.attention import weights_of
from vantage.studies.shared.findings import compared, conclude
from vantage.studies.shared.models import F64
from vantage.studies.study import Number, Progress, Result, Values
from vantage.studies.text import StudyText

TEXT = StudyText.beside(__file__)

SCORES = (0.3, 1.2, -0.5, 1.0)
COLD, HOT = 1e-3, 1e6
SHARE = 1e-6  # the weights are this near to a limit


def run(values: Values, progress: Progress) -> Result:
    scores = torch.tensor([SCORES], dtype=F64)
    temperature = float(values["temperature"])

    def at(T: float) -> Tensor:
        return weights_of(scores, normalise=Softmax(T))[0]

    hard = weights_of(scores, normalise=Argmax())[0]
    chosen, divided = at(temperature), weights_of(scores / temperature)[0]
    spread = torch.special.entr
    right = [
        compared(f"T = {COLD:g}: distance from argmax", _off(at(COLD), hard), 0.0, within=SHARE),
        compared("which score argmax takes", int(hard.argmax()) + 1, 1 + SCORES.index(max(SCORES))),
        compared(f"T = {HOT:g}: largest weight", float(at(HOT).max()), 1 / len(SCORES), within=SHARE),
        compared("softmax(x, T) against softmax(x / T)", _off(chosen, divided), 0.0, within=1e-12),
    ]
    also = [Number(f"weight of score {x:g} at your temperature", float(w)) for x, w in zip(SCORES, chosen, strict=True)]
    also.append(Number("entropy at your temperature, nats", float(spread(chosen).sum())))
    words = TEXT.conclusion()
    grid = [10 ** (e / 10) for e in range(-20, 21)]
    rows = torch.stack([at(T) for T in grid])
    lines = tuple(Line(f"score {x:g}", grid, rows[:, i].tolist()) for i, x in enumerate(SCORES))
    weights = Lines("Weights over temperature", "temperature", "weight", lines, log_x=True, marks=(("uniform", 0.25),))
    entropy = Lines(
        "Entropy over temperature",
        "temperature",
        "nats",
        (Line("entropy", grid, spread(rows).sum(-1).tolist()),),
        log_x=True,
        marks=(("uniform", math.log(len(SCORES))),),
    )
    labels = tuple(f"score {x:g}" for x in SCORES)
    shown = ((f"T = {temperature:g}", chosen.tolist()), ("T = 1", at(1.0).tolist()), ("argmax", hard.tolist()))
    figures = [
        Figure("temperature", TEXT.caption("temperature"), (weights, entropy)),
        Figure("yours", TEXT.caption("yours"), (Bars("Weights", "weight", labels, shown),)),
    ]
    return conclude(words, [*right, *also], figures)


def _off(a: Tensor, b: Tensor) -> float:
    return float((a - b).abs().max())


STUDY = TEXT.study(
    "A10",
    run,
    (TEXT.parameter("temperature", 0.3, 0.01, 100.0),),
    seconds=0.2,
)
