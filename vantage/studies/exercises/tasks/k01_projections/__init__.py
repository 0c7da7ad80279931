"""K1: how many keys are projected, with a cache and without."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from vantage.model import build, decoder
from vantage.studies.exercises.differences import compare_whole_number
from vantage.studies.exercises.exercise import StudentCode
from vantage.studies.exercises.text import ExerciseText

TEXT = ExerciseText.beside(__file__)


@cache
def _counted(n: int) -> tuple[dict[int, int], dict[int, int]]:
    """How often each place was projected in a real layer: without a cache and with one."""
    model = build(decoder(vocab=7, width=8, layers=1, heads=2)).eval()
    counts: dict[int, int] = {}

    def count(module: Any, args: tuple[Any, ...]) -> None:
        for place in args[1].pos.pos[0].tolist():
            counts[place] = counts.get(place, 0) + 1

    sublayer: Any = model.blocks[0].steps[0]  # pyright: ignore[reportIndexIssue] (a block's steps)
    sublayer.sublayer.register_forward_pre_hook(count)
    counts_of_each = []
    for kept in (None, model.new_cache()):
        counts.clear()
        tokens = torch.tensor([[3]])
        with torch.no_grad():
            for _ in range(n):
                read = tokens if kept is None else tokens[:, -1:]
                tokens = torch.cat([tokens, model(read, cache=kept)[:, -1:].argmax(-1)], 1)
        counts_of_each.append(dict(counts))
    return counts_of_each[0], counts_of_each[1]


LENGTHS = (1, 2, 5, 12)


def without(student: StudentCode) -> str | None:
    for n in LENGTHS:
        slips = [
            (n * n, TEXT.feedback("n in every step")),
            (n * (n - 1) // 2, TEXT.feedback("without the last step")),
            ((n + 1) * (n + 2) // 2, TEXT.feedback("one step too many")),
            (n, TEXT.feedback("with a cache")),
            (n * (n + 1), TEXT.feedback("counted twice")),
            (n * n // 2, TEXT.feedback("half of the square")),
        ]
        words = compare_whole_number(
            student.call("without_cache", n), sum(_counted(n)[0].values()), f"without_cache({n})", slips
        )
        if words is not None:
            return words
    return None


def with_one(student: StudentCode) -> str | None:
    for n in LENGTHS:
        slips = [
            (n + 1, TEXT.feedback("last token counted")),
            (n - 1, TEXT.feedback("input token missing")),
            (n * (n + 1) // 2, TEXT.feedback("without a cache")),
            (1, TEXT.feedback("one step")),
        ]
        words = compare_whole_number(
            student.call("with_cache", n), sum(_counted(n)[1].values()), f"with_cache({n})", slips
        )
        if words is not None:
            return words
    return None


TIMES: tuple[tuple[Callable[[int, int], int], str], ...] = (
    (lambda n, t: n, TEXT.feedback("same for every token")),
    (lambda n, t: n - t + 1, TEXT.feedback("one too many")),
    (lambda n, t: n - t - 1, TEXT.feedback("one too few")),
    (lambda n, t: t + 1, TEXT.feedback("other way round")),
    (lambda n, t: 1, TEXT.feedback("times with a cache")),
)


def each(student: StudentCode) -> str | None:
    for n in (5, 1, 2, 12):
        got = [student.call("times", n, t) for t in range(n)]
        slip = next((words for make, words in TIMES if got == [make(n, t) for t in range(n)]), None)
        for t in range(n):
            wrong = compare_whole_number(got[t], _counted(n)[0][t], f"times({n}, {t})")
            if wrong is not None:
                return slip or wrong
    return None


EXERCISE = TEXT.exercise(
    "K1",
    ("without_cache", "with_cache", "times"),
    (("without a cache", without), ("with a cache", with_one), ("token by token", each)),
)
