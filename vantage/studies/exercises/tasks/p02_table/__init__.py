"""P2: the sinusoidal table for four dimensions, by hand."""

from __future__ import annotations

import torch

from vantage.position.sinusoidal import sinusoid
from vantage.studies.exercises.differences import Mistake, compare_numbers
from vantage.studies.exercises.exercise import StudentCode
from vantage.studies.exercises.text import ExerciseText

TEXT = ExerciseText.beside(__file__)


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
        (table(two, odd), TEXT.feedback("odd exponents")),
        (table(one, one), TEXT.feedback("half the exponent")),
        (table([two[0] * degrees, two[1] * degrees], [two[0] * degrees, two[1] * degrees]), TEXT.feedback("degrees")),
        ([right[1], right[0], right[3], right[2]], TEXT.feedback("cosine first")),
        (sinusoid(torch.tensor(t), d, layout="halves").tolist(), TEXT.feedback("halves")),
        (sinusoid(torch.tensor(t + 1), d).tolist(), TEXT.feedback("counted from 1", position=t + 1)),
        (
            [1.0, 0.0, 1.0, 0.0] if t == 0 else table([1.0, 1.0], [1.0, 1.0]),
            TEXT.feedback("one angle") if t else TEXT.feedback("angle 0"),
        ),
    ]


def _one(student: StudentCode, t: int) -> str | None:
    wanted = sinusoid(torch.tensor(t), 4).tolist()
    mistakes = [(value, words) for value, words in _slips(t) if value != wanted]
    return compare_numbers(student.value(f"PE{t}"), wanted, f"PE{t}", mistakes)


def zero(student: StudentCode) -> str | None:
    return _one(student, 0)


def one(student: StudentCode) -> str | None:
    return _one(student, 1)


def two(student: StudentCode) -> str | None:
    return _one(student, 2)


EXERCISE = TEXT.exercise("P2", ("PE0", "PE1", "PE2"), (("PE(0)", zero), ("PE(1)", one), ("PE(2)", two)), numbers=True)
