"""Tasks that a finite automaton does: summation, parity, even pairs, cycle navigation."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vantage.spec.registry import Entry
from vantage.training.tasks.task import Example, fits, numbers, whole


@dataclass(frozen=True)
class Summation:
    """``7 1 4`` → ``2``: the sum of digits mod 10. Digits are drawn evenly, and so every answer is as likely.

    Length: digits, all of the prompt. From Kazemnejad et al. 2023.
    """

    chance = 0.1  # no annotation: not a field

    modulus: int = 10

    def __post_init__(self) -> None:
        whole(self, "modulus", self.modulus, 2)

    @property
    def symbols(self) -> tuple[str, ...]:
        return numbers(self.modulus)

    @property
    def shortest(self) -> int:
        return 1

    def sample(self, rng: np.random.Generator, length: int) -> Example:
        fits(self, length)
        drawn = rng.integers(self.modulus, size=length)
        return Example(tuple(drawn.tolist()), (int(drawn.sum()) % self.modulus,))


@dataclass(frozen=True)
class Parity:
    """``1 0 1 1`` → ``1``: is the number of ones odd? Bits are drawn evenly, and so both answers are as likely.

    Length: bits, all of the prompt. In Delétang et al. 2023, Ruoss et al. 2023 and Kazemnejad et al. 2023.
    """

    chance = 0.5  # no annotation: not a field

    @property
    def symbols(self) -> tuple[str, ...]:
        return ("0", "1")

    @property
    def shortest(self) -> int:
        return 1

    def sample(self, rng: np.random.Generator, length: int) -> Example:
        fits(self, length)
        bits = rng.integers(2, size=length)
        return Example(tuple(bits.tolist()), (int(bits.sum()) % 2,))


@dataclass(frozen=True)
class EvenPairs:
    """``a a b a`` → ``yes``: are the pairs ab and ba together even in number? (Just when both ends are equal.)

    Letters are drawn evenly, and so both answers are as likely, from length 2 on; a single letter has no pair.

    Length: letters, all of the prompt. From Delétang et al. 2023 and Ruoss et al. 2023.
    """

    chance = 0.5  # no annotation: not a field

    @property
    def symbols(self) -> tuple[str, ...]:
        return ("a", "b", "yes", "no")

    @property
    def shortest(self) -> int:
        return 2

    def sample(self, rng: np.random.Generator, length: int) -> Example:
        fits(self, length)
        letters = rng.integers(2, size=length)
        changes = int((letters[1:] != letters[:-1]).sum())
        return Example(tuple(letters.tolist()), (2 + changes % 2,))


@dataclass(frozen=True)
class CycleNavigation:
    """``+ + . -`` → ``1``: where does one stand on a ring of five, from 0, after steps onward, back and none?

    LoopSettings are drawn evenly. At small lengths the places near 0 are likelier: at length 1 only three can be
    reached.

    Length: steps, all of the prompt. From Delétang et al. 2023 and Ruoss et al. 2023.
    """

    chance = 0.2  # no annotation: not a field

    places: int = 5

    def __post_init__(self) -> None:
        whole(self, "places", self.places, 2)

    @property
    def symbols(self) -> tuple[str, ...]:
        return ("-", ".", "+", *numbers(self.places))

    @property
    def shortest(self) -> int:
        return 1

    def sample(self, rng: np.random.Generator, length: int) -> Example:
        fits(self, length)
        steps = rng.integers(3, size=length)
        return Example(tuple(steps.tolist()), (3 + int(steps.sum() - length) % self.places,))


SUMMATION = Entry("summation", Summation, summary="the sum of digits mod 10")
PARITY = Entry("parity", Parity, summary="is the number of ones odd?")
EVEN_PAIRS = Entry("even-pairs", EvenPairs, summary="is the number of ab and ba even?")
CYCLE_NAVIGATION = Entry("cycle-navigation", CycleNavigation, summary="the place on a cycle of five after steps")
