"""Places by order, round and round: what a window still shows, and nothing else.

The token of order o stands at place ``o % size``, size being window + draft. So a row needs no
more memory than its window, whatever its length, and empty places are never written.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor

from vantage.cache.dump import DumpReader, LedgerDump, check_known, damaged, dump_known, dump_tables
from vantage.cache.facts import (
    NextPositions,
    Ranges,
    Tables,
    check_rising,
    check_segments,
    joined,
    on_host,
    picked,
    side_by_side,
    unlike,
)
from vantage.cache.ledger import LastTokensLedger, Layout, Step
from vantage.cache.moves import BufferWrite, Concatenated, Places, Scatter, Span
from vantage.errors import BadInput, CacheError
from vantage.spec.positions import EMPTY, Known, Positions


@final
@dataclass(frozen=True)
class _Run:
    """Every row runs from ``start`` to ``next - 1``; what is below ``low`` has been let go. Numbers, no tensors."""

    start: int = 0
    low: int = 0
    next: int = 0


@final
@dataclass(frozen=True, eq=False)
class _Mixed:
    """Rows that differ, or whose positions are not their order: the same three for every row, and tables by place."""

    start: Tensor  # (B,)
    low: Tensor
    next: Tensor
    tables: Tables  # (B, size + 1)
    known: Known  # of the tables: bounds, and whether rows are the same


@final
class Ring(LastTokensLedger):
    """A window of ``window`` tokens and ``draft`` more that can be taken back.

    Up to draft + 1 tokens at a time are written in place and the view is the ring itself. More are
    shown after what the window still holds, and written when the pass is committed: so a pass that
    fails can always be undone. In every row the order must go on by one.
    """

    kind = "ring"

    def __init__(self, batch: int, *, window: int, draft: int = 0, device: torch.device | str | None = None):
        super().__init__(batch, device)
        if window < 1 or draft < 0:
            raise BadInput(
                f"a ring of window {window} and draft {draft}: give a window of 1 or more, a draft of 0 or more"
            )
        self._window, self._draft = window, draft
        self._size = window + draft
        self._state = self._before = _Run()
        self._ranges = Ranges(self.device)

    # ---- a pass

    def _append(self, pos: Positions) -> Step:
        state = self._state
        first = pos.known.first
        fresh = isinstance(state, _Run) and state.start == state.next
        if isinstance(state, _Run) and first is not None and pos.segment is None and (fresh or first == state.next):
            new, step = self._run(_Run(first, first, first) if fresh else state, pos)
        else:
            new, step = self._mix(pos, fresh)
        self._before, self._state = state, new
        return step

    def _run(self, state: _Run, pos: Positions) -> tuple[_Run, Step]:
        """Plain rows: all by arithmetic."""
        size, width = self._size, pos.shape[1]
        end = state.next + width
        low = max(state.low, end - size)
        new = _Run(state.start, low, end)
        unbroken = state.low % size + end - state.low <= size
        if width <= self._draft + 1 or unbroken:
            at = state.next % size
            write: BufferWrite = Span(at, width) if at + width <= size else Places(self._slots(state.next, width))
            read, view = self._ring_view(low, end, pos.length)
            return new, Step(write, read, view, self.places)
        shown = max(state.low, state.next - self._window + 1)
        view = self._ranges.run(shown, self.batch, end - shown, pos.length)
        kept = min(width, size)
        write = Places(self._slots(end - kept, kept))
        return new, Step(write, Concatenated(self._spans(shown, state.next)), view, self.places, deferred=True)

    def _mix(self, pos: Positions, fresh: bool) -> tuple[_Mixed, Step]:
        """Any rows: a place for every token, the place past the end for what is not kept."""
        state, size, width = self._state, self._size, pos.shape[1]
        check_segments(not fresh, isinstance(state, _Mixed) and state.tables.segment is not None, pos)
        check_rising(pos, self.next_positions, by_one=True)
        old = self._mixed(pos)
        next_B = torch.maximum(old.next, pos.order.amax(1) + 1)
        begin = torch.where(pos.filled, pos.order, next_B[:, None]).amin(1)
        start = torch.where(old.next == 0, begin, old.start)
        low = torch.maximum(torch.where(old.next == 0, begin, old.low), next_B - size)
        index = torch.where(pos.order >= low[:, None], pos.order % size, size)
        tables = old.tables.fitted(self.places, pos)
        tables.scatter(index, pos)
        known = replace(joined(old.known, pos.known), counts=None, empty=True)
        known = known if pos.segment is None else unlike(known)
        new = _Mixed(start, low, next_B, tables, known)
        if width <= self._draft + 1:
            return new, Step(Scatter(index), Span(0, size), tables.cut(0, size, known, pos.length), self.places)
        if fresh:  # nothing but the chunk to see
            return new, Step(Scatter(index), Concatenated(), pos, self.places, deferred=True)
        view = side_by_side(old.tables.cut(0, size, known, None), pos, known)
        return new, Step(Scatter(index), Concatenated((Span(0, size),)), view, self.places, deferred=True)

    def _undo(self) -> None:
        """What was written in place may be half written: it lay outside the window, and is let go."""
        before, after = self._before, self._state
        assert self._step is not None
        assert self._pos is not None
        self._state = before
        if self._step.deferred:
            return
        if isinstance(before, _Run):
            self._state = replace(before, low=max(before.low, before.next + self._pos.shape[1] - self._size))
        else:
            assert isinstance(after, _Mixed)
            low = torch.where(before.next == 0, before.low, after.low)
            tables = before.tables.keep(before.tables.order >= low[:, None])
            known = replace(before.known, counts=None, empty=True, same_rows=after.known.same_rows)
            self._state = _Mixed(before.start, low, before.next, tables, known)

    def _done(self) -> None:
        self._before = self._state

    # ---- arithmetic of places

    def _slots(self, first: int, n: int) -> Tensor:
        """The places of the orders first, first + 1, …"""
        return self._ranges.row(first, n) % self._size

    def _spans(self, first: int, end: int) -> tuple[Span, ...]:
        """The places of the orders first … end - 1, in that order."""
        at, n, size = first % self._size, end - first, self._size
        if n == 0:
            return ()
        return (Span(at, n),) if at + n <= size else (Span(at, size - at), Span(0, n - size + at))

    def _ring_view(self, low: int, end: int, length: int | None) -> tuple[Span, Positions]:
        """The orders low … end - 1 where they stand: a slice if they lie in one piece, else the whole ring."""
        at, n, size = low % self._size, end - low, self._size
        if at + n <= size:
            return Span(at, n), self._ranges.run(low, self.batch, n, length)
        row = self._by_place(low, end).expand(self.batch, size)
        bounds = (low, end - 1)
        known = Known(None, bounds, bounds, (n,) * self.batch, empty=n < size, same_rows=True)
        return Span(0, size), Positions(row, row, None, known, length)

    def _by_place(self, low: int, end: int) -> Tensor:
        """The order that stands at each place, (size,)."""
        turn, at = divmod(end, self._size)
        row = self._ranges.row(0, self._size) + (turn - 1) * self._size
        row[:at] += self._size
        return row if end - low == self._size else row.masked_fill_(row < low, EMPTY)

    def _mixed(self, like: Positions) -> _Mixed:
        """The state with tables that can keep such positions."""
        state = self._state
        if isinstance(state, _Mixed):
            return state
        tables = Tables.blank(self.batch, self.places, like)
        row = self._by_place(state.low, state.next).expand(self.batch, self._size)
        tables.write(0, Positions(row, row))
        n = state.next - state.low
        bounds = (state.low, state.next - 1) if n else None
        known = Known(None, bounds, bounds, (n,) * self.batch, same_rows=True)
        start, low, end = (
            torch.full((self.batch,), x, device=self.device) for x in (state.start, state.low, state.next)
        )
        return _Mixed(start, low, end, tables, known)

    def _look(self) -> Step:
        state = self._state
        if isinstance(state, _Run):
            read, view = self._ring_view(state.low, state.next, None)
            return Step(None, read, view, self.places)
        return Step(None, Span(0, self._size), state.tables.cut(0, self._size, state.known, None), self.places)

    def _layout(self) -> Layout | None:
        state, step, pos = self._state, self._step, self._pos
        assert step is not None
        assert pos is not None
        if not isinstance(state, _Run) or state.start:
            return None
        held = (state.next - pos.shape[1],) * self.batch
        if not step.deferred:
            return Layout(held, True, ring=self._size)
        return Layout(held, True, first=state.next - step.view_pos.shape[1], deferred=True)

    # ---- between passes

    def _check_crop(self, to: tuple[int, ...]) -> None:
        starts, lows, ends = self._limits()
        for row, (end, start, low, n) in enumerate(zip(to, starts, lows, ends, strict=True)):
            if end < n and low > start and end < low + self._window:
                raise CacheError(
                    f"a ring of window {self._window} and draft {self._draft} cannot take row {row} back from {n} to "
                    f"{end}: what lies before {low} is gone, so it goes back to {min(n, low + self._window)} at most; "
                    f"make the cache with a draft of {n - end} or more, or use another kind"
                )

    def _crop(self, to: tuple[int, ...]) -> None:
        state = self._state
        if isinstance(state, _Run):
            ends = {min(max(end, state.start), state.next) for end in to}
            if len(ends) == 1:
                end = ends.pop()
                self._state = replace(state, next=end) if end > state.start else _Run()
                return
        old = self._mixed(self._ranges.run(0, self.batch, 1, None))
        limit = torch.tensor(to, device=self.device)
        tables = old.tables.keep(old.tables.order < limit[:, None])
        end_B = torch.minimum(old.next, limit)
        gone = end_B <= old.start  # such a row may begin anew, anywhere
        start, low, end_B = (torch.where(gone, 0, x) for x in (old.start, old.low, end_B))
        known = replace(old.known, counts=None, empty=True, same_rows=old.known.same_rows and len(set(to)) == 1)
        if on_host(self.device):
            known = replace(tables.facts(0, self._size), first=None, runs=False)
        self._state = _Mixed(start, low, end_B, tables, known)
        if on_host(self.device) and bool(gone.all()):
            self._state = _Run()

    def _pick(self, index: tuple[int, ...]) -> None:
        state = self._state
        if isinstance(state, _Mixed):
            rows = torch.tensor(index, device=self.device)
            start, low, end = (x[rows] for x in (state.start, state.low, state.next))
            self._state = _Mixed(start, low, end, state.tables.pick(index), picked(state.known, index))

    def _clear(self) -> None:
        self._state = self._before = _Run()

    def fork(self) -> Ring:
        self.commit()
        other = self.fresh(self.batch)
        other._state = other._before = self._state  # states are never written into
        return other

    def fresh(self, batch: int) -> Ring:
        return Ring(batch, window=self._window, draft=self._draft, device=self.device)

    # ---- as plain data

    def dump(self) -> LedgerDump:
        state = self._state
        numbers = {"kind": self.kind, "batch": self.batch, "window": self._window, "draft": self._draft}
        limits = {"start": state.start, "low": state.low, "next": state.next}
        if isinstance(state, _Run):
            return LedgerDump(numbers | limits, {})
        tables = dump_tables(state.tables, self.places)
        tables |= {"start": state.start.cpu(), "low": state.low.cpu(), "next": state.next.cpu()}
        return LedgerDump(numbers | {"known": dump_known(state.known)}, tables)

    @classmethod
    def from_dump(cls, saved: DumpReader, device: torch.device) -> Ring:
        ring = Ring(saved.batch, window=saved.count("window"), draft=saved.count("draft", 0), device=device)
        tables = saved.tables(ring.places)
        ring._state = ring._before = ring._run_from(saved) if tables is None else ring._mixed_from(saved, tables)
        return ring

    def _run_from(self, saved: DumpReader) -> _Run:
        start, low, end = (saved.count(name, 0) for name in ("start", "low", "next"))
        if not (start <= low <= end <= low + self._size):
            damaged(f"a ring of {self._size} places cannot hold {low} … {end - 1} of a row that began at {start}")
        return _Run(start, low, end)

    def _mixed_from(self, saved: DumpReader, tables: Tables) -> _Mixed:
        size, known = self._size, saved.known()
        check_known(known, tables, 0, size)
        start, low, end = (saved.column(name) for name in ("start", "low", "next"))
        order = tables.order[:, :size]
        filled = order >= 0
        right = (order % size == torch.arange(size)) & (order >= low[:, None]) & (order < end[:, None])
        if not bool((right | ~filled).all()) or not bool((filled.sum(1) == end - low).all()):
            damaged("its ring does not hold what it says")
        if not bool(((start >= 0) & (start <= low)).all()):
            damaged("a row of its ring holds what came before its beginning")
        start, low, end = (x.to(self.device) for x in (start, low, end))
        return _Mixed(start, low, end, tables.to(self.device), known)

    @property
    def kept_places(self) -> int:
        return self.places

    # ---- what it holds

    def _limits(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """start, low and next of every row. May read a device."""
        state = self._state
        if isinstance(state, _Run):
            rows = self.batch
            return (state.start,) * rows, (state.low,) * rows, (state.next,) * rows
        return tuple(state.start.tolist()), tuple(state.low.tolist()), tuple(state.next.tolist())

    @property
    def name(self) -> str:
        return f"ring, window {self._window}" + (f" and draft {self._draft}" if self._draft else "")

    @property
    def next_positions(self) -> NextPositions:
        state = self._state
        if isinstance(state, _Run):
            return NextPositions.all(state.next, self.batch, self.device)
        return NextPositions.read(state.next)

    @property
    def holding(self) -> bool:
        return isinstance(self._state, _Mixed) or self._state.next > self._state.start

    def _evicted(self) -> tuple[int, ...]:
        starts, lows, _ = self._limits()
        return tuple(low - start for start, low in zip(starts, lows, strict=True))

    def _shared(self) -> tuple[int, ...]:
        return (0,) * self.batch
