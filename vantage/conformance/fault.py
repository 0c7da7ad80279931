"""A fault that ``vt.check`` has found: what is wrong, where, the numbers that show it, and what to look at."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import final


@final
@dataclass(frozen=True)
class Fault:
    """Prints as one or two sentences."""

    name: str  # "the score bias counts slots, not positions"
    where: str = ""  # "layers 0 and 1: StepBias, in cached steps"
    shows: str = ""  # the experiment and its numbers
    look: str = ""  # where the mistake usually is

    def __str__(self) -> str:
        where = f" ({self.where})" if self.where else ""
        shows = f": {self.shows}" if self.shows else ""
        look = f". Look at {self.look}" if self.look else ""
        return f"{self.name}{where}{shows}{look}"

    def to_json(self) -> dict[str, str]:
        return {"name": self.name, "where": self.where, "shows": self.shows, "look": self.look}


def layers_in_words(layers: Iterable[int]) -> str:
    """``layer 0``, ``layers 0 and 2``, ``layers 0 to 3``."""
    numbers = sorted(set(layers))
    if len(numbers) == 1:
        return f"layer {numbers[0]}"
    if len(numbers) > 2 and numbers[-1] - numbers[0] == len(numbers) - 1:
        return f"layers {numbers[0]} to {numbers[-1]}"
    return f"layers {', '.join(map(str, numbers[:-1]))} and {numbers[-1]}"
