"""P10-slopes: ALiBi's slopes for any number of heads."""

from __future__ import annotations

import torch

from vantage.functional import alibi_slopes
from vantage.studies.exercises.differences import Mistake, compare_tensors
from vantage.studies.exercises.exercise import StudentCode
from vantage.studies.exercises.text import ExerciseText

TEXT = ExerciseText.beside(__file__)


def _mistakes(h: int) -> list[Mistake]:
    right = alibi_slopes(h)
    below = 1 << (h.bit_length() - 1)
    double = alibi_slopes(2 * below)
    rest = h - below
    return [
        (
            2.0 ** (-8 * torch.arange(1, h + 1) / h),
            TEXT.feedback("power of two", heads=h, below=below, double=2 * below),
        ),
        (2.0 ** -torch.arange(1.0, h + 1), TEXT.feedback("eight heads", heads=h)),
        (right.sort(descending=True).values, TEXT.feedback("sorted")),
        (torch.cat((double[:0], alibi_slopes(below), double[1::2][:rest])), TEXT.feedback("from the second on")),
        (torch.cat((alibi_slopes(below), double[:rest])), TEXT.feedback("first of twice as many", double=2 * below)),
        (double[:h], TEXT.feedback("all of twice as many", double=2 * below, below=below)),
        (2.0 ** (-8 * torch.arange(h) / h), TEXT.feedback("starts at 1")),
        (-right, TEXT.feedback("negative")),
    ]


def _compare(student: StudentCode, counts: tuple[int, ...]) -> str | None:
    for h in counts:
        words = compare_tensors(
            student.call("slopes", h), alibi_slopes(h), f"slopes({h})", _mistakes(h), tolerance=1e-6
        )
        if words is not None:
            return words
    return None


def powers(student: StudentCode) -> str | None:
    return _compare(student, (8, 1, 2, 4, 16, 32))


def between(student: StudentCode) -> str | None:
    return _compare(student, (12, 3, 5, 6, 7, 9, 20, 25, 112))


EXERCISE = TEXT.exercise("P10-slopes", ("slopes",), (("powers of two", powers), ("numbers between", between)))
