"""Duplicate string, missing duplicate, odds first (Delétang et al. 2023)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vantage.spec.registry import Entry
from vantage.training.tasks.task import Example, LetterTask, alphabet, fits, whole


@dataclass(frozen=True)
class DuplicateString(LetterTask):
    """``a b b`` → ``a b b a b b``.

    Length: letters, all of the prompt. From Delétang et al. 2023 and Ruoss et al. 2023, with two letters.
    """

    tokens: int = 2

    def sample(self, rng: np.random.Generator, length: int) -> Example:
        fits(self, length)
        letters = tuple(rng.integers(self.tokens, size=length).tolist())
        return Example(letters, letters + letters)


@dataclass(frozen=True)
class MissingDuplicate:
    """``a b b a _ b`` → ``b``: a string stands there twice, and one of its letters is missing.

    Letters are drawn evenly and the gap is anywhere, so every answer is as likely.

    Length: letters of the string; the prompt has twice as many. From Delétang et al. 2023 and Ruoss et al. 2023,
    with two letters; there the length counts both copies.
    """

    chance = 0.5  # no annotation: not a field

    tokens: int = 2

    def __post_init__(self) -> None:
        whole(self, "tokens", self.tokens, 2)

    @property
    def symbols(self) -> tuple[str, ...]:
        return (*alphabet(self.tokens), "_")

    @property
    def shortest(self) -> int:
        return 1

    def sample(self, rng: np.random.Generator, length: int) -> Example:
        fits(self, length)
        twice = rng.integers(self.tokens, size=length).tolist() * 2
        gap = int(rng.integers(2 * length))
        missing, twice[gap] = twice[gap], self.tokens
        return Example(tuple(twice), (missing,))


@dataclass(frozen=True)
class OddsFirst(LetterTask):
    """``a b b a b`` → ``a b b b a``: the first, third, fifth, … letter, then the second, fourth, …

    Length: letters, all of the prompt. From Delétang et al. 2023 and Ruoss et al. 2023, with two letters. Their text
    says so; their published code puts the second, fourth, … first.
    """

    tokens: int = 2

    def sample(self, rng: np.random.Generator, length: int) -> Example:
        fits(self, length)
        letters = tuple(rng.integers(self.tokens, size=length).tolist())
        return Example(letters, letters[::2] + letters[1::2])


DUPLICATE_STRING = Entry("duplicate-string", DuplicateString, summary="the string twice")
MISSING_DUPLICATE = Entry(
    "missing-duplicate", MissingDuplicate, summary="the letter that is missing where a string stands twice"
)
ODDS_FIRST = Entry("odds-first", OddsFirst, summary="first, third, fifth, … letter, then the others")
