"""A4: scaled dot-product attention."""

from __future__ import annotations

import torch
from torch import Tensor

from vantage.studies.exercises.differences import Mistake, compare_tensors
from vantage.studies.exercises.exercise import StudentCode
from vantage.studies.exercises.library_parts import attend, random_normal
from vantage.studies.exercises.text import ExerciseText

TEXT = ExerciseText.beside(__file__)


def _mistakes(q: Tensor, k: Tensor, v: Tensor) -> list[Mistake]:
    d, s = q.shape[-1], q @ k.T
    plain = s / d**0.5
    mistakes: list[Mistake] = [
        (attend(q, k, v, scale=1.0).out, TEXT.feedback("not scaled")),
        (attend(q, k, v, scale=1 / d).out, TEXT.feedback("divided by d")),
        (attend(q, k, v, scale=d**0.5).out, TEXT.feedback("multiplied by the root")),
        (attend(q, k, v, scale=v.shape[-1] ** -0.5).out, TEXT.feedback("width of v")),
        (attend(q, k, v, scale=len(k) ** -0.5).out, TEXT.feedback("number of keys")),
        (plain.softmax(0) @ v, TEXT.feedback("softmax over queries")),
        (plain.flatten().softmax(0).view_as(plain) @ v, TEXT.feedback("softmax over everything")),
        (plain @ v, TEXT.feedback("no softmax")),
        (plain.exp() @ v, TEXT.feedback("not normalised")),
        (attend(q, k, v, causal=True).out if len(q) <= len(k) else s, TEXT.feedback("causal")),
    ]
    if q.shape == k.shape:
        mistakes.append((attend(k, q, v).out, TEXT.feedback("q and k swapped")))
    if q.shape == k.shape == v.shape and len(q) == d:
        mistakes.append(((q.T @ k / d**0.5).softmax(-1) @ v, TEXT.feedback("dimensions by dimensions")))
    return mistakes


def _shapes(student: StudentCode, shapes: list[tuple[int, int, int, int]], dtype: torch.dtype) -> str | None:
    for seed, (queries, keys, d, e) in enumerate(shapes):
        q, k, v = (
            random_normal(*s, seed=10 * seed + i, dtype=dtype)
            for i, s in enumerate([(queries, d), (keys, d), (keys, e)])
        )
        got = student.call("attention", q, k, v)
        what = f"attention of {queries} queries over {keys} keys, d = {d}, e = {e},"
        words = compare_tensors(got, attend(q, k, v).out, what, _mistakes(q, k, v), tolerance=1e-4)
        if words is not None:
            return words
    return None


def square(student: StudentCode) -> str | None:
    return _shapes(student, [(4, 4, 4, 4), (5, 5, 8, 8)], torch.float32)


def other_shapes(student: StudentCode) -> str | None:
    return _shapes(student, [(2, 7, 4, 3), (7, 2, 16, 5), (1, 1, 2, 1), (3, 6, 9, 9)], torch.float32)


def doubles(student: StudentCode) -> str | None:
    words = _shapes(student, [(3, 5, 4, 6)], torch.float64)
    if words is not None:
        return words
    q, k, v = (random_normal(3, 4, seed=i, dtype=torch.float64) for i in range(3))
    got = student.call("attention", q, k, v)
    return None if got.dtype == torch.float64 else TEXT.feedback("dtype", dtype=got.dtype)


def large(student: StudentCode) -> str | None:
    q, k, v = 60 * random_normal(4, 4, seed=1), 60 * random_normal(6, 4, seed=2), random_normal(6, 3, seed=3)
    got, wanted = student.call("attention", q, k, v), attend(q, k, v).out
    if isinstance(got, Tensor) and got.shape == wanted.shape and not bool(got.isfinite().all()):
        return TEXT.feedback("overflow")
    return compare_tensors(got, wanted, "attention with large scores", _mistakes(q, k, v))


EXERCISE = TEXT.exercise(
    "A4",
    ("attention",),
    (
        ("as many queries as keys", square),
        ("other shapes", other_shapes),
        ("float64", doubles),
        ("large scores", large),
    ),
)
