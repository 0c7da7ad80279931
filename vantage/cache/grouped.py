"""Places by each row's own count, in groups that are packed together (KIVI): where tokens go, and what is packed when.

The newest tokens of a row are kept exactly. A group of older ones is packed as soon as every token of it is older than
those: what a query reads packed follows from its own place in its row and from nothing else, however a prompt was cut.
So one pass never goes over a border at which a group is packed; ``widest`` says how far it may go.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor

from vantage.cache.dump import DumpReader, LedgerDump, check_known, damaged, dump_known, dump_tables
from vantage.cache.facts import NextPositions, Tables, check_rising, joined, on_host, picked
from vantage.cache.ledger import Layout, Ledger, Step
from vantage.cache.memory import FOLLOWS, grown
from vantage.cache.moves import Packing, Scatter, Span
from vantage.errors import BadInput, CacheError, Refused
from vantage.spec.positions import Known, Positions

SEGMENTS = "groups of tokens are counted from the beginning of a row: give each document a row of its own, or use kind="


@final
@dataclass(frozen=True)
class Grouping:
    """``size`` tokens are packed together, once ``newest`` later ones are there."""

    size: int
    newest: int

    def __post_init__(self) -> None:
        if self.size < 1 or self.newest < 1:
            raise BadInput(f"groups of {self.size} tokens behind the newest {self.newest}: give 1 or more of each")

    def packed(self, tokens: Tensor) -> Tensor:
        """How many of so many tokens are packed."""
        return (tokens - self.newest).clamp_min(0) // self.size * self.size

    def exact_places(self, draft: int) -> int:
        """Places for what is not packed, for a group that a failed pass may have packed, and for a draft."""
        return self.newest + 2 * self.size + draft


@final
@dataclass(frozen=True, eq=False)
class _Rows:
    """Token i of a row stands at place i. Never written into: a pass makes a new one."""

    start: Tensor  # (B,): the order of each row's first token
    next: Tensor  # (B,): where it goes on; 0: it holds nothing
    top: Tensor  # (B,): tokens up to which exact places have been written, those taken back included
    tables: Tables
    known: Known
    most: int  # tokens of the longest row, or more
    host: int | None  # tokens of every row, where the host knows

    @property
    def tokens(self) -> Tensor:
        return self.next - self.start


@final
class Grouped(Ledger):
    """``draft`` tokens can always be taken back; of more, what no packed group must be undone for.

    In every row the order goes on by one. Documents are refused.
    """

    kind = "grouped"

    def __init__(
        self,
        batch: int,
        grouping: Grouping,
        *,
        draft: int = 0,
        capacity: int | None = None,
        device: torch.device | str | None = None,
    ):
        super().__init__(batch, device)
        if draft < 0 or (capacity is not None and capacity < 1):
            raise BadInput(f"a draft of {draft} and a capacity of {capacity}: give 0 or more, and 1 or more or None")
        self.grouping, self._draft, self._capacity = grouping, draft, capacity
        self._room = capacity or 0
        self._state: _Rows | None = None
        self._before: _Rows | None = None

    @property
    def exact_places(self) -> int:
        """Of the tokens that are not packed, in turn."""
        return self.grouping.exact_places(self._draft)

    # ---- a pass

    def widest(self, pos: Positions) -> int:
        """How many columns of these may make one pass: up to the next one before which a group is packed.

        One at a time where rows differ and lie on a device, from which nothing is read back; but for the first few,
        before any group can be packed.
        """
        width, state = pos.shape[1], self._state
        host = 0 if state is None else state.host
        if host is not None and not pos.known.empty:
            counts = host + torch.arange(1, width + 1)[None]
            filled = torch.ones_like(counts, dtype=torch.bool)
        elif on_host(self.device):
            filled = pos.filled
            counts = filled.long().cumsum(1) + (0 if state is None else state.tokens[:, None])
        else:
            first_few = self.grouping.newest + self.grouping.size - 1
            return max(1, min(width, first_few - (0 if state is None else state.most)))
        packed = self.grouping.packed(counts)
        first = torch.where(filled, packed, torch.iinfo(packed.dtype).max).amin(1, keepdim=True)
        over = (filled & (packed > first)).any(0).nonzero()
        return int(over[0]) if len(over) else width

    def _append(self, pos: Positions) -> Step:
        if pos.segment is not None:
            raise Refused(f"{SEGMENTS}'contiguous'")
        if (n := self.widest(pos)) < pos.shape[1]:
            raise CacheError(f"a pass of {pos.shape[1]} tokens: this cache takes {n} now, then ask it again (widest)")
        check_rising(pos, self.next_positions, by_one=True)
        old = self._held(pos)
        new = self._onward(old, pos)
        self._room = self._places_for(new.most)
        index = torch.where(pos.filled, pos.order - new.start[:, None], self._room)
        tables = old.tables.fitted(self.places, pos)
        tables.scatter(index, pos)
        tables.forget(self._room)
        self._before, self._state = self._state, replace(new, tables=tables)
        view = tables.cut(0, new.most, new.known, pos.length)
        packing = self._packing(old, new, pos, index)
        return Step(Scatter(index), Span(0, new.most), view, self.places, packing=packing)

    def _onward(self, old: _Rows, pos: Positions) -> _Rows:
        """The rows with these tokens, their tables apart."""
        next_B = torch.maximum(old.next, pos.order.amax(1) + 1)
        begin = torch.where(pos.filled, pos.order, next_B[:, None]).amin(1)
        start = torch.where(old.next == 0, begin, old.start)
        top = torch.maximum(old.top, next_B - start)
        width, first = pos.shape[1], pos.known.first
        host = None if old.host is None or pos.known.empty else old.host + width
        most = old.most + width if host is None else host
        if host is None and on_host(self.device):
            most = int((next_B - start).amax())
        begins = None if first is None or host is None else first - (host - width)  # if it is a run with what was there
        if begins is not None and (old.host == 0 or old.known.first == begins):
            known = Known.run(begins, self.batch, most)
        else:
            known = replace(joined(old.known, pos.known), counts=None, empty=True)
        return _Rows(start, next_B, top, old.tables, known, most, host)

    def _packing(self, old: _Rows, new: _Rows, pos: Positions, index: Tensor) -> Packing:
        """What the stores do beside it: exact tokens in turn, and the group that is packed now, if any."""
        turns, size = self.exact_places, self.grouping.size
        was, now = self.grouping.packed(old.tokens), self.grouping.packed(new.tokens)
        exact = torch.where(pos.filled, index % turns, turns)
        if old.host is not None and new.host is not None:
            packs = self.grouping.packed(torch.tensor([old.host, new.host])).diff()
        else:
            packs = now - was
        if on_host(packs.device) and not bool(packs.any()):
            return Packing(now, turns, exact)
        group = (now - size)[:, None] + torch.arange(size, device=self.device)
        into = torch.where((now > was)[:, None], group, self._room)
        return Packing(now, turns, exact, group.clamp_min(0) % turns, into)

    def _held(self, like: Positions) -> _Rows:
        if self._state is not None:
            return self._state
        none = torch.zeros(self.batch, dtype=torch.int64, device=self.device)
        known = Known(counts=(0,) * self.batch, same_rows=True)
        return _Rows(none, none, none, Tables.blank(self.batch, self.places, like), known, 0, 0)

    def _places_for(self, tokens: int) -> int:
        """How many places there must be for so many tokens of a row; raises where there cannot be."""
        if self._capacity is not None and tokens > self._capacity:
            raise CacheError(
                f"this cache is full: it has {self._capacity} places and {tokens} tokens were to be held; "
                f"make it with capacity={tokens} or more, or capacity=None to grow"
            )
        return self._room if tokens <= self._room else grown(self._room, tokens, FOLLOWS)

    def _undo(self) -> None:
        """What was packed too early is packed again, to the same; the places that were overwritten stay so."""
        after, self._state = self._state, self._before
        if self._state is not None and after is not None:
            self._state = replace(self._state, top=after.top)

    def _done(self) -> None:
        self._before = self._state

    def _look(self) -> Step:
        state = self._state
        assert state is not None
        view = state.tables.cut(0, state.most, state.known, None)
        packing = Packing(self.grouping.packed(state.tokens), self.exact_places)
        return Step(None, Span(0, state.most), view, self.places, packing=packing)

    def _layout(self) -> Layout | None:
        return None  # what is packed only its reads know

    # ---- between passes

    def _check_crop(self, to: tuple[int, ...]) -> None:
        state = self._state
        if state is None:
            return
        rows = (t.tolist() for t in (state.start, state.tokens, state.top))
        for row, (end, start, tokens, top) in enumerate(zip(to, *rows, strict=True)):
            left, oldest = end - start, top - self.exact_places
            if 0 < left < tokens and int(self.grouping.packed(torch.tensor(left))) < oldest:
                raise CacheError(
                    f"row {row} cannot be taken back from {start + tokens} to {end}: groups of {self.grouping.size} "
                    f"tokens were packed since, and tokens before {start + oldest} are no longer there as they came; "
                    f"make the cache with a draft of {tokens - left} or more, or use another kind"
                )

    def _crop(self, to: tuple[int, ...]) -> None:
        if (state := self._state) is None:
            return
        limit = torch.tensor(to, device=self.device)
        gone = limit <= state.start  # such a row may begin anew, anywhere
        next_B = torch.minimum(state.next, limit)
        start, next_B, top = (torch.where(gone, 0, x) for x in (state.start, next_B, state.top))
        tables = state.tables.keep(state.tables.order < limit[:, None])
        known = replace(
            state.known, first=None, runs=False, rising=False, counts=None, empty=True, same_rows=state.known.same_rows
        )
        known = known if len(set(to)) == 1 else replace(known, same_rows=False)
        self._state = self._before = self._read(_Rows(start, next_B, top, tables, known, state.most, None))

    def _read(self, rows: _Rows) -> _Rows | None:
        """With all that can be read in host memory; ``None``: no row holds anything."""
        if not on_host(self.device):
            return rows
        tokens = rows.tokens.tolist()
        most = max(tokens)
        if most == 0:
            return None
        host = most if min(tokens) == most else None
        return replace(rows, most=most, host=host, known=rows.tables.facts(0, most))

    def _pick(self, index: tuple[int, ...]) -> None:
        if (state := self._state) is None:
            return
        rows = torch.tensor(index, device=self.device)
        start, next_B, top = (x[rows] for x in (state.start, state.next, state.top))
        picked_rows = _Rows(
            start, next_B, top, state.tables.pick(index), picked(state.known, index), state.most, state.host
        )
        self._state = self._before = self._read(picked_rows)

    def _clear(self) -> None:
        self._state = self._before = None

    def fork(self) -> Grouped:
        self.commit()
        other = self.fresh(self.batch)
        other._state = other._before = self._state  # states are never written into
        other._room = self._room
        return other

    def fresh(self, batch: int) -> Grouped:
        return Grouped(batch, self.grouping, draft=self._draft, capacity=self._capacity, device=self.device)

    # ---- as plain data

    def dump(self) -> LedgerDump:
        grouping = {"group": self.grouping.size, "newest": self.grouping.newest}
        numbers = {"kind": self.kind, "batch": self.batch, **grouping, "draft": self._draft}
        numbers |= {"capacity": self._capacity, "room": self._room}
        if (state := self._state) is None:
            return LedgerDump(numbers, {})
        tables = dump_tables(state.tables, state.most)
        tables |= {"start": state.start.cpu(), "next": state.next.cpu(), "top": state.top.cpu()}
        return LedgerDump(numbers | {"most": state.most, "known": dump_known(state.known)}, tables)

    @classmethod
    def from_dump(cls, saved: DumpReader, device: torch.device) -> Grouped:
        grouping = Grouping(saved.count("group"), saved.count("newest"))
        capacity, room = saved.maybe("capacity"), saved.count("room", 0)
        ledger = Grouped(saved.batch, grouping, draft=saved.count("draft", 0), capacity=capacity, device=device)
        if capacity is not None and room != capacity:
            damaged(f"it has {room} places of {capacity}")
        ledger._room = room
        most = saved.maybe("most")
        if most is None:
            return ledger
        tables = saved.tables(most)
        if tables is None or most > room:
            return damaged(f"it holds {most} tokens in {room} places")
        known = saved.known()
        check_known(known, tables, 0, most)
        start, end, top = (saved.column(name) for name in ("start", "next", "top"))
        places = torch.arange(most)
        expected = torch.where(places < (end - start)[:, None], start[:, None] + places, -1)
        if not torch.equal(tables.order, expected) or not bool(((start >= 0) & (top >= end - start)).all()):
            damaged("its rows do not hold what they say")
        tables = tables.to(device).wide(ledger.places)
        host = int(end[0] - start[0]) if len(set((end - start).tolist())) == 1 else None
        start, end, top = (x.to(device) for x in (start, end, top))
        ledger._state = ledger._before = _Rows(start, end, top, tables, known, most, host)
        return ledger

    @property
    def kept_places(self) -> int:
        return 0 if self._state is None else self._state.most

    # ---- what it holds

    @property
    def name(self) -> str:
        return f"groups of {self.grouping.size} packed behind the newest {self.grouping.newest}"

    @property
    def places(self) -> int:
        return self._room + 1  # one more, where empty places are written and nobody reads

    @property
    def used(self) -> int:
        return self.kept_places

    @property
    def capacity(self) -> int | None:
        return self._capacity

    @property
    def tokens(self) -> tuple[int, ...]:
        return (0,) * self.batch if self._state is None else tuple(self._state.tokens.tolist())

    @property
    def next_positions(self) -> NextPositions:
        state = self._state
        if state is None:
            return NextPositions.all(0, self.batch, self.device)
        if state.host is not None and state.known.first is not None:
            return NextPositions.all(state.known.first + state.host, self.batch, self.device)
        return NextPositions.read(state.next)

    @property
    def holding(self) -> bool:
        return self._state is not None

    def _evicted(self) -> tuple[int, ...]:
        return (0,) * self.batch

    def _shared(self) -> tuple[int, ...]:
        return (0,) * self.batch
