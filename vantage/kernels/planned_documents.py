"""For how many documents, and how long ones, there are plans."""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

from vantage.spec.positions import Positions
from vantage.spec.rounding import ceil_div, next_power_of_2

WASTE = 1.5  # places of a plan, of those that its documents could need: up to here a larger plan is the faster kernel


class Bounds(NamedTuple):
    """How many documents at most, and how many tokens each has at most. (0, 0): there are none."""

    documents: int
    longest: int

    def hold(self, other: Bounds) -> bool:
        return self.documents >= other.documents and self.longest >= other.longest

    @property
    def places(self) -> int:
        """What a plan may have to look at: cuDNN's way back takes longer for places that hold no token, too."""
        return self.documents * self.longest


def bounds_of(at: Positions) -> Bounds | None:
    """Rounded up so that batches share plans: eight counts and up to eight lengths between two powers of two. ``None``:
    the host does not know them."""
    if at.segment is None:
        return Bounds(0, 0)
    if at.known.documents is None:
        return None
    count, longest = at.known.documents
    step, tokens = max(1, next_power_of_2(count) // 16), max(128, next_power_of_2(longest) // 16)
    return Bounds(ceil_div(count, step) * step, ceil_div(longest, tokens) * tokens)


class PlannedDocuments:
    """The bounds that there are plans for, of each kind of call. Batches of other documents use the least that holds
    them, so that few plans serve many."""

    def __init__(self) -> None:
        self._planned: dict[Hashable, set[Bounds]] = {}

    def add(self, kind: Hashable, bounds: Bounds) -> None:
        self._planned.setdefault(kind, set()).add(bounds)

    def holding(self, kind: Hashable, bounds: Bounds) -> Bounds | None:
        enough = [planned for planned in self._planned.get(kind, ()) if planned.hold(bounds)]
        least = min(enough, key=lambda planned: planned.places, default=None)
        return least if least is not None and least.places <= WASTE * bounds.places else None
