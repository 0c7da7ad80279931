"""Which shapes come again: a plan is made for those, and for no others."""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

PASSES = 3  # in which a shape must have come
_planning = ContextVar("planning", default=True)


@contextmanager
def without_plans() -> Iterator[None]:
    """No shape has a plan, and none is counted: a pass that must give the same bits whatever ran before it."""
    token = _planning.set(False)
    try:
        yield
    finally:
        _planning.reset(token)


@dataclass
class SeenShape:
    """How often a shape has come, and what was done on it."""

    last: weakref.ref[object]  # the positions of its latest pass
    passes: int = 1
    operations: float = 0.0


class RecurringShapes:
    """Says of a shape whether a plan for it pays: it came in three passes (all layers of one are one), or so much was
    done on it that a plan would have paid for itself by now. Then at most twice is spent of what was best in hindsight.

    The last ``most`` shapes are remembered. ``plans`` is how many may ever be planned: plans stay in memory.
    """

    def __init__(self, pays_after: float, most: int = 64, plans: int = 256):
        self.pays_after, self.most, self.plans = pays_after, most, plans  # the first in operations
        self._seen: OrderedDict[Hashable, SeenShape] = OrderedDict()
        self._planned: set[Hashable] = set()
        self._lock = threading.Lock()

    def planned(self, shape: Hashable, of: object, operations: float) -> bool:
        """Whether to plan for this shape now. ``of``: an object that is another one in each pass, its positions."""
        if not _planning.get():
            return False
        with self._lock:
            if shape in self._planned:
                return True
            seen = self._seen.get(shape)
            if seen is None:
                seen = self._seen[shape] = SeenShape(weakref.ref(of))
            elif seen.last() is not of:
                seen.last, seen.passes = weakref.ref(of), seen.passes + 1
            seen.operations += operations
            self._seen.move_to_end(shape)
            while len(self._seen) > self.most:
                self._seen.popitem(last=False)
            pays = seen.passes >= PASSES or seen.operations >= self.pays_after
            if not pays or len(self._planned) >= self.plans:
                return False
            del self._seen[shape]
            self._planned.add(shape)
            return True
