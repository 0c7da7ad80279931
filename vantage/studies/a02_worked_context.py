"""A2: a context vector worked out by hand."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from vantage.attention import Dot, RecurrentAttention
from vantage.figures import Bars, Figure, Line, Lines
from vantage.model.recurrent import RecurrentSpec, build_recurrent
from vantage.studies.shared.findings import compared, conclude
from vantage.studies.shared.models import F64
from vantage.studies.study import Number, Progress, Result, Values
from vantage.studies.text import StudyText

TEXT = StudyText.beside(__file__)

H = ((1.0, 0.0), (0.0, 1.0), (1.0, 1.0))
STATE = (0.5, 0.2)
EXPONENTIALS, TOTAL = (1.6487, 1.2214, 2.0138), 4.8839  # as the document has them
WEIGHTS, CONTEXT = (0.3374, 0.2501, 0.4125), (0.7499, 0.6626)
LAST_DIGIT = 5e-5  # four places were printed
GAINS = tuple(0.25 * i for i in range(41))


def run(values: Values, progress: Progress) -> Result:
    keys, state = torch.tensor([H], dtype=F64), torch.tensor([STATE], dtype=F64)
    scores = Dot()(state, keys)[0]
    context, weights = (t[0].tolist() for t in RecurrentAttention(Dot())(state, keys))
    exps = scores.exp().tolist()
    right = [compared(f"score of h{i + 1}", scores[i].item(), v, within=1e-9) for i, v in enumerate((0.5, 0.2, 0.7))]
    right += [compared(f"exp of score {i + 1}", exps[i], v, within=LAST_DIGIT) for i, v in enumerate(EXPONENTIALS)]
    right.append(compared("sum of the exponentials", sum(exps), TOTAL, within=LAST_DIGIT))
    right.append(compared("weight of h2", weights[1], WEIGHTS[1], within=LAST_DIGIT))
    right.append(compared("context, first number", context[0], CONTEXT[0], within=LAST_DIGIT))
    slips = [
        compared("weight of h1", weights[0], WEIGHTS[0], within=LAST_DIGIT),
        compared("weight of h3", weights[2], WEIGHTS[2], within=LAST_DIGIT),
        compared("context, second number", context[1], CONTEXT[1], within=LAST_DIGIT),
    ]
    own = [Number(f"the document's {EXPONENTIALS[i]} over its {TOTAL}", EXPONENTIALS[i] / TOTAL) for i in (0, 2)]
    yours = torch.tensor([[float(values["s1"]), float(values["s2"])]], dtype=F64)
    also = [*own, *_updated("with the document's state", state, keys), *_weights("your state", yours, keys)]
    words = TEXT.conclusion(first_weight=weights[0], third_weight=weights[2], second_coordinate=context[1])
    return conclude(words, [*right, *also], _figures(weights, yours, keys), slips)


def _updated(where: str, state: Tensor, keys: Tensor) -> list[Number]:
    """The decoder's update tanh(W [s; c]) of a real decoder, with W = (I, I), so that it is tanh(s + c)."""
    model = build_recurrent(RecurrentSpec(vocab=1, width=2, attention="dot")).to(F64)
    look: Any = model.decoder.look  # pyright: ignore[reportAttributeAccessIssue] (a decoder with attention has one)
    with torch.no_grad():
        look.combine.weight.copy_(torch.cat([torch.eye(2), torch.eye(2)], 1))
        look.combine.bias.zero_()
        context, _ = look.attention(state, keys)
        new = look.update(state, context)[0].tolist()
    return [Number(f"tanh(s + c), number {i + 1}, {where}", value) for i, value in enumerate(new)]


def _weights(where: str, state: Tensor, keys: Tensor) -> list[Number]:
    weights = RecurrentAttention(Dot())(state, keys)[1][0].tolist()
    return [Number(f"weight of h{i + 1}, {where}", value) for i, value in enumerate(weights)]


def _figures(weights: list[float], yours: Tensor, keys: Tensor) -> list[Figure]:
    names = ("h1 = (1, 0)", "h2 = (0, 1)", "h3 = (1, 1)")
    attention = RecurrentAttention(Dot())
    rows = torch.stack([attention(g * yours, keys)[1][0] for g in GAINS])
    bars = Bars("Weights of the document's state", "weight", names, (("ours", weights), ("printed", list(WEIGHTS))))
    slips = [printed - ours for printed, ours in zip(WEIGHTS, weights, strict=True)]
    off = Bars("Printed minus ours", "difference", names, (("slip", slips),))
    lines = tuple(Line(name, list(GAINS), rows[:, i].tolist()) for i, name in enumerate(names))
    grown = Lines("Your state, made longer", "times the state", "weight", lines)
    return [
        Figure("weights", TEXT.caption("weights"), (bars, off)),
        Figure("longer-state", TEXT.caption("longer-state"), (grown,)),
    ]


STUDY = TEXT.study(
    "A2",
    run,
    (
        TEXT.parameter("s1", 0.5, -5.0, 5.0),
        TEXT.parameter("s2", 0.2, -5.0, 5.0),
    ),
    seconds=0.2,
)
