"""Places by arrival in buffers that never change their size, read whole: what is empty has position -1.

Every pass sees a view of the same shape, whatever is held, and its tokens go where a tensor says. So one CUDA graph
serves every step. It costs reading the whole capacity, be it empty or not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from vantage.cache.dump import DumpReader, LedgerDump, check_known, damaged, dump_known, dump_tables
from vantage.cache.facts import NextPositions, Tables, check_rising, check_segments, joined, picked, unlike
from vantage.cache.ledger import FixedSizeLedger, Layout, LedgerExtension, Step
from vantage.cache.moves import Scatter, Span
from vantage.errors import BadInput, CacheError
from vantage.spec.positions import Known, Positions


@final
@dataclass(frozen=True, eq=False)
class _Places:
    """Tables by place (B, size + 1), and how many places of each row are taken. Never written into."""

    tables: Tables
    held_B: Tensor
    next_B: Tensor  # where each row goes on
    held: tuple[int, ...]  # the same as ``held_B``, known to the host
    known: Known
    first: int | None = None  # where all rows begin, if they are one plain run; None: they are not, or hold nothing


@final
class Static(FixedSizeLedger):
    """``size`` tokens a row, whose order must go on by one. A row has one place more, where empty places are written
    and nobody reads."""

    kind = "static"

    def __init__(self, batch: int, size: int, *, device: torch.device | str | None = None):
        super().__init__(batch, device)
        if size < 1:
            raise BadInput(f"a capacity of {size}: give at least 1")
        self._size = size
        self._state = self._before = self._nothing(Positions.arange(batch, 1, device=self.device))

    def _nothing(self, like: Positions) -> _Places:
        zero = torch.zeros(self.batch, dtype=torch.int64, device=self.device)
        tables = Tables.blank(self.batch, self.places, like)
        none = (0,) * self.batch
        return _Places(tables, zero, zero, none, Known(counts=none, same_rows=True))

    # ---- a pass

    def _append(self, pos: Positions) -> Step:
        state, counts = self._state, pos.known.counts
        if counts is None:
            raise BadInput(
                "a static cache must know how many tokens each row gets: make the positions on the host, with "
                "Positions.arange, Positions.rows or Positions.of on cpu tensors, then move them with .to(device)"
            )
        held = self._room(counts)
        check_segments(self.holding, state.tables.segment is not None, pos)
        check_rising(pos, self.next_positions, by_one=True)
        before = state if self.holding else self._nothing(pos)
        index = torch.where(pos.filled, before.held_B[:, None] + pos.filled.long().cumsum(1) - 1, self._size)
        tables = before.tables.fitted(self.places, pos)  # a copy: views show these places as empty
        tables.scatter(index, pos)
        known = joined(before.known, pos.known)
        known = Known(None, known.order, known.pos, held, min(held) < self._size, known.same_rows)
        self._before, self._state = (
            state,
            _Places(
                tables,
                before.held_B + pos.filled.sum(1),
                torch.maximum(before.next_B, pos.order.amax(1) + 1),
                held,
                known if pos.segment is None else unlike(known),
                self._first_with(pos),
            ),
        )
        return Step(Scatter(index), Span(0, self._size), self._view(pos.length), self.places)

    def _room(self, counts: Sequence[int]) -> tuple[int, ...]:
        """How many each row holds with so many more; raises where there is no room."""
        held = tuple(a + b for a, b in zip(self._state.held, counts, strict=True))
        if max(held) > self._size:
            raise CacheError(
                f"this cache is full: it has {self._size} places, holds {max(self._state.held)} and {max(counts)} more "
                f"are needed; create it with capacity={max(held)} or more"
            )
        return held

    def _first_with(self, pos: Positions) -> int | None:
        """Where all rows begin, if they are one plain run with these positions too."""
        state, first = self._state, pos.known.first
        if first is None or pos.segment is not None:
            return None
        if not self.holding:
            return first
        return state.first if state.first is not None and first == state.first + state.held[0] else None

    def _view(self, length: int | None) -> Positions:
        return self._state.tables.cut(0, self._size, self._state.known, length)

    def _undo(self) -> None:
        self._state = self._before

    def _done(self) -> None:
        self._before = self._state

    def _look(self) -> Step:
        return Step(None, Span(0, self._size), self._view(None), self.places)

    def _layout(self) -> Layout | None:
        state = self._state
        return None if state.tables.segment is not None else Layout(self._before.held, state.first is not None)

    @property
    def extensible(self) -> bool:
        return self._state.first is not None

    def extend(self, tokens: int) -> LedgerExtension:
        self.commit()
        before = self._state
        assert before.first is not None
        self._append(Positions.arange(self.batch, tokens, before.first + before.held[0], device=self.device))
        self._done()
        self._changed()
        return LedgerExtension(Layout(before.held, run=True), before.first, self.places)

    # ---- between passes

    def _check_crop(self, to: tuple[int, ...]) -> None:
        """Everything is held, so everything can be taken back."""

    def _crop(self, to: tuple[int, ...]) -> None:
        state = self._state
        limit = torch.tensor(to, device=self.device)[:, None]
        if state.first is not None:
            held = tuple(min(max(end - state.first, 0), n) for end, n in zip(to, state.held, strict=True))
        else:
            order = state.tables.order[:, : self._size]
            held = tuple(((order >= 0) & (order < limit)).sum(1).tolist())
        tables = state.tables.keep(state.tables.order < limit)
        even, same = len(set(held)) == 1, len(set(to)) == 1
        old = state.known
        known = Known(None, old.order, old.pos, held, min(held) < self._size, old.same_rows and same)
        held_B = torch.tensor(held, device=self.device)
        self._state = self._of(tables, held_B, held, known, state.first if even else None)

    def _of(self, tables: Tables, held_B: Tensor, held: tuple[int, ...], known: Known, first: int | None) -> _Places:
        """A state from tables. Rows that hold nothing at all may begin anew, anywhere."""
        if not any(held):
            return self._nothing(Positions.arange(self.batch, 1, device=self.device))
        return _Places(tables, held_B, tables.order.amax(1) + 1, held, known, first)

    def _pick(self, index: tuple[int, ...]) -> None:
        state = self._state
        held = tuple(state.held[i] for i in index)
        held_B = state.held_B[torch.tensor(index, device=self.device)]
        self._state = self._of(state.tables.pick(index), held_B, held, picked(state.known, index), state.first)

    def _clear(self) -> None:
        self._state = self._before = self._nothing(Positions.arange(self.batch, 1, device=self.device))

    def fork(self) -> Static:
        self.commit()
        other = self.fresh(self.batch)
        other._state = other._before = self._state  # states are never written into
        return other

    def fresh(self, batch: int) -> Static:
        return Static(batch, self._size, device=self.device)

    # ---- as plain data

    def dump(self) -> LedgerDump:
        state = self._state
        numbers = {"kind": self.kind, "batch": self.batch, "size": self._size, "first": state.first}
        return LedgerDump(numbers | {"known": dump_known(state.known)}, dump_tables(state.tables, self.places))

    @classmethod
    def from_dump(cls, saved: DumpReader, device: torch.device) -> Static:
        ledger = Static(saved.batch, saved.count("size"), device=device)
        tables, size = saved.tables(ledger.places), ledger._size
        if tables is None:
            damaged("it has no positions")
        order = tables.order[:, :size]
        held_B = (order >= 0).sum(1)
        if not bool(((order >= 0) == (torch.arange(size) < held_B[:, None])).all()) or not bool(
            ((order[:, 1:] > order[:, :-1]) | (order[:, 1:] < 0)).all()
        ):
            damaged("its rows do not stand one after the other")
        if not bool(held_B.any()):
            return ledger
        known, first = saved.known(), saved.maybe("first", 0)
        check_known(known, tables, 0, size)
        if first is not None and not _runs_from(first, tables, held_B):
            damaged(f"its rows are no plain run from {first}")
        tables.forget(size)
        held = tuple(held_B.tolist())
        ledger._state = ledger._before = ledger._of(tables.to(device), held_B.to(device), held, known, first)
        return ledger

    @property
    def kept_places(self) -> int:
        return self.places

    # ---- what it holds

    @property
    def name(self) -> str:
        return f"static, {self._size} places"

    @property
    def tokens(self) -> tuple[int, ...]:
        return self._state.held

    @property
    def next_positions(self) -> NextPositions:
        state = self._state
        if state.first is not None:
            return NextPositions(state.next_B, state.first + state.held[0])
        return NextPositions.read(state.next_B) if self.holding else NextPositions(state.next_B, 0)

    @property
    def holding(self) -> bool:
        return any(self._state.held)

    def _evicted(self) -> tuple[int, ...]:
        return (0,) * self.batch

    def _shared(self) -> tuple[int, ...]:
        return (0,) * self.batch


def _runs_from(first: int, tables: Tables, held_B: Tensor) -> bool:
    """Whether all rows hold the same many tokens, from ``first`` on, in pos and order alike."""
    n = int(held_B[0])
    run = torch.arange(first, first + n)
    same = bool((held_B == n).all()) and tables.segment is None
    return same and bool((tables.order[:, :n] == run).all() and (tables.pos[:, :n] == run).all())
