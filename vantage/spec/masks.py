"""Who may see whom: frozen data with an algebra, as in ``Causal() & Window(512) & SameSegment()``.

A mask is a pure function of two places. It can also be partly evaluated with what the host
knows (``simplified``): a causal mask over keys that all lie in the past becomes ``Everything()``,
and a kernel that is handed ``Everything()`` builds no mask at all.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from vantage.errors import BadInput
from vantage.spec.positions import Pair, Place, Positions

FAR = 2**30  # a rank behind every prefix


class Mask(ABC):
    """The protocol. Masks read ``order`` and ``segment``, never ``pos``."""

    @abstractmethod
    def __call__(self, q: Place, k: Place) -> Tensor:
        """True where query q may see key k. The tensors broadcast."""

    @abstractmethod
    def simplified(self, q: Positions, k: Positions) -> Mask:
        """This mask, simplified by what the host knows of these positions. Same result, less work."""

    @abstractmethod
    def reach(self) -> int | None:
        """How many keys back a query sees at most, itself included; ``None``: no limit."""

    @abstractmethod
    def settled(self, start: int) -> bool:
        """Whether no query before rank ``start`` of a document can see a key at or after it.

        Only then may tokens from ``start`` on arrive later, through a cache.
        """

    @property
    def causal(self) -> bool:
        """Whether no query sees a key behind it."""
        return self.settled(1)

    @property
    def extendable(self) -> bool:
        """Whether tokens may go on to arrive: causal, or causal behind a prefix, which must be there first."""
        return self.settled(FAR) and self.settled(FAR + 1)  # two, as one may be the edge of a chunk

    def edges(self, query: Tensor) -> list[Tensor] | None:
        """Keys from which on a query at this order may see something else, where there are no documents and no empty
        places. ``None``: nobody knows, and whoever counts what is seen asks about every key."""
        return None

    def __and__(self, other: Mask) -> Mask:
        return _both(self, other)

    def __or__(self, other: Mask) -> Mask:
        return _either(self, other)


class AnyDistance(Mask):
    """A mask that does not ask how far apart a query and a key stand, nor which comes first."""

    def reach(self) -> int | None:
        return None

    def settled(self, start: int) -> bool:
        return start == 0

    def edges(self, query: Tensor) -> list[Tensor] | None:
        return []


@dataclass(frozen=True)
class Everything(AnyDistance):
    """Every query sees every key."""

    def __call__(self, q: Place, k: Place) -> Tensor:
        return torch.ones_like(q.order + k.order, dtype=torch.bool)

    def simplified(self, q: Positions, k: Positions) -> Mask:
        return self


@dataclass(frozen=True)
class Nothing(Mask):
    """No query sees any key. What ``simplified`` makes of a prefix that lies out of sight."""

    def __call__(self, q: Place, k: Place) -> Tensor:
        return torch.zeros_like(q.order + k.order, dtype=torch.bool)

    def simplified(self, q: Positions, k: Positions) -> Mask:
        return self

    def reach(self) -> int | None:
        return 0

    def settled(self, start: int) -> bool:
        return True

    def edges(self, query: Tensor) -> list[Tensor] | None:
        return []


@dataclass(frozen=True)
class Causal(Mask):
    """A query sees itself and what came before."""

    def __call__(self, q: Place, k: Place) -> Tensor:
        return k.order <= q.order

    def simplified(self, q: Positions, k: Positions) -> Mask:
        a, b = q.known.order, k.known.order
        return Everything() if a and b and b[1] <= a[0] and not q.known.empty else self

    def reach(self) -> int | None:
        return None

    def settled(self, start: int) -> bool:
        return True

    def edges(self, query: Tensor) -> list[Tensor] | None:
        return [query + 1]


@dataclass(frozen=True)
class Window(Mask):
    """A query sees keys less than n places away, itself included, on both sides."""

    n: int

    def __post_init__(self) -> None:
        _at_least_one("window", self.n)

    def __call__(self, q: Place, k: Place) -> Tensor:
        return (q.order - k.order).abs() < self.n

    def simplified(self, q: Positions, k: Positions) -> Mask:
        a, b = q.known.order, k.known.order
        return Everything() if a and b and max(a[1] - b[0], b[1] - a[0]) < self.n else self

    def reach(self) -> int | None:
        return self.n

    def settled(self, start: int) -> bool:
        return start == 0 or self.n == 1

    def edges(self, query: Tensor) -> list[Tensor] | None:
        return [query - self.n + 1, query + self.n]


@dataclass(frozen=True)
class Chunked(Mask):
    """A document is cut into chunks of n; a query sees its own chunk (LLaMA-4's local layers)."""

    n: int

    def __post_init__(self) -> None:
        _at_least_one("chunk", self.n)

    def __call__(self, q: Place, k: Place) -> Tensor:
        # chunks are told apart by where they start, so that those of different documents never meet
        return q.order - q.rank % self.n == k.order - k.rank % self.n

    def simplified(self, q: Positions, k: Positions) -> Mask:
        a, b = q.known.order, k.known.order
        if a and b and not _in_documents(q, k) and min(a[0], b[0]) // self.n == max(a[1], b[1]) // self.n:
            return Everything()
        return self

    def reach(self) -> int | None:
        return self.n

    def settled(self, start: int) -> bool:
        return start % self.n == 0

    def edges(self, query: Tensor) -> list[Tensor] | None:
        start = query - query % self.n
        return [start, start + self.n]


@dataclass(frozen=True)
class Prefix(Mask):
    """Every query sees the first n keys of a document. A prefix language model is ``Causal() | Prefix(n)``."""

    n: int

    def __post_init__(self) -> None:
        _at_least_one("prefix", self.n)

    def __call__(self, q: Place, k: Place) -> Tensor:
        return (k.rank < self.n) & (q.order >= 0)

    def simplified(self, q: Positions, k: Positions) -> Mask:
        b = k.known.order
        if b is None or q.known.empty or _in_documents(q, k):
            return self
        return Everything() if b[1] < self.n else Nothing() if b[0] >= self.n else self

    def reach(self) -> int | None:
        return None

    def settled(self, start: int) -> bool:
        return start == 0 or start >= self.n

    def edges(self, query: Tensor) -> list[Tensor] | None:
        return [torch.full_like(query, self.n)]


@dataclass(frozen=True)
class SameSegment(AnyDistance):
    """A query sees its own document. Without segments it hides nothing."""

    def __call__(self, q: Place, k: Place) -> Tensor:
        if q.segment is None or k.segment is None:
            return Everything()(q, k)
        return q.segment == k.segment

    def simplified(self, q: Positions, k: Positions) -> Mask:
        return Everything() if q.segment is None or k.segment is None else self


@dataclass(frozen=True)
class Filled(AnyDistance):
    """Empty places neither see nor are seen. Every kernel adds this one."""

    def __call__(self, q: Place, k: Place) -> Tensor:
        return (q.order >= 0) & (k.order >= 0)

    def simplified(self, q: Positions, k: Positions) -> Mask:
        return self if q.known.empty or k.known.empty else Everything()


@dataclass(frozen=True, repr=False)
class And(Mask):
    """What both masks let through."""

    a: Mask
    b: Mask

    def __repr__(self) -> str:
        return " & ".join(f"({m!r})" if isinstance(m, Or) else repr(m) for m in (self.a, self.b))

    def __call__(self, q: Place, k: Place) -> Tensor:
        return self.a.__call__(q, k) & self.b.__call__(q, k)

    def simplified(self, q: Positions, k: Positions) -> Mask:
        return _both(self.a.simplified(q, k), self.b.simplified(q, k))

    def reach(self) -> int | None:
        limits = [n for n in (self.a.reach(), self.b.reach()) if n is not None]
        return min(limits, default=None)

    def settled(self, start: int) -> bool:
        return self.a.settled(start) or self.b.settled(start)

    def edges(self, query: Tensor) -> list[Tensor] | None:
        return _edges_of_both(self.a, self.b, query)


@dataclass(frozen=True, repr=False)
class Or(Mask):
    """What either mask lets through."""

    a: Mask
    b: Mask

    def __repr__(self) -> str:
        return f"{self.a!r} | {self.b!r}"

    def __call__(self, q: Place, k: Place) -> Tensor:
        return self.a.__call__(q, k) | self.b.__call__(q, k)

    def simplified(self, q: Positions, k: Positions) -> Mask:
        return _either(self.a.simplified(q, k), self.b.simplified(q, k))

    def reach(self) -> int | None:
        a, b = self.a.reach(), self.b.reach()
        return None if a is None or b is None else max(a, b)

    def settled(self, start: int) -> bool:
        return self.a.settled(start) and self.b.settled(start)

    def edges(self, query: Tensor) -> list[Tensor] | None:
        return _edges_of_both(self.a, self.b, query)


def visible(mask: Mask, pair: Pair) -> Mask:
    """The mask a kernel has to apply: simplified, empty places out. Worked out once per pair."""
    return pair.once(("visible", mask), lambda: (mask & Filled()).simplified(pair.q, pair.k))


def is_plain_causal(mask: Mask, pair: Pair) -> bool:
    """Whether a simplified mask is the lower triangle of a square, which SDPA makes by itself."""
    q, k = pair.q.known, pair.k.known
    return mask == Causal() and q.first is not None and q.first == k.first and pair.q.shape == pair.k.shape


def causal_window(mask: Mask) -> int | None:
    """How many keys a query sees, itself the last of them, where a mask says just that; 0: all that came before.

    ``None``: it says something else. Documents may be kept apart: who asks has one document a row.
    """
    others = {part for part in conjuncts(mask) if not isinstance(part, Window)}
    return min(windows(mask), default=0) if Causal() in others <= {Causal(), SameSegment()} else None


def conjuncts(mask: Mask) -> list[Mask]:
    """The masks that must all let through."""
    return [*conjuncts(mask.a), *conjuncts(mask.b)] if isinstance(mask, And) else [mask]


def windows(mask: Mask) -> list[int]:
    """How far the windows reach that must all let through."""
    return [part.n for part in conjuncts(mask) if isinstance(part, Window)]


def dense(mask: Mask, pair: Pair) -> Tensor:
    """The mask as a bool tensor (R, 1, Tq, Tk), R = 1 where rows agree. Built once per pair."""

    def make() -> Tensor:
        q, k = pair.places()
        return mask.__call__(q, k)  # as a method: torch 2.11's compiler cannot call an object that it saw made

    return pair.once(("dense", mask), make)


def _in_documents(q: Positions, k: Positions) -> bool:
    return q.segment is not None or k.segment is not None


def _both(a: Mask, b: Mask) -> Mask:
    if a == b or b == Everything() or a == Nothing():
        return a
    return b if a == Everything() or b == Nothing() else And(a, b)


def _either(a: Mask, b: Mask) -> Mask:
    if a == b or b == Nothing() or a == Everything():
        return a
    return b if a == Nothing() or b == Everything() else Or(a, b)


def _edges_of_both(a: Mask, b: Mask, query: Tensor) -> list[Tensor] | None:
    one, other = a.edges(query), b.edges(query)
    return None if one is None or other is None else one + other


def _at_least_one(what: str, n: int) -> None:
    if n < 1:
        raise BadInput(f"a {what} of {n} shows nothing: use 1 or more (1 is the token itself)")
