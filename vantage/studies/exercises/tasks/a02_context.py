"""A2: a context vector, worked by hand."""

from __future__ import annotations

import torch
from torch import Tensor

from vantage.attention import Dot, RecurrentAttention
from vantage.studies.exercises.exercise import Ask, Exercise
from vantage.studies.exercises.words import by_hand

TASK = """\
A decoder whose state is s = (0.5, 0.2) looks at three encoder states, h1 = (1, 0), h2 = (0, 1) and h3 = (1, 1).
The score of a state is its dot product with s; the weights are the softmax of the scores; the context is the
sum of the states, each times its weight.

Work out the three SCORES, the three WEIGHTS and the two numbers of the CONTEXT by hand or with a pocket
calculator, to four decimals, and write them into the file. One of the course documents prints this example with
slips in it: trust your own numbers."""

STARTER = """\
# vantage exercise A2: a context vector by hand
# Four decimals each. Replace every None.

SCORES = [None, None, None]
WEIGHTS = [None, None, None]
CONTEXT = [None, None]
"""

ANSWER = """\
# vantage exercise A2: a context vector by hand
# exp(0.5) = 1.6487, exp(0.2) = 1.2214, exp(0.7) = 2.0138; they add up to 4.8839.

SCORES = [0.5, 0.2, 0.7]
WEIGHTS = [0.3376, 0.2501, 0.4123]
CONTEXT = [0.7499, 0.6624]  # (w1 + w3, w2 + w3)
"""

WORDS = """\
The scores are 0.5, 0.2 and 0.5 + 0.2 = 0.7. Their exponentials, 1.6487, 1.2214 and 2.0138, add up to 4.8839,
and dividing by that gives 0.33758, 0.25009 and 0.41233, which add up to 1. The first coordinate of the context
gets what h1 and h3 give it, 0.33758 + 0.41233 = 0.74991, the second what h2 and h3 give, 0.66242. The
document's 0.3374 and 0.4125 do not follow from its own exponentials, and its 0.6626 is the sum of the slips."""

STATES = ((1.0, 0.0), (0.0, 1.0), (1.0, 1.0))
STATE = (0.5, 0.2)


def _parts() -> tuple[Tensor, Tensor, Tensor]:
    """Scores, weights and context, from the real attention of a recurrent decoder."""
    states = torch.tensor([STATES], dtype=torch.float64)
    state = torch.tensor([STATE], dtype=torch.float64)
    context, weights = RecurrentAttention(Dot())(state, states)
    return Dot()(state, states)[0], weights[0], context[0]


def scores(ask: Ask) -> str | None:
    wanted = _parts()[0]
    slips = [
        ((wanted / 2**0.5).tolist(), "these scores are divided by √2: the attention of this decoder does not scale"),
        (wanted.exp().tolist(), "these are the exponentials of the scores; SCORES are the dot products themselves"),
    ]
    return by_hand(ask.value("SCORES"), wanted.tolist(), "SCORES", slips)


def weights(ask: Ask) -> str | None:
    score, wanted, _ = _parts()
    slips = [
        (
            [0.3374, 0.2501, 0.4125],
            "these are the document's numbers, and two of them are slips: 1.6487 / 4.8839 is "
            "0.3376 and 2.0138 / 4.8839 is 0.4123. Divide again",
        ),
        (score.exp().tolist(), "these are the exponentials; divide each by their sum, so that the weights add up to 1"),
        (
            (score / score.sum()).tolist(),
            "these are the scores divided by their sum; a softmax takes the exponential of each score first",
        ),
        ((2.0**score / (2.0**score).sum()).tolist(), "this softmax has the base 2; it has the base e"),
        (
            (score / 2**0.5).softmax(-1).tolist(),
            "the scores were divided by √2 first: the attention of this decoder does not scale",
        ),
    ]
    return by_hand(ask.value("WEIGHTS"), wanted.tolist(), "WEIGHTS", slips)


def context(ask: Ask) -> str | None:
    score, weight, wanted = _parts()
    states = torch.tensor(STATES, dtype=torch.float64)
    slips = [
        (
            [0.7499, 0.6626],
            "this is the document's context, made of weights that are slips: the second number is 0.25009 + 0.41233",
        ),
        ((score @ states).tolist(), "the states are added up with the scores; use the weights"),
        ((score.exp() @ states).tolist(), "the states are added up with the exponentials; use the weights"),
        (states.mean(0).tolist(), "this is the plain mean of the states; each counts with its own weight"),
        (wanted.flip(0).tolist(), "the two numbers are in the wrong order: h1 and h3 have the first coordinate"),
        ((weight @ states / 3).tolist(), "this is divided by 3; the weights add up to 1 already"),
    ]
    return by_hand(ask.value("CONTEXT"), wanted.tolist(), "CONTEXT", slips)


EXERCISE = Exercise(
    tag="A2",
    title="A context vector by hand",
    task=TASK,
    starter=STARTER,
    answer=ANSWER,
    words=WORDS,
    names=("SCORES", "WEIGHTS", "CONTEXT"),
    checks=(("the scores", scores), ("the weights", weights), ("the context", context)),
    numbers=True,
)
