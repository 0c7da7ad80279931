"""Places by arrival: what arrives together stands in the same columns of every row."""

from __future__ import annotations

from dataclasses import dataclass
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
    unlike,
)
from vantage.cache.ledger import Layout, Ledger, LedgerExtension, Step
from vantage.cache.memory import FOLLOWS, grown
from vantage.cache.moves import Span
from vantage.errors import BadInput, CacheError
from vantage.spec.positions import Known, Positions


@final
@dataclass(frozen=True, eq=False)
class _State:
    """The columns in use. A plain run is told by ``known`` alone; anything else needs tables."""

    n: int
    known: Known
    tables: Tables | None = None
    next_B: Tensor | None = None  # with tables: where each row goes on

    @property
    def first(self) -> int:
        """Where a plain run begins."""
        assert self.known.first is not None
        return self.known.first


@final
class Contiguous(Ledger):
    """Appends side by side; a view is a slice, without a copy.

    ``capacity`` columns, or growing (``memory.grown``). With a ``window`` the view of a pass leaves out
    what its first query cannot see any more, as long as the rows are a plain run; nothing is let go.
    """

    kind = "contiguous"

    def __init__(
        self,
        batch: int,
        *,
        capacity: int | None = None,
        window: int | None = None,
        device: torch.device | str | None = None,
        follows: int = FOLLOWS,
    ):
        """``follows``: places for what comes after the first tokens, in a cache that grows."""
        super().__init__(batch, device)
        if capacity is not None and capacity < 1:
            raise BadInput(f"a capacity of {capacity}: give at least 1, or None to grow")
        if window is not None and window < 1:
            raise BadInput(f"a window of {window}: give at least 1, or None to see everything")
        self._capacity, self._window, self._follows = capacity, window, follows
        self._places = capacity or 0
        self._state = self._before = self._run(0, 0)
        self._ranges = Ranges(self.device)

    def _run(self, first: int, n: int) -> _State:
        return _State(n, Known.run(first, self.batch, n))

    # ---- a pass

    def _append(self, pos: Positions) -> Step:
        state, width = self._state, pos.shape[1]
        end = state.n + width
        places = self._room(end)
        if self._runs_on(pos):
            assert pos.known.first is not None
            origin = pos.known.first - state.n
            skip = 0 if self._window is None else max(0, state.n - self._window + 1)
            new = self._run(origin, end)
            view = self._ranges.run(origin + skip, self.batch, end - skip, pos.length)
        else:
            skip, new = 0, self._with_tables(pos, places)
            assert new.tables is not None
            view = new.tables.cut(0, end, new.known, pos.length)
        self._before, self._state, self._places = state, new, places
        return Step(Span(state.n, width), Span(skip, end - skip), view, places)

    def _room(self, end: int) -> int:
        """How many places there must be for so many columns; raises where there cannot be."""
        if self._capacity is not None and end > self._capacity:
            held = self._state.n
            raise CacheError(
                f"this cache is full: it has {self._capacity} places, holds {held} and {end - held} more are needed; "
                f"create it with capacity={end} or more, or capacity=None to grow"
            )
        return self._places if end <= self._places else grown(self._places, end, self._follows)

    def _runs_on(self, pos: Positions) -> bool:
        """Whether all is a plain run with these positions too."""
        state, first = self._state, pos.known.first
        if first is None or pos.segment is not None or state.tables is not None:
            return False
        return state.n == 0 or first == state.first + state.n

    def _with_tables(self, pos: Positions, places: int) -> _State:
        """The state after rows that are no plain run."""
        state = self._state
        check_segments(state.n > 0, state.tables is not None and state.tables.segment is not None, pos)
        check_rising(pos, self.next_positions, by_one=False)
        # columns past n hold nothing that counts, so they may be written in place and still be taken back
        tables = (state.tables or self._tables(pos)).fit(places, pos)
        tables.write(state.n, pos)
        known = joined(state.known, pos.known)
        next_B = torch.maximum(self.next_positions.order, pos.order.amax(1) + 1)
        return _State(state.n + pos.shape[1], known if pos.segment is None else unlike(known), tables, next_B)

    def _tables(self, like: Positions) -> Tables:
        """Tables of a plain run."""
        state = self._state
        tables = Tables.blank(self.batch, state.n, like)
        tables.write(0, self._ranges.run(state.first, self.batch, state.n, None))
        return tables

    def _undo(self) -> None:
        self._state = self._before

    def _done(self) -> None:
        self._before = self._state

    def _look(self) -> Step:
        state = self._state
        if state.tables is not None:
            view = state.tables.cut(0, state.n, state.known, None)
        else:
            view = self._ranges.run(state.first, self.batch, state.n, None)
        return Step(None, Span(0, state.n), view, self._places)

    def _layout(self) -> Layout | None:
        return None if self._state.tables is not None else Layout((self._before.n,) * self.batch, run=True)

    @property
    def extensible(self) -> bool:
        return self._state.tables is None and self._state.n > 0

    def extend(self, tokens: int) -> LedgerExtension:
        self.commit()
        state, end = self._state, self._state.n + tokens
        self._places = self._room(end)
        self._state = self._before = self._run(state.first, end)
        self._changed()
        return LedgerExtension(Layout((state.n,) * self.batch, run=True), state.first, self._places)

    # ---- between passes

    def _check_crop(self, to: tuple[int, ...]) -> None:
        """Everything is held, so everything can be taken back."""

    def _crop(self, to: tuple[int, ...]) -> None:
        state = self._state
        tables, n, known = state.tables, state.n, state.known
        if tables is None:
            kept = tuple(min(max(end - state.first, 0), n) for end in to)
            n = max(kept)
            known = Known.run(state.first, self.batch, n)
            if min(kept) < n:
                known = Known(None, known.order, known.pos, kept)
                tables = self._tables(self._ranges.run(0, self.batch, 1, None))
        else:  # bounds stay bounds
            known = Known(None, known.order, known.pos, same_rows=known.same_rows and len(set(to)) == 1)
        if tables is not None:
            tables = tables.keep(tables.order < torch.tensor(to, device=self.device)[:, None])
        self._state = self._read(tables, n, known)

    def _read(self, tables: Tables | None, n: int, known: Known) -> _State:
        """A state from tables. In host memory they are read anew, and columns that every row left are given back."""
        if tables is not None and on_host(self.device):
            used = (tables.order[:, :n] >= 0).any(0).nonzero()
            n = int(used[-1]) + 1 if len(used) else 0
            known = tables.facts(0, n)
        if n == 0:
            return self._run(0, 0)
        if tables is None or known.first is not None:
            return _State(n, known)
        return _State(n, known, tables, tables.order[:, :n].amax(1) + 1)

    def _pick(self, index: tuple[int, ...]) -> None:
        state = self._state
        tables = None if state.tables is None else state.tables.pick(index)
        self._state = self._read(tables, state.n, picked(state.known, index))

    def _clear(self) -> None:
        self._state = self._before = self._run(0, 0)

    def fork(self) -> Contiguous:
        self.commit()
        other = self.fresh(self.batch)
        state = self._state
        tables = None if state.tables is None else state.tables.clone()
        other._state = _State(state.n, state.known, tables, state.next_B)
        other._places = self._places
        return other

    def fresh(self, batch: int) -> Contiguous:
        options = {"capacity": self._capacity, "window": self._window, "follows": self._follows}
        return Contiguous(batch, device=self.device, **options)

    # ---- as plain data

    def dump(self) -> LedgerDump:
        state = self._state
        numbers = {"kind": self.kind, "batch": self.batch, "capacity": self._capacity, "window": self._window}
        numbers |= {"n": state.n, "places": self._places, "known": dump_known(state.known)}
        return LedgerDump(numbers, dump_tables(state.tables, state.n))

    @classmethod
    def from_dump(cls, saved: DumpReader, device: torch.device) -> Contiguous:
        capacity, n, places = saved.maybe("capacity"), saved.count("n", 0), saved.count("places", 0)
        ledger = Contiguous(saved.batch, capacity=capacity, window=saved.maybe("window"), device=device)
        if n > places or (capacity is not None and places != capacity):
            damaged(f"it holds {n} tokens in {places} places of {capacity}")
        ledger._places = places  # the buffers as they were: strides decide how products round
        tables = saved.tables(n)
        if tables is None:
            state = _State(n, saved.run(n))
        else:
            known = saved.known()
            check_known(known, tables, 0, n)
            next_B = (tables.order[:, :n].amax(1) + 1).to(device)
            state = _State(n, known, tables.to(device), next_B)
        ledger._state = ledger._before = state
        return ledger

    @property
    def kept_places(self) -> int:
        return self._state.n

    # ---- what it holds

    @property
    def name(self) -> str:
        return "contiguous, growing" if self._capacity is None else f"contiguous, {self._capacity} places"

    @property
    def places(self) -> int:
        return self._places

    @property
    def used(self) -> int:
        return self._state.n

    @property
    def capacity(self) -> int | None:
        return self._capacity

    @property
    def tokens(self) -> tuple[int, ...]:
        state = self._state
        if state.tables is None:
            return (state.n,) * self.batch
        return state.known.counts or tuple((state.tables.order[:, : state.n] >= 0).sum(1).tolist())

    @property
    def next_positions(self) -> NextPositions:
        state = self._state
        return NextPositions.after(state.known, state.next_B, state.n, self.batch, self.device)

    @property
    def holding(self) -> bool:
        return self._state.n > 0

    def _evicted(self) -> tuple[int, ...]:
        return (0,) * self.batch

    def _shared(self) -> tuple[int, ...]:
        return (0,) * self.batch
