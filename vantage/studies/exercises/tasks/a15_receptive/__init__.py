"""A15: what a node can see through hard attention."""

from __future__ import annotations

import random
from collections.abc import Callable

import torch

from vantage.spec.normalisers import Argmax
from vantage.studies.exercises.differences import compare_whole_number, describe_value
from vantage.studies.exercises.exercise import StudentCode
from vantage.studies.exercises.library_parts import attend
from vantage.studies.exercises.text import ExerciseText

TEXT = ExerciseText.beside(__file__)


Picks = list[list[list[int]]]


def _drawn(heads: int, levels: int, length: int, seed: int) -> Picks:
    dice = random.Random(seed)
    return [[[dice.randrange(length) for _ in range(heads)] for _ in range(length)] for _ in range(levels)]


def _real(picks: Picks, position: int) -> set[int]:
    """Through the real kernel: hard attention over unit vectors, with the residual, and see where something arrives."""
    length = len(picks[0])
    eye = torch.eye(length)
    x = eye
    for level in picks:
        taken = [
            attend(torch.stack([eye[node[h]] for node in level]), eye, x, scale=1.0, normalise=Argmax()).out
            for h in range(len(level[0]))
        ]
        x = x + sum(taken)
    return set(x[position].nonzero().flatten().tolist())


def _without_residual(picks: Picks, position: int) -> set[int]:
    seen = {position}
    for level in reversed(picks):
        seen = {source for place in seen for source in level[place]}
    return seen


def _upwards(picks: Picks, position: int) -> set[int]:
    seen = {position}
    for level in picks:
        seen = seen | {source for place in seen for source in level[place]}
    return seen


def _top_only(picks: Picks, position: int) -> set[int]:
    return {position, *picks[-1][position]}


def _first_head(picks: Picks, position: int) -> set[int]:
    return _real([[[node[0]] for node in level] for level in picks], position)


SLIPS = (
    (_without_residual, TEXT.feedback("no residual")),
    (_top_only, TEXT.feedback("highest level only")),
    (_upwards, TEXT.feedback("levels reversed")),
    (_first_head, TEXT.feedback("first head only")),
)


def reaching(student: StudentCode) -> str | None:
    for seed, (heads, levels, length) in enumerate(((1, 1, 6), (1, 3, 16), (2, 2, 20), (2, 3, 40), (3, 2, 9))):
        picks = _drawn(heads, levels, length, seed)
        for position in range(0, length, max(1, length // 4)):
            got = student.call("reach", picks, position)
            if not isinstance(got, frozenset | list | tuple):
                return TEXT.feedback("no set", value=describe_value(got))
            wanted = _real(picks, position)
            if set(got) == wanted:
                continue
            words = next((w for make, w in SLIPS if make(picks, position) == set(got)), None)
            return words or (
                TEXT.feedback(
                    "wrong set",
                    heads=heads,
                    levels=levels,
                    length=length,
                    position=position,
                    wanted=sorted(wanted),
                    got=sorted(map(str, got))[:30],
                )
            )
    return None


def _widest(heads: int, levels: int) -> int:
    """Measured: the heads of level l look (h + 1)^l, 2 (h + 1)^l, … places back, so that nothing is seen twice."""
    length = (heads + 1) ** levels
    picks = [
        [[(place - k * (heads + 1) ** level) % length for k in range(1, heads + 1)] for place in range(length)]
        for level in range(levels)
    ]
    return len(_real(picks, length - 1))


BOUNDS: tuple[tuple[Callable[[int, int], int], str], ...] = (
    (lambda h, n: h**n, TEXT.feedback("bound without residual")),
    (lambda h, n: 2**n, TEXT.feedback("bound of one head")),
    (lambda h, n: h * n + 1, TEXT.feedback("bound that adds")),
    (lambda h, n: (n + 1) ** h, TEXT.feedback("bound swapped")),
    (lambda h, n: (h + 1) * n, TEXT.feedback("bound as a product")),
    (lambda h, n: (h + 1) ** (n + 1), TEXT.feedback("one level too many")),
)


def bounding(student: StudentCode) -> str | None:
    cases = ((1, 1), (1, 4), (3, 2), (4, 3), (2, 3), (7, 2), (5, 0))
    got = [student.call("bound", heads, levels) for heads, levels in cases]
    slip = next((words for make, words in BOUNDS if got == [make(*case) for case in cases]), None)
    for (heads, levels), one in zip(cases, got, strict=True):
        wanted = _widest(heads, levels) if levels else 1
        wrong = compare_whole_number(one, wanted, f"bound({heads}, {levels})")
        if wrong is not None:
            return slip or wrong
    return None


EXERCISE = TEXT.exercise("A15", ("reach", "bound"), (("reach", reaching), ("bound", bounding)))
