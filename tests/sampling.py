"""Which rows of a matrix `make test` runs: those that always run, and as many of the others as a seed draws.

Tests of many seconds carry the mark ``sampled``, and are drawn in the same way (tests/conftest.py): one in twenty.

The others carry the mark ``slow``, so `make test-all` runs them all. However many parts there are, no more than so many
are drawn. The seed is chosen once for each run, before the workers start, and printed with the first lines and after a
failure; ``VANTAGE_TEST_SEED=1234 make test`` draws the same rows again, and ``VANTAGE_TEST_SEED=all`` leaves none out.
"""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from typing import TypeVar

import pytest

NAME = "VANTAGE_TEST_SEED"
EVERY = "all"
PROFILE = "VANTAGE_HYPOTHESIS"  # the profile of hypothesis
QUICK = "quick"

T = TypeVar("T", bound=Hashable)
Cell = tuple[str, ...]
Pair = tuple[tuple[int, str], tuple[int, str]]  # (factor, value) twice


def choose_seed() -> str:
    """The one that was asked for, or a new one for this process and all that it starts."""
    return os.environ.setdefault(NAME, str(random.SystemRandom().randrange(10**6)))


def draw(rows: Sequence[T], always: Collection[T], most: int, seed: str | None = None) -> set[T]:
    """Those that always run, and at most so many others."""
    seed = choose_seed() if seed is None else seed
    others = [row for row in rows if row not in always]
    if seed == EVERY or len(others) <= most:
        return set(rows)
    return {*always, *random.Random(seed).sample(others, most)}


def marks(drawn: bool) -> tuple[pytest.MarkDecorator, ...]:
    """For ``pytest.param``: what was not drawn is slow."""
    return () if drawn else (pytest.mark.slow,)


def examples(number: int) -> int:
    """How many examples hypothesis draws for a test that would have so many: all of them in `make test-all`."""
    return max(10, number // 4) if os.environ.get(PROFILE) == QUICK else number


def holding(cells: Iterable[Cell], wanted: Callable[[Pair], bool]) -> set[Cell]:
    """Few of these cells that together hold every wanted pair that any of them holds."""
    pairs = {cell: {p for p in itertools.combinations(enumerate(cell), 2) if wanted(p)} for cell in cells}
    missing, chosen = set[Pair]().union(*pairs.values()), set[Cell]()
    while missing:
        best = max(pairs, key=lambda cell: len(pairs[cell] & missing))  # the first of equals
        chosen.add(best)
        missing -= pairs[best]
    return chosen
