"""A5: the causal mask, also for queries that come after a cache."""

from __future__ import annotations

import torch
from torch import Tensor

from vantage.spec.masks import Causal, dense
from vantage.spec.positions import Positions
from vantage.studies.exercises.differences import Mistake, check_tensor, compare_tensors
from vantage.studies.exercises.exercise import StudentCode
from vantage.studies.exercises.text import ExerciseText

TEXT = ExerciseText.beside(__file__)


def _wanted(queries: int, keys: int) -> Tensor:
    q, k = Positions.arange(1, queries, keys - queries), Positions.arange(1, keys)
    return torch.zeros(queries, keys).masked_fill(~dense(Causal(), q.against(k))[0, 0], -torch.inf)


def _mistakes(queries: int, keys: int) -> list[Mistake]:
    right = _wanted(queries, keys)
    seen = right == 0
    start = keys - queries
    full = torch.full((queries, keys), -torch.inf)
    return [
        (full.triu(start), TEXT.feedback("diagonal hidden")),
        (torch.zeros(queries, keys).masked_fill(seen, -torch.inf), TEXT.feedback("inverted")),
        (
            torch.zeros(queries, keys).masked_fill(torch.ones(queries, keys).tril(start - 1).bool(), -torch.inf),
            TEXT.feedback("past hidden"),
        ),
        (seen.float(), TEXT.feedback("ones and zeros")),
        ((~seen).float(), TEXT.feedback("zeros and ones")),
        (
            torch.zeros(queries, keys).masked_fill(torch.ones(queries, keys).triu(1).bool(), -torch.inf),
            TEXT.feedback("queries start at 0", start=start),
        ),
        (torch.zeros(queries, keys), TEXT.feedback("nothing hidden")),
        (
            torch.zeros(queries, keys).masked_fill(torch.ones(queries, keys).triu(start + 2).bool(), -torch.inf),
            TEXT.feedback("shifted by one"),
        ),
    ]


def _one(student: StudentCode, queries: int, keys: int) -> str | None:
    got, what = student.call("causal_mask", queries, keys), f"causal_mask({queries}, {keys})"
    wanted = _wanted(queries, keys)
    wrong = check_tensor(got, wanted.shape, what)
    if wrong is not None:
        return wrong
    if got.dtype == torch.bool:
        return TEXT.feedback("truth values", what=what)
    finite = got.isfinite() & (got < -1e4)
    if bool(finite.any()) and bool(((got == 0) | finite).all()):
        number = float(got[finite][0])
        return TEXT.feedback("finite", what=what, number=number)
    return compare_tensors(got, wanted, what, _mistakes(queries, keys), floats=False)


def whole(student: StudentCode) -> str | None:
    return next((w for n in (4, 1, 2, 9) if (w := _one(student, n, n)) is not None), None)


def cached(student: StudentCode) -> str | None:
    return next((w for q, k in ((1, 4), (2, 5), (3, 11), (1, 2)) if (w := _one(student, q, k)) is not None), None)


EXERCISE = TEXT.exercise(
    "A5", ("causal_mask",), (("a whole sequence", whole), ("queries that come after a cache", cached))
)
