"""Is a sequence of numbers ascending? (source P12)"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vantage.errors import BadInput
from vantage.spec.registry import Entry
from vantage.training.tasks.task import Example, fits, numbers, too_long, whole


@dataclass(frozen=True)
class Ordering:
    """``3 17 40 41`` → ``yes``, ``3 40 17 41`` → ``no``.

    Different numbers below ``values`` are drawn and put in order. A fair coin, tossed after that, decides whether two
    of them are swapped, so the numbers say nothing about the answer: whoever sees only which they are, and not their
    order, is right half of the time. The two stand ``distances`` apart, each of those that the length has room for as
    often as the others, anywhere in the sequence. A swap of neighbours leaves one descent, a wider one leaves two.
    Groups: "ascending", "swap 1", "swap 2", …

    What changes with the length, besides the length:

    - The numbers come from the same range at every length, so every symbol is seen in training, but they lie closer
      in a longer sequence: neighbours differ by ``values / length`` on average. A model that cannot tell 17 from 18
      fails at great lengths for that reason alone. ``spread`` takes it out: the numbers then come from a stretch of
      ``spread * length`` values that begins at random, and neighbours differ by ``spread`` on average at every length.
    - The number to expect at a place depends on the length (place / length of the range). Wide swaps can be seen by
      that alone; what was learned of it does not carry over to other lengths.
    - At ``length == values`` there is only one ascending sequence. Leave room: values well above the longest test.
    - A short sequence has no room for wide swaps, so the mix of distances differs at lengths up to the widest.

    Length: numbers in the sequence, all of the prompt. From the course material on position (P12).
    """

    chance = 0.5  # no annotation: not a field

    values: int = 128
    distances: tuple[int, ...] = (1, 2, 4, 8, 16)
    spread: int | None = None

    def __post_init__(self) -> None:
        whole(self, "values", self.values, 2)
        if not isinstance(self.distances, tuple) or not self.distances:
            raise BadInput(f"Ordering: distances={self.distances!r} is not a tuple of distances, as in (1, 8)")
        for distance in self.distances:
            whole(self, "distances", distance, 1, self.values - 1)
        if len(set(self.distances)) < len(self.distances):
            raise BadInput(f"Ordering: distances={self.distances} has one of them twice")
        if self.spread is not None:
            whole(self, "spread", self.spread, 1, self.values // self.shortest)

    @property
    def symbols(self) -> tuple[str, ...]:
        return (*numbers(self.values), "yes", "no")

    @property
    def shortest(self) -> int:
        return min(self.distances) + 1

    def sample(self, rng: np.random.Generator, length: int) -> Example:
        fits(self, length)
        if length > (longest := self.values // (self.spread or 1)):
            need = length * (self.spread or 1)
            raise too_long(self, length, longest, f"It needs values={need} or more, at the shorter lengths as well")
        stretch = self.values if self.spread is None else self.spread * length
        start = rng.integers(self.values - stretch + 1)
        sequence = (np.sort(rng.permutation(stretch)[:length]) + start).tolist()
        if rng.integers(2):
            return Example(tuple(sequence), (self.values,), "ascending")
        open_ = [distance for distance in self.distances if distance < length]
        distance = open_[rng.integers(len(open_))]
        i = int(rng.integers(length - distance))
        sequence[i], sequence[i + distance] = sequence[i + distance], sequence[i]
        return Example(tuple(sequence), (self.values + 1,), f"swap {distance}")


ENTRY = Entry("ordering", Ordering, summary="are these numbers ascending? Negatives by one swap of a stated distance")
