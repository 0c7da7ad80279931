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
from vantage.studies.study import Number, Parameter, Progress, Result, Study, Values

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
    words = (
        "The scores, the exponentials and the first context number are right. Two of the three weights are slips: the "
        f"document's own exponentials give {weights[0]:.5f} and {weights[2]:.5f}, not 0.3374 and 0.4125, and so the "
        f"second context number is {context[1]:.5f}, not 0.6626."
    )
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
        Figure(
            "weights", "The slips are small: they are of the fourth place, and show only as differences.", (bars, off)
        ),
        Figure(
            "longer-state",
            "At 0 the state asks for nothing and every weight is a third. The longer it is, the more goes to the "
            "encoder state that matches it best.",
            (grown,),
        ),
    ]


STUDY = Study(
    tag="A2",
    title="A context vector by hand",
    sources=("S2",),
    statement=(
        "Three encoder states (1, 0), (0, 1), (1, 1) and a decoder state (0.5, 0.2): their dot products 0.5, 0.2 and "
        "0.7 become the weights 0.3374, 0.2501 and 0.4125, and the context is (0.7499, 0.6626). The decoder then "
        "makes its new state from the old one and the context, tanh(W [s; c])."
    ),
    explanation=(
        "Attention in an encoder-decoder is three steps. A score says how well the decoder's state matches each of "
        "the encoder's: here the dot product. The softmax turns scores into weights: exponentials, divided by their "
        "sum, so that they are positive and add up to 1. The context is the encoder's states, each taken as much as "
        "its weight says.\n\n"
        "Everything here comes from the attention that the recurrent models of the library use. Dividing the printed "
        "exponentials by their printed sum shows where the document slipped: 1.6487 / 4.8839 is 0.33758, not 0.3374. "
        "A weight that is off carries over into the context. Change s1 and s2 to see how the weights follow the "
        "state, and look at what happens when the state only gets longer: the same preference, but sharper."
    ),
    run=run,
    parameters=(
        Parameter("s1", 0.5, "first number of your decoder state", -5.0, 5.0),
        Parameter("s2", 0.2, "second number of your decoder state", -5.0, 5.0),
    ),
    seconds=0.2,
)
