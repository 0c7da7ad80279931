"""Addition of two numbers, digit by digit (Zhou et al. 2024)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from vantage.spec.registry import Entry
from vantage.training.tasks.task import Example, fits, numbers, one_of, too_long, whole

PLUS = 10  # after the ten digits; the hints come after it


@dataclass(frozen=True)
class Addition:
    """``42+39`` → ``81``.

    ``order="reversed"``: both addends and the sum with their units first, ``24+93`` → ``18``, so that a carry is known
    when it is needed. ``hints=n`` sets a mark in front of every digit, the same for the same place of all three
    numbers: ``<5>2<6>4+<5>9<6>3`` → ``<5>1<6>8``. The marks of an example are neighbours among the n there are and
    begin at random, so that all are trained though the numbers are short; they need ``n > length``.

    Digits are drawn evenly, the first not 0 unless it is the only one. The sum is not padded: it has ``length`` or
    ``length + 1`` digits.

    Length: digits of each addend; the prompt has ``2 * length + 1`` symbols, with hints ``4 * length + 1``. Index
    hints are from Zhou et al. 2023, the reversed format with them from Zhou et al. 2024, the plain one is in
    Kazemnejad et al. 2023.
    """

    order: Literal["plain", "reversed"] = "plain"
    hints: int = 0

    def __post_init__(self) -> None:
        one_of(self, "order", self.order, ("plain", "reversed"))
        whole(self, "hints", self.hints, 0)
        if self.hints:
            whole(self, "hints", self.hints, self.shortest + 1)

    @property
    def symbols(self) -> tuple[str, ...]:
        return (*numbers(10), "+", *(f"<{i}>" for i in range(self.hints)))

    @property
    def shortest(self) -> int:
        return 1

    def sample(self, rng: np.random.Generator, length: int) -> Example:
        fits(self, length)
        if self.hints and length >= self.hints:
            more = f"It needs hints={length + 1} or more, at the shorter lengths as well"
            raise too_long(self, length, self.hints - 1, more)
        digits = rng.integers(10, size=(2, length))  # units first
        if length > 1:
            digits[:, -1] = rng.integers(1, 10, size=2)
        first, second = digits.tolist()
        total, carry = [], 0
        for both in digits.sum(0).tolist():
            carry, digit = divmod(both + carry, 10)
            total.append(digit)
        if carry:
            total.append(carry)
        start = PLUS + 1 + int(rng.integers(self.hints - length)) if self.hints else 0  # room for length + 1 marks
        return Example((*self._write(first, start), PLUS, *self._write(second, start)), self._write(total, start))

    def _write(self, units_first: list[int], start: int) -> tuple[int, ...]:
        """A number in the order and with the marks of the task. ``start``: the mark of the units."""
        way = -1 if self.order == "plain" else 1
        if not self.hints:
            return tuple(units_first[::way])
        written = [0] * (2 * len(units_first))
        written[::2] = range(start, start + len(units_first))[::way]
        written[1::2] = units_first[::way]
        return tuple(written)


ENTRY = Entry("addition", Addition, summary="two numbers of as many digits; plain, units first, with index hints")
