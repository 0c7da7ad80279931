"""P10: ALiBi's bias."""

from __future__ import annotations

import torch
from torch import Tensor

from vantage.functional import alibi_bias, alibi_slopes
from vantage.studies.exercises.differences import Mistake, compare_tensors
from vantage.studies.exercises.exercise import StudentCode
from vantage.studies.exercises.text import ExerciseText

TEXT = ExerciseText.beside(__file__)


def _bias(slopes: Tensor, length: int) -> Tensor:
    at = torch.arange(length)
    return -slopes[:, None, None] * (at[:, None] - at).abs()


def _mistakes(h: int, n: int) -> list[Mistake]:
    right, k = alibi_bias(h, n), torch.arange(1, h + 1)
    at = torch.arange(n)
    signed = (at[:, None] - at).float()
    slopes = alibi_slopes(h)
    ahead = torch.ones(n, n).triu(1).bool()
    return [
        (_bias(2.0 ** -k.float(), n), TEXT.feedback("slopes of 8 heads", heads=h)),
        (_bias(2.0 ** (-8 * (k - 1) / h), n), TEXT.feedback("slopes start at 1")),
        (-right, TEXT.feedback("positive")),
        (-slopes[:, None, None] * signed, TEXT.feedback("bonus after the query")),
        (slopes[:, None, None] * signed, TEXT.feedback("signed")),
        (right.masked_fill(ahead, 0.0), TEXT.feedback("one-sided")),
        (right.masked_fill(ahead, -torch.inf), TEXT.feedback("masked")),
        (right.flip(0), TEXT.feedback("heads reversed")),
        (_bias(slopes.new_full((h,), float(slopes[0])), n), TEXT.feedback("one slope")),
        (right / slopes[:, None, None], TEXT.feedback("no slopes")),
        (-slopes[:, None, None] * signed**2, TEXT.feedback("squared")),
    ]


def _one(student: StudentCode, h: int, n: int) -> str | None:
    got = student.call("alibi_bias", h, n)
    return compare_tensors(got, alibi_bias(h, n), f"alibi_bias({h}, {n})", _mistakes(h, n), tolerance=1e-6)


def eight(student: StudentCode) -> str | None:
    return _one(student, 8, 5)


def others(student: StudentCode) -> str | None:
    return next(
        (w for h, n in ((4, 6), (2, 3), (16, 4), (1, 7), (64, 3)) if (w := _one(student, h, n)) is not None), None
    )


def long(student: StudentCode) -> str | None:
    return next((w for h, n in ((2, 300), (8, 1)) if (w := _one(student, h, n)) is not None), None)


EXERCISE = TEXT.exercise(
    "P10",
    ("alibi_bias",),
    (("eight heads", eight), ("other numbers of heads", others), ("long and short sequences", long)),
)
