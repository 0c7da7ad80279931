"""How a checkpoint's tensors and our parameters correspond: names, and operations that can be undone.

A link ties some of our parameters to some of a checkpoint's tensors, both ways. So loading and
saving are the same table, and what a checkpoint must hold follows from the model: run the links
backwards over tensors that have shapes but no data.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor


class Change(ABC):
    """A reversible change of one tensor."""

    @abstractmethod
    def ours(self, theirs: Tensor) -> Tensor: ...

    @abstractmethod
    def theirs(self, ours: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class Transpose(Change):
    """Swap the last two dimensions (GPT-2 stores its linear maps the other way round)."""

    def ours(self, theirs: Tensor) -> Tensor:
        return theirs.transpose(-1, -2)

    def theirs(self, ours: Tensor) -> Tensor:
        return ours.transpose(-1, -2)


@dataclass(frozen=True)
class Reshape(Change):
    """Another shape for the same numbers in the same order."""

    to: tuple[int, ...]
    back: tuple[int, ...]

    def ours(self, theirs: Tensor) -> Tensor:
        return theirs.reshape(self.to)

    def theirs(self, ours: Tensor) -> Tensor:
        return ours.reshape(self.back)


@dataclass(frozen=True)
class Rows(Change):
    """Another order of the rows: ours[i] is theirs[order[i]] (RoPE pairings, heads stored side by side)."""

    order: tuple[int, ...]

    def ours(self, theirs: Tensor) -> Tensor:
        return theirs[torch.tensor(self.order, device=theirs.device)]

    def theirs(self, ours: Tensor) -> Tensor:
        back = sorted(range(len(self.order)), key=self.order.__getitem__)
        return ours[torch.tensor(back, device=ours.device)]


class Link(ABC):
    """Some of our parameters, some of their tensors. ``{i}`` in a name stands for a number."""

    @property
    @abstractmethod
    def our_names(self) -> tuple[str, ...]: ...

    @property
    @abstractmethod
    def their_names(self) -> tuple[str, ...]: ...

    @abstractmethod
    def to_ours(self, theirs: Sequence[Tensor]) -> list[Tensor]: ...

    @abstractmethod
    def to_theirs(self, ours: Sequence[Tensor]) -> list[Tensor]: ...

    @abstractmethod
    def at(self, letter: str, number: int) -> Link:
        """The same, with ``{letter}`` in its names filled in."""

    @abstractmethod
    def renamed(self, name: Callable[[str], str]) -> Link:
        """The same with other names on their side: a text model that is part of a larger one."""


@dataclass(frozen=True)
class Same(Link):
    """One of ours is one of theirs, after the changes."""

    our: str
    their: str
    changes: tuple[Change, ...] = ()

    @property
    def our_names(self) -> tuple[str, ...]:
        return (self.our,)

    @property
    def their_names(self) -> tuple[str, ...]:
        return (self.their,)

    def to_ours(self, theirs: Sequence[Tensor]) -> list[Tensor]:
        (x,) = theirs
        for change in self.changes:
            x = change.ours(x)
        return [x]

    def to_theirs(self, ours: Sequence[Tensor]) -> list[Tensor]:
        (x,) = ours
        for change in reversed(self.changes):
            x = change.theirs(x)
        return [x]

    def at(self, letter: str, number: int) -> Link:
        return replace(self, our=fill(self.our, letter, number), their=fill(self.their, letter, number))

    def renamed(self, name: Callable[[str], str]) -> Link:
        return replace(self, their=name(self.their))


@dataclass(frozen=True)
class Joined(Link):
    """One of ours is several of theirs, one after the other: q, k and v; gate and up."""

    our: str
    their: tuple[str, ...]
    sizes: tuple[int, ...]
    dim: int = 0
    changes: tuple[Change, ...] = ()  # of each; none: all as they stand

    @property
    def our_names(self) -> tuple[str, ...]:
        return (self.our,)

    @property
    def their_names(self) -> tuple[str, ...]:
        return self.their

    def to_ours(self, theirs: Sequence[Tensor]) -> list[Tensor]:
        if self.changes:
            theirs = [change.ours(x) for change, x in zip(self.changes, theirs, strict=True)]
        return [torch.cat(list(theirs), self.dim)]

    def to_theirs(self, ours: Sequence[Tensor]) -> list[Tensor]:
        pieces = list(ours[0].split(self.sizes, self.dim))
        return [change.theirs(x) for change, x in zip(self.changes, pieces, strict=True)] if self.changes else pieces

    def at(self, letter: str, number: int) -> Link:
        their = tuple(fill(name, letter, number) for name in self.their)
        return replace(self, our=fill(self.our, letter, number), their=their)

    def renamed(self, name: Callable[[str], str]) -> Link:
        return replace(self, their=tuple(map(name, self.their)))


@dataclass(frozen=True)
class Parted(Link):
    """Several of ours are one of theirs, cut along a dimension after the changes."""

    our: tuple[str, ...]
    their: str
    sizes: tuple[int, ...]
    dim: int = 0
    changes: tuple[Change, ...] = ()

    @property
    def our_names(self) -> tuple[str, ...]:
        return self.our

    @property
    def their_names(self) -> tuple[str, ...]:
        return (self.their,)

    def to_ours(self, theirs: Sequence[Tensor]) -> list[Tensor]:
        (x,) = theirs
        for change in self.changes:
            x = change.ours(x)
        return list(x.split(self.sizes, self.dim))

    def to_theirs(self, ours: Sequence[Tensor]) -> list[Tensor]:
        x = torch.cat(list(ours), self.dim)
        for change in reversed(self.changes):
            x = change.theirs(x)
        return [x]

    def at(self, letter: str, number: int) -> Link:
        our = tuple(fill(name, letter, number) for name in self.our)
        return replace(self, our=our, their=fill(self.their, letter, number))

    def renamed(self, name: Callable[[str], str]) -> Link:
        return replace(self, their=name(self.their))


@dataclass(frozen=True)
class Regrouped(Link):
    """Several of ours are several of theirs: the same rows, in another order and cut elsewhere."""

    our: tuple[str, ...]
    their: tuple[str, ...]
    our_sizes: tuple[int, ...]
    their_sizes: tuple[int, ...]
    rows: Rows  # of all of them, one after the other

    @property
    def our_names(self) -> tuple[str, ...]:
        return self.our

    @property
    def their_names(self) -> tuple[str, ...]:
        return self.their

    def to_ours(self, theirs: Sequence[Tensor]) -> list[Tensor]:
        return list(self.rows.ours(torch.cat(list(theirs))).split(self.our_sizes))

    def to_theirs(self, ours: Sequence[Tensor]) -> list[Tensor]:
        return list(self.rows.theirs(torch.cat(list(ours))).split(self.their_sizes))

    def at(self, letter: str, number: int) -> Link:
        our, their = (tuple(fill(name, letter, number) for name in names) for names in (self.our, self.their))
        return replace(self, our=our, their=their)

    def renamed(self, name: Callable[[str], str]) -> Link:
        return replace(self, their=tuple(map(name, self.their)))


def same(names: dict[str, str], *changes: Change) -> list[Link]:
    """Plain correspondences, ours to theirs."""
    return [Same(our, their, changes) for our, their in names.items()]


def each(count: int | Iterable[int], links: Iterable[Link], letter: str = "i") -> list[Link]:
    """The links of every layer (or expert): ``{i}`` becomes 0, 1, …"""
    links = list(links)
    numbers = range(count) if isinstance(count, int) else count
    return [link.at(letter, n) for n in numbers for link in links]


def fill(name: str, letter: str, number: int) -> str:
    return name.replace(f"{{{letter}}}", str(number))
