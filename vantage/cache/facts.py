"""What the host can say of positions without asking the device, and what it can check of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple, NoReturn, final

import torch
from torch import Tensor

from vantage.errors import BadInput
from vantage.spec.positions import EMPTY, Known, Positions


class NextPositions(NamedTuple):
    """Where each row goes on: its highest order + 1, or 0 while it holds nothing."""

    order: Tensor  # (B,)
    host: int | None  # the same as a number, where all rows agree and the host knows
    ahead: Tensor | None = None  # (B,): by how much positions are ahead of the order, once tokens had several axes

    @staticmethod
    def read(order_B: Tensor) -> NextPositions:
        """With the host's number where the tensor is in host memory and all rows agree."""
        host = set(order_B.tolist()) if on_host(order_B.device) else set()
        return NextPositions(order_B, host.pop() if len(host) == 1 else None)

    @staticmethod
    def after(known: Known, next_B: Tensor | None, tokens: int, rows: int, device: torch.device) -> NextPositions:
        """Behind rows that are a plain run of so many tokens, or that say themselves where they go on."""
        if next_B is not None:
            return NextPositions.read(next_B)
        assert known.first is not None
        return NextPositions.all(known.first + tokens, rows, device)

    @staticmethod
    def all(host: int, batch: int, device: torch.device) -> NextPositions:
        """The same for all rows."""
        return NextPositions(torch.full((batch,), host, device=device), host)


def on_host(device: torch.device) -> bool:
    """Whether tensors there can be read without waiting for a device."""
    return device.type == "cpu"


def joined(a: Known, b: Known) -> Known:
    """The facts of some columns followed by others, as if they were no plain run."""
    counts = None
    if a.counts is not None and b.counts is not None:
        counts = tuple(x + y for x, y in zip(a.counts, b.counts, strict=True))
    order, pos = _bounds(a, b, a.order, b.order), _bounds(a, b, a.pos, b.pos)
    return Known(None, order, pos, counts, a.empty or b.empty, a.same_rows and b.same_rows)


def _bounds(a: Known, b: Known, of_a: tuple[int, int] | None, of_b: tuple[int, int] | None) -> tuple[int, int] | None:
    if holds_nothing(a):
        return of_b
    if holds_nothing(b):
        return of_a
    return None if of_a is None or of_b is None else (min(of_a[0], of_b[0]), max(of_a[1], of_b[1]))


def holds_nothing(known: Known) -> bool:
    """Whether the host knows that every place is empty."""
    return known.counts is not None and not any(known.counts)


def unlike(known: Known) -> Known:
    """The facts of rows that carry documents: never a plain run, never the same."""
    return replace(known, first=None, runs=False, rising=False, same_rows=False)


def picked(known: Known, index: Sequence[int]) -> Known:
    """The facts of some of the rows. Bounds stay bounds."""
    counts = None if known.counts is None else tuple(known.counts[i] for i in index)
    return replace(known, counts=counts)


@final
class Tables:
    """``pos``, ``order`` and ``segment`` of every place, (B, places); -1 where there is nothing."""

    def __init__(self, pos: Tensor, order: Tensor, segment: Tensor | None):
        self.pos, self.order, self.segment = pos, order, segment

    @staticmethod
    def blank(batch: int, places: int, like: Positions) -> Tables:
        """Empty tables for such positions."""

        def blank(dtype: torch.dtype) -> Tensor:
            with torch.inference_mode(False):  # what is made in inference mode cannot be written outside it
                return torch.full((batch, places), EMPTY, dtype=dtype, device=like.device)

        segment = None if like.segment is None else blank(like.segment.dtype)
        return Tables(blank(like.pos.dtype), blank(torch.int64), segment)

    def fit(self, places: int, pos: Positions) -> Tables:
        """The same, with at least so many places and able to keep such positions. Itself if it is."""
        fits = self.order.shape[1] >= places and torch.promote_types(self.pos.dtype, pos.pos.dtype) == self.pos.dtype
        return self if fits else self.fitted(places, pos)

    def fitted(self, places: int, pos: Positions) -> Tables:
        """A copy, with at least so many places and able to keep such positions."""
        wide = max(self.order.shape[1], places)
        return self._map(lambda t: _widened(t, wide), torch.promote_types(self.pos.dtype, pos.pos.dtype))

    def wide(self, places: int) -> Tables:
        """The same, with at least so many places. Itself if it has them."""
        return self if self.order.shape[1] >= places else self._map(lambda t: _widened(t, places), self.pos.dtype)

    def clone(self) -> Tables:
        return self._map(lambda t: _widened(t, t.shape[1]), self.pos.dtype)

    def to(self, device: torch.device) -> Tables:
        segment = None if self.segment is None else self.segment.to(device)
        return Tables(self.pos.to(device), self.order.to(device), segment)

    def pick(self, index: Sequence[int]) -> Tables:
        rows = torch.tensor(index, device=self.order.device)
        return self._map(lambda t: _widened(t[rows], t.shape[1]), self.pos.dtype)

    def keep(self, where_BS: Tensor) -> Tables:
        """Only what stands at these places; the rest is emptied."""
        drop = ~where_BS
        return self._map(lambda t: _widened(t, t.shape[1]).masked_fill_(drop, EMPTY), self.pos.dtype)

    def write(self, at: int, pos: Positions) -> None:
        """Columns at, at + 1, … in place."""
        for mine, new in self._pairs(pos):
            mine.narrow(1, at, pos.shape[1]).copy_(new)

    def scatter(self, index_BT: Tensor, pos: Positions) -> None:
        """A place for every token, in place."""
        for mine, new in self._pairs(pos):
            mine.scatter_(1, index_BT, new.to(mine.dtype))

    def forget(self, at: int) -> None:
        """Column ``at`` holds nothing, in place."""
        for table in (self.pos, self.order, self.segment):
            if table is not None:
                table[:, at] = EMPTY

    def cut(self, at: int, n: int, known: Known, length: int | None) -> Positions:
        """Columns at … at + n - 1 as positions."""
        return self.view(lambda t: t[:, at : at + n], known, length)

    def view(self, f: Callable[[Tensor], Tensor], known: Known, length: int | None) -> Positions:
        """Positions from each table by the same function."""
        segment = None if self.segment is None else f(self.segment)
        return Positions(f(self.pos), f(self.order), segment, known, length)

    def facts(self, at: int, n: int) -> Known:
        """The facts of columns at … at + n - 1, read in host memory."""
        known = Known.read(self.pos[:, at : at + n], self.order[:, at : at + n])
        return known if self.segment is None else unlike(known)

    def _map(self, f: Callable[[Tensor], Tensor], dtype: torch.dtype) -> Tables:
        with torch.inference_mode(False):
            segment = None if self.segment is None else f(self.segment)
            return Tables(f(self.pos.to(dtype)), f(self.order), segment)

    def _pairs(self, pos: Positions) -> list[tuple[Tensor, Tensor]]:
        pairs = [(self.pos, pos.pos), (self.order, pos.order)]
        if self.segment is not None and pos.segment is not None:
            pairs.append((self.segment, pos.segment))
        return pairs


def _widened(t: Tensor, places: int) -> Tensor:
    """A copy with so many places, the new ones empty."""
    wide = torch.full((t.shape[0], places), EMPTY, dtype=t.dtype, device=t.device)
    wide[:, : t.shape[1]] = t
    return wide


@final
class Ranges:
    """Rows of consecutive numbers, cut from one tensor that is rarely made anew."""

    def __init__(self, device: torch.device):
        self._device, self._have = device, range(0)
        self._row: Tensor | None = None

    def row(self, first: int, n: int) -> Tensor:
        """first, first + 1, …, (n,)."""
        if self._row is None or first < self._have.start or first + n > self._have.stop:
            self._have = range(first, first + max(64, 2 * n))
            with torch.inference_mode(False):
                self._row = torch.arange(self._have.start, self._have.stop, device=self._device)
        return self._row.as_strided((n,), (1,), first - self._have.start)

    def run(self, first: int, batch: int, n: int, length: int | None) -> Positions:
        """Positions of rows that all run from ``first``."""
        row = self.row(first, n).expand(batch, n)
        return Positions(row, row, None, Known.run(first, batch, n), length)


def side_by_side(a: Positions, b: Positions, known: Known) -> Positions:
    """a's columns, then b's."""
    segment = None if a.segment is None or b.segment is None else torch.cat([a.segment, b.segment], 1)
    return Positions(torch.cat([a.pos, b.pos], 1), torch.cat([a.order, b.order], 1), segment, known, b.length)


# ---- checks


def check_segments(held: bool, segmented: bool, pos: Positions) -> None:
    """Documents are marked from the first token on, or never."""
    if held and segmented != (pos.segment is not None):
        had, got = ("with", "without") if segmented else ("without", "with")
        raise BadInput(
            f"this cache holds tokens {had} segments and got some {got}: "
            "give every part of a row its segments (Positions.of(..., segment=...)), or none of them"
        )


def check_rising(pos: Positions, upto: NextPositions, by_one: bool) -> None:
    """Whether each row's order goes up, from where the row stands; by one each time if ``by_one``.

    Told by facts, or read in host memory; on another device it is the caller's word.
    """
    if on_host(pos.device):
        ends = upto.order[:, None] - 1
        before = torch.cat([ends, torch.maximum(pos.order.cummax(1).values, ends)[:, :-1]], 1)
        fits = pos.order > before
        if by_one:
            fits &= (before < 0) | (pos.order == before + 1)
        wrong = (pos.filled & ~fits).nonzero()
        if len(wrong):
            row, column = wrong[0].tolist()
            _refuse_order(f"row {row}", int(pos.order[row, column]), int(before[row, column]) + 1, by_one)
    elif upto.host and pos.known.order is not None:
        low, first = pos.known.order[0], pos.known.first
        if low < upto.host or (by_one and first is not None and first > upto.host):
            _refuse_order("a row", low, upto.host, by_one)


def _refuse_order(row: str, got: int, want: int, by_one: bool) -> NoReturn:
    raise BadInput(
        f"{row} got order {got} where this cache expects {want}{'' if by_one else ' or more'}: "
        "start from cache.next_positions, or crop first"
    )
