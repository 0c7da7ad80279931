"""A10: temperature, and its two limits."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from vantage.figures import Bars, Figure, Line, Lines
from vantage.spec.parts import Argmax, Softmax
from vantage.studies.shared.attention import weights_of
from vantage.studies.shared.findings import compared, conclude
from vantage.studies.shared.models import F64
from vantage.studies.study import Number, Parameter, Progress, Result, Study, Values

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
    words = (
        "Dividing scores by a temperature sharpens the weights below 1 and flattens them above; near 0 all weight is "
        "on the highest score, and when it is very high every weight is the same."
    )
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
    caption = "From the left, argmax, to the right, uniform. Two scores that are close need a low temperature to part."
    figures = [
        Figure("temperature", caption, (weights, entropy)),
        Figure("yours", "Your temperature beside 1 and the limit 0.", (Bars("Weights", "weight", labels, shown),)),
    ]
    return conclude(words, [*right, *also], figures)


def _off(a: Tensor, b: Tensor) -> float:
    return float((a - b).abs().max())


STUDY = Study(
    tag="A10",
    title="Temperature",
    sources=("S1",),
    statement=(
        "softmax(x/T): as the temperature T goes to 0 the weights become those of argmax, and as it goes to infinity "
        "they become uniform."
    ),
    explanation=(
        "Dividing all scores by T divides their differences by T, and the softmax turns differences into ratios: the "
        "ratio of two weights is exp of the difference over T. A small T makes every difference large, so that the "
        "highest score takes all. A large T makes all of them small, so that nobody is preferred. The order of the "
        "weights never changes.\n\n"
        "The attention here takes a temperature as part of its normaliser, and hard attention (argmax) is a "
        "normaliser of its own; the study compares the two near 0. The scale 1/√d of A4 is a temperature of √d. The "
        "same formula is used when a model's next token is drawn: there the scores are logits, and a temperature "
        "below 1 makes the choice safer."
    ),
    run=run,
    parameters=(Parameter("temperature", 0.3, "your temperature", 0.01, 100.0),),
    seconds=0.2,
)
