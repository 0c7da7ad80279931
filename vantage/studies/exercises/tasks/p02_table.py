"""P2: the sinusoidal table for four dimensions, by hand."""

from __future__ import annotations

import torch

from vantage.position.sinusoidal import sinusoid
from vantage.studies.exercises.exercise import Ask, Exercise
from vantage.studies.exercises.words import Mistake, by_hand

TASK = """\
The sinusoidal encoding of position t in d dimensions has, for i = 0 … d/2 − 1, sin(t / 10000^(2i/d)) at place
2i and cos(t / 10000^(2i/d)) at place 2i + 1.

Work out PE(0), PE(1) and PE(2) for d = 4, to four decimals, and write them into the file. A pocket calculator
will do; set it to radians."""

STARTER = """\
# vantage exercise P2: the sinusoidal table by hand
# d = 4, four decimals each. Replace every None.

PE0 = [None, None, None, None]
PE1 = [None, None, None, None]
PE2 = [None, None, None, None]
"""

ANSWER = """\
# vantage exercise P2: the sinusoidal table by hand
# i = 0 turns by t / 1, i = 1 by t / 10000^(2/4) = t / 100.

PE0 = [0.0, 1.0, 0.0, 1.0]
PE1 = [0.8415, 0.5403, 0.0100, 0.9999]  # sin 1, cos 1, sin 0.01, cos 0.01 (0.99995: 1.0000 is right as well)
PE2 = [0.9093, -0.4161, 0.0200, 0.9998]
"""

WORDS = """\
With d = 4 there are two pairs. The first turns by 1 radian for each position, the second by 1/10000^(2/4) =
1/100. Sine and cosine of a pair share their angle: PE(1) is (sin 1, cos 1, sin 0.01, cos 0.01) = (0.84147,
0.54030, 0.00999983, 0.99995). The general formula of one document prints the exponent (2i+1)/d for the cosine;
its own worked example uses 2i/d for both, and only then does moving by k positions become a rotation."""


def _slips(t: int) -> list[Mistake]:
    pos, d = torch.tensor(float(t), dtype=torch.float64), 4

    def table(sines: list[float], cosines: list[float]) -> list[float]:
        return [
            f
            for a, b in zip(sines, cosines, strict=True)
            for f in (float(torch.sin(pos * a)), float(torch.cos(pos * b)))
        ]

    two = [1.0, 10000 ** (-2 / d)]
    one = [1.0, 10000 ** (-1 / d)]
    odd = [10000 ** (-1 / d), 10000 ** (-3 / d)]
    right = sinusoid(torch.tensor(t), d).tolist()
    degrees = torch.pi / 180
    return [
        (
            table(two, odd),
            "the cosines have the exponent (2i+1)/d, as one document prints it by mistake: sine and cosine "
            "of a pair share their angle, with 2i/d",
        ),
        (table(one, one), "the exponent is i/d here; it is 2i/d, so the second pair turns by t/100 and not by t/10"),
        (
            table([two[0] * degrees, two[1] * degrees], [two[0] * degrees, two[1] * degrees]),
            "these are sines and cosines of degrees; the angles are radians",
        ),
        ([right[1], right[0], right[3], right[2]], "sine and cosine have changed places: the sine comes first"),
        (
            sinusoid(torch.tensor(t), d, layout="halves").tolist(),
            "these are both sines and then both cosines; here they alternate: sine, cosine, sine, cosine",
        ),
        (sinusoid(torch.tensor(t + 1), d).tolist(), f"this is PE({t + 1}): positions count from 0"),
        (
            [1.0, 0.0, 1.0, 0.0] if t == 0 else table([1.0, 1.0], [1.0, 1.0]),
            "both pairs have the same angle; the second is 100 times slower"
            if t
            else "sin 0 is 0 and cos 0 is 1, and the sine comes first",
        ),
    ]


def _one(ask: Ask, t: int) -> str | None:
    wanted = sinusoid(torch.tensor(t), 4).tolist()
    found = [(value, words) for value, words in _slips(t) if value != wanted]
    return by_hand(ask.value(f"PE{t}"), wanted, f"PE{t}", found)


def zero(ask: Ask) -> str | None:
    return _one(ask, 0)


def one(ask: Ask) -> str | None:
    return _one(ask, 1)


def two(ask: Ask) -> str | None:
    return _one(ask, 2)


EXERCISE = Exercise(
    tag="P2",
    title="The sinusoidal table by hand",
    task=TASK,
    starter=STARTER,
    answer=ANSWER,
    words=WORDS,
    names=("PE0", "PE1", "PE2"),
    checks=(("PE(0)", zero), ("PE(1)", one), ("PE(2)", two)),
    numbers=True,
)
