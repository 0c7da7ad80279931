"""Sorting (Kazemnejad et al. 2023) and bucket sort (Delétang et al. 2023)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from vantage.spec.registry import Entry
from vantage.training.tasks.task import Example, LetterTask, fits, numbers, one_of, whole

SPACE = 10  # after the ten digits


def _spelled(values: list[int]) -> tuple[int, ...]:
    return tuple(SPACE if c == " " else int(c) for c in " ".join(map(str, values)))


@dataclass(frozen=True)
class Sort:
    """``40 3 17 3`` → ``3 3 17 40``.

    Numbers below ``values``, drawn with repetition. ``written="token"``: a number is one symbol, and its value must be
    learned. ``written="digits"``: it is spelled, with a space between two, and sorted by value all the same (9 before
    12). Most numbers below a power of ten have the full number of digits.

    Length: numbers. From Kazemnejad et al. 2023 (single tokens and numbers of several digits).
    """

    values: int = 100
    written: Literal["token", "digits"] = "token"

    def __post_init__(self) -> None:
        whole(self, "values", self.values, 1)
        one_of(self, "written", self.written, ("token", "digits"))

    @property
    def symbols(self) -> tuple[str, ...]:
        return numbers(self.values) if self.written == "token" else (*numbers(10), " ")

    @property
    def shortest(self) -> int:
        return 1

    def sample(self, rng: np.random.Generator, length: int) -> Example:
        fits(self, length)
        drawn = rng.integers(self.values, size=length)
        spell = tuple if self.written == "token" else _spelled
        return Example(spell(drawn.tolist()), spell(np.sort(drawn).tolist()))


@dataclass(frozen=True)
class BucketSort(LetterTask):
    """``d a c a`` → ``a a c d``: sorting over so few tokens that counting each of them is enough.

    Length: tokens, all of the prompt. From Delétang et al. 2023 and Ruoss et al. 2023, with five tokens.
    """

    tokens: int = 5

    def sample(self, rng: np.random.Generator, length: int) -> Example:
        fits(self, length)
        drawn = rng.integers(self.tokens, size=length)
        return Example(tuple(drawn.tolist()), tuple(np.sort(drawn).tolist()))


SORT = Entry("sort", Sort, summary="numbers by value, as tokens or spelled")
BUCKET_SORT = Entry("bucket-sort", BucketSort, summary="letters of a few kinds, in order")
