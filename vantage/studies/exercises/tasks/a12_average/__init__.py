"""A12: a query that averages two values, and one that copies."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from vantage.studies.exercises.differences import check_tensor
from vantage.studies.exercises.exercise import StudentCode
from vantage.studies.exercises.library_parts import attend, random_normal
from vantage.studies.exercises.text import ExerciseText

TEXT = ExerciseText.beside(__file__)


def _keys(n: int, d: int, seed: int) -> Tensor:
    return torch.linalg.qr(random_normal(d, n, seed=seed, dtype=torch.float64)).Q.T.float().contiguous()


CASES = ((2, 2, 0, 1), (5, 5, 3, 1), (10, 16, 9, 0), (100, 100, 17, 62), (200, 256, 0, 199))


def _weights(got: Tensor, keys: Tensor) -> Tensor:
    return attend(got[None].float(), keys, torch.eye(len(keys)), scale=1.0).weights[0]  # pyright: ignore[reportOptionalSubscript] (asked for)


def _bad_query(got: object, d: int, what: str) -> str | None:
    wrong = check_tensor(got, (d,), what)
    if wrong is not None:
        return wrong
    assert isinstance(got, Tensor)
    if not bool(got.isfinite().all()) or float(got.abs().max()) >= 10_000:
        return TEXT.feedback("not finite", what=what)
    return None


def copying(student: StudentCode) -> str | None:
    for n, d, a, _ in CASES:
        keys = _keys(n, d, n)
        got, what = student.call("copy_query", keys, a), f"copy_query over {n} keys"
        wrong = _bad_query(got, d, what)
        if wrong is not None:
            return wrong
        weight = _weights(got, keys)
        if float(weight[a]) > 0.99:
            continue
        best = int(weight.argmax())
        if best != a:
            return TEXT.feedback("another key", what=what, best=best, weight=float(weight[best]), wanted=a)
        return TEXT.feedback("gain too small to copy", what=what, key=a, weight=float(weight[a]), others=n - 1)
    return None


def averaging(student: StudentCode) -> str | None:
    for n, d, a, b in CASES:
        keys = _keys(n, d, n)
        got, what = student.call("average_query", keys, a, b), f"average_query over {n} keys"
        wrong = _bad_query(got, d, what)
        if wrong is not None:
            return wrong
        weight = _weights(got, keys)
        mine = float(weight[a]), float(weight[b])
        if min(mine) < 0.49:
            return _unbalanced(mine, n, a, b, what)
    return None


def _unbalanced(mine: tuple[float, float], n: int, a: int, b: int, what: str) -> str:
    weights = TEXT.feedback(
        "weights of the two", what=what, first=a, second=b, first_weight=mine[0], second_weight=mine[1]
    )
    if abs(mine[0] - mine[1]) < 0.01 and max(mine) > 1.5 / n:
        one = math.e / (2 * math.e + n - 2)
        return TEXT.feedback("gain too small", weights=weights, n=n, weight=one)
    if max(mine) > 0.9:
        only = a if mine[0] > mine[1] else b
        return TEXT.feedback("one key only", weights=weights, only=only)
    if abs(mine[0] - mine[1]) < 0.01:
        return TEXT.feedback("no key", weights=weights)
    return TEXT.feedback("unequal", weights=weights)


def any_gain(student: StudentCode) -> str | None:
    """The query must depend on the keys that are given."""
    one, other = _keys(8, 8, 1), _keys(8, 8, 2)
    first, second = student.call("average_query", one, 0, 1), student.call("average_query", other, 0, 1)
    if torch.equal(first, second):
        return TEXT.feedback("keys ignored")
    return None


EXERCISE = TEXT.exercise(
    "A12",
    ("copy_query", "average_query"),
    (("copying", copying), ("averaging", averaging), ("it looks at the keys", any_gain)),
)
