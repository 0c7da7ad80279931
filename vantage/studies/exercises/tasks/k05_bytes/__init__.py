"""K5: how many bytes a cache takes."""

from __future__ import annotations

import torch

from vantage.model import build, decoder
from vantage.studies.exercises.differences import compare_whole_number
from vantage.studies.exercises.exercise import StudentCode
from vantage.studies.exercises.text import ExerciseText

TEXT = ExerciseText.beside(__file__)


#        layers, heads, kv_heads, width, batch, length
CASES = ((2, 4, 4, 32, 1, 10), (3, 8, 2, 32, 1, 40), (1, 8, 1, 64, 5, 16), (4, 6, 3, 24, 2, 33))


def _allocated(case: tuple[int, ...], dtype: torch.dtype) -> int:
    layers, heads, kv_heads, width, batch, length = case
    model = build(decoder(vocab=5, width=width, layers=layers, heads=heads, kv_heads=kv_heads)).to(dtype)
    return model.new_cache(batch, capacity=length).bytes


def _slips(case: tuple[int, ...], each: int) -> list[tuple[int, str]]:
    layers, heads, kv_heads, width, batch, length = case
    head = width // heads
    right = 2 * layers * batch * length * kv_heads * head * each
    return [
        (right // 2, TEXT.feedback("keys only")),
        (right * heads // kv_heads, TEXT.feedback("query heads")),
        (right // layers, TEXT.feedback("one layer")),
        (right // batch, TEXT.feedback("no batch")),
        (right // length, TEXT.feedback("one token")),
        (right // each, TEXT.feedback("numbers")),
        (right * 8, "these are bits"),
        (right * heads, TEXT.feedback("whole width")),
        (right * 3 // 2, TEXT.feedback("queries counted")),
        (right * length, TEXT.feedback("weights counted")),
    ]


def _compare(student: StudentCode, cases: tuple[tuple[int, ...], ...], dtype: torch.dtype) -> str | None:
    for case in cases:
        what = f"cache_bytes{(*case, dtype.itemsize)}"
        got = student.call("cache_bytes", *case, dtype.itemsize)
        words = compare_whole_number(got, _allocated(case, dtype), what, _slips(case, dtype.itemsize))
        if words is not None:
            return words
    return None


def plain(student: StudentCode) -> str | None:
    return _compare(student, CASES[:1], torch.float32)


def shared(student: StudentCode) -> str | None:
    return _compare(student, CASES[1:], torch.float32)


def types(student: StudentCode) -> str | None:
    return _compare(student, CASES[:2], torch.float64) or _compare(student, CASES[2:], torch.bfloat16)


EXERCISE = TEXT.exercise(
    "K5",
    ("cache_bytes",),
    (("one head for each", plain), ("shared heads, several sequences", shared), ("other types", types)),
)
