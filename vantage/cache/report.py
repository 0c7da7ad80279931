"""What a cache holds, as data that prints itself."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import final

SpanList = tuple[tuple[float, float], ...]


@final
@dataclass(frozen=True)
class RowHolding:
    """One row of one layer."""

    order: SpanList  # first and last of every unbroken stretch
    pos: SpanList  # the same in positions, which may differ from the order
    evicted: int  # tokens that were let go of
    shared: int  # tokens that another row or cache holds too

    @property
    def tokens(self) -> int:
        return int(sum(last - first + 1 for first, last in self.order))

    def __str__(self) -> str:
        text = f"{_text(self.order)} ({self.tokens} token{'' if self.tokens == 1 else 's'}"
        text += f", positions {_text(self.pos)}" if self.pos != self.order else ""
        text += f", {self.evicted} evicted" if self.evicted else ""
        text += f", {self.shared} shared" if self.shared else ""
        return text + ")"


@final
@dataclass(frozen=True)
class Holding:
    """One layer: its arrangement and what each row holds; where heads keep tokens of their own, each head of a row."""

    arrangement: str
    rows: tuple[RowHolding, ...]
    heads: int = 1
    because: str = "left the window"  # why tokens were evicted

    def row_name(self, i: int) -> str:
        """The row, and the head where each has its own."""
        return f"row {i // self.heads}" + (f", head {i % self.heads}" if self.heads > 1 else "")

    def __str__(self) -> str:
        return "\n".join([self.arrangement, *(f"  {self.row_name(i)}: {row}" for i, row in enumerate(self.rows))])


@final
@dataclass(frozen=True, repr=False)
class CacheReport:
    """A whole cache."""

    layers: tuple[Holding, ...]
    cross: tuple[Holding, ...]
    bytes: int

    def __repr__(self) -> str:
        lines = [f"{len(self.layers)} layers, {self.bytes:,} bytes"]
        for kind, holdings in (("layer", self.layers), ("cross-attention", self.cross)):
            same: dict[Holding, list[int]] = {}
            for index, holding in enumerate(holdings):
                same.setdefault(holding, []).append(index)
            lines += [f"{kind} {_text(spans(which))}: {holding}" for holding, which in same.items()]
        return "\n".join(lines)


def spans(values: Iterable[float]) -> SpanList:
    """The unbroken stretches of some numbers, as (first, last)."""
    stretches: list[tuple[float, float]] = []
    for value in sorted(values):
        if stretches and value == stretches[-1][1] + 1:
            stretches[-1] = (stretches[-1][0], value)
        else:
            stretches.append((value, value))
    return tuple(stretches)


def _text(stretches: SpanList) -> str:
    return ", ".join(f"{a}" if a == b else f"{a}..{b}" for a, b in stretches) or "nothing"
