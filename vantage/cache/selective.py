"""Places for what a policy keeps, wherever there is one free: a cache that forgets.

What arrives is put into free places and seen by its pass; when the pass is committed the policy says what stays. Each
row, or each head of a row, decides for itself, so places have no order. A pass that is wider than the free places is
shown after what is held, and what stays of it is written when it is committed.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import final

import torch
from torch import Tensor

from vantage.cache.dump import DumpReader, LedgerDump, check_known, damaged, dump_known, dump_tables
from vantage.cache.facts import (
    NextPositions,
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
from vantage.cache.moves import Concatenated, HeadScatter, Span
from vantage.cache.policies import POLICIES, Entries, Policy
from vantage.errors import BadInput, CacheError, Refused
from vantage.spec.positions import Known, Positions
from vantage.spec.selected import Selected


@final
@dataclass(frozen=True, eq=False)
class _Held:
    """Never written into: every pass makes another one. R is the batch times the heads that decide for themselves."""

    tables: Tables  # (R, places)
    scores: Tensor | None  # (R, places)
    start: Tensor  # (B,)
    low: Tensor  # (B,): below this, entries may be gone
    next: Tensor  # (B,)
    known: Known  # of the tables: bounds, and whether rows are the same
    most: int  # no row holds more entries
    host: int | None  # ``next`` as a number, where all rows agree and the host knows


@final
@dataclass(eq=False)
class _Pass:
    """An open pass: what it brings, until it is committed."""

    pos: Positions  # (R, T)
    write: HeadScatter
    wide: bool  # written only when it is committed


@final
class Selective(LastTokensLedger):
    """``heads``: how many key/value heads decide for themselves what they keep; 1: they decide together.

    ``draft`` tokens can be taken back where the rule is a window. In every row the order goes on by one.
    """

    kind = "selective"

    def __init__(
        self,
        batch: int,
        policy: Policy,
        *,
        heads: int = 1,
        draft: int = 0,
        device: torch.device | str | None = None,
    ):
        super().__init__(batch, device)
        if heads < 1 or draft < 0:
            raise BadInput(f"{heads} heads and a draft of {draft}: give 1 or more, and 0 or more")
        self._policy, self._heads = policy, heads
        self._draft = draft
        self._size = policy.kept(self._draft) + self._draft + 1
        self.late, self.evicts_because = policy.by_place, policy.because
        self._state: _Held | None = None
        self._before: _Held | None = None
        self._pass: _Pass | None = None

    # ---- a pass

    def widest(self, pos: Positions) -> int:
        """How many columns of these may make one pass."""
        return self._policy.widest(pos, 0 if self._state is None else self._state.most)

    def _append(self, pos: Positions) -> Step:
        if (n := self.widest(pos)) < pos.shape[1]:
            raise CacheError(f"a pass of {pos.shape[1]} tokens: this cache takes {n} now, then ask it again (widest)")
        if self.late and pos.axes is not None:
            raise Refused("tokens on several axes have no one place: use a cache that keeps positions (by_place=False)")
        segmented = self._state is not None and self._state.tables.segment is not None
        check_segments(self._state is not None, segmented, pos)
        check_rising(pos, self.next_positions, by_one=True)
        old, rows = self._held(pos), pos if self._heads == 1 else pos.repeat(self._heads)
        next_B = torch.maximum(old.next, pos.order.amax(1) + 1)
        begin = torch.where(pos.filled, pos.order, next_B[:, None]).amin(1)
        start, low = (torch.where(old.next == 0, begin, x) for x in (old.start, old.low))
        known = replace(joined(old.known, rows.known), counts=None, empty=True)
        known = known if pos.segment is None and not self._policy.observes else unlike(known)
        most = old.most + pos.shape[1]
        first = pos.known.first
        host = first + pos.shape[1] if first is not None and old.host in (0, first) else None
        self._before = self._state
        self._pass = _Pass(rows, HeadScatter(torch.empty(0), self._heads), most > self._size)
        if self._pass.wide:
            self._state = replace(old, start=start, low=low, next=next_B, known=known, host=host)
            view = side_by_side(old.tables.cut(0, self._size, known, None), rows, known)
            read, tables = Concatenated((Span(0, self._size),)), old.tables
        else:
            index = _free_places(old.tables.order[:, : self._size], rows.filled, self._size)
            self._pass.write.index = index
            tables = old.tables.fitted(self.places, rows)
            tables.scatter(index, rows)
            scores = None if old.scores is None else old.scores.scatter(1, index, 0)
            self._state = _Held(tables, scores, start, low, next_B, known, most, host)
            read, view = Span(0, self._size), tables.cut(0, self._size, known, pos.length)
        step = Step(self._pass.write, read, view, self.places, deferred=self._pass.wide)
        return self._as_selected(step, pos)

    def _as_selected(self, step: Step, pos: Positions) -> Step:
        policy = self._policy
        queries = None
        if self.late:
            queries, step.view_pos = policy.numbers(pos, step.view_pos)
        observe = self._observe if policy.observes else None
        step.selected = Selected(policy.mask, queries, self._heads, observe)
        return step

    def _observe(self, weights_BHTS: Tensor) -> None:
        """The policy gets the weights of this pass, summed over the query heads that read an entry."""
        state, opened = self._state, self._pass
        assert state is not None
        assert opened is not None
        assert state.scores is not None
        got = weights_BHTS.detach().unflatten(1, (self._heads, -1)).sum(2).flatten(0, 1)
        scores = state.scores.to(torch.promote_types(state.scores.dtype, got.dtype))
        got = torch.nn.functional.pad(got, (0, scores.shape[1] - got.shape[2]))
        self._state = replace(state, scores=self._policy.weighed(scores, got, opened.pos))

    def _done(self) -> None:
        """What the policy lets stay; a wide pass is written now."""
        state, opened = self._state, self._pass
        assert state is not None
        assert opened is not None
        self._state = self._chosen(state, opened)
        self._before = self._pass = None

    def _chosen(self, state: _Held, opened: _Pass) -> _Held:
        size, policy = self._size, self._policy
        tables = state.tables
        held = tables.cut(0, size, state.known, None)
        entries = side_by_side(held, opened.pos, state.known) if opened.wide else held
        stay = policy.stay(self._entries(state, entries), self._draft)
        tables = tables.keep(torch.nn.functional.pad(stay[:, :size], (0, 1)))
        if opened.wide:
            new = opened.pos.filled & stay[:, size:]
            opened.write.index = _free_places(tables.order[:, :size], new, size)
            tables = tables.fitted(self.places, opened.pos)
            tables.scatter(opened.write.index, opened.pos)
            tables.forget(size)
        low = torch.maximum(state.low, policy.low(state.next, self._draft))
        most = min(state.most + (opened.pos.shape[1] if opened.wide else 0), policy.kept(self._draft))
        if on_host(self.device):
            most = int((tables.order[:, :size] >= 0).sum(1).amax())
        return replace(state, tables=tables, low=low, most=most)

    def _entries(self, state: _Held, where: Positions) -> Entries:
        scores = None if state.scores is None else state.scores[:, : where.shape[1]]
        next_R = state.next.repeat_interleave(self._heads)[:, None]
        return Entries(where.order, where.segment, scores, next_R)

    def _undo(self) -> None:
        """What was written stands at places that were free before, and are again."""
        self._state, self._before, self._pass = self._before, None, None

    def _held(self, like: Positions) -> _Held:
        if self._state is not None:
            return self._state
        rows, none = self.batch * self._heads, torch.zeros(self.batch, dtype=torch.int64, device=self.device)
        scores = torch.zeros((rows, self.places), device=self.device) if self._policy.observes else None
        known = Known(counts=(0,) * rows, same_rows=True)
        return _Held(Tables.blank(rows, self.places, like), scores, none, none, none, known, 0, 0)

    def _look(self) -> Step:
        state = self._state
        assert state is not None
        return Step(None, Span(0, self._size), state.tables.cut(0, self._size, state.known, None), self.places)

    def _layout(self) -> Layout | None:
        return None  # places have no order

    # ---- between passes

    def _check_crop(self, to: tuple[int, ...]) -> None:
        starts, lows, ends = self._limits()
        documents = self._last_documents()
        for row, (end, start, low, n) in enumerate(zip(to, starts, lows, ends, strict=True)):
            if end >= n or end <= start:
                continue
            if (why := self._policy.lost(end, start, low, documents[row])) is not None:
                raise CacheError(
                    f"{self.name} cannot take row {row} back from {n} to {end}: {why}, or use another kind"
                )

    def _last_documents(self) -> list[int]:
        """Where the last document of each row begins; 0 without documents."""
        segment = None if self._state is None else self._state.tables.segment
        return [0] * self.batch if segment is None else segment[:: self._heads].amax(1).clamp_min(0).tolist()

    def _crop(self, to: tuple[int, ...]) -> None:
        old = self._state
        if old is None:
            return
        limit = torch.tensor(to, device=self.device)
        tables = old.tables.keep(old.tables.order < limit.repeat_interleave(self._heads)[:, None])
        end_B = torch.minimum(old.next, limit)
        gone = end_B <= old.start  # such a row may begin anew, anywhere
        start, low, end_B = (torch.where(gone, 0, x) for x in (old.start, old.low, end_B))
        known = replace(old.known, counts=None, empty=True, same_rows=old.known.same_rows and len(set(to)) == 1)
        if on_host(self.device):
            known = replace(tables.facts(0, self._size), first=None, runs=False)
            if bool(gone.all()):
                self._clear()
                return
        host = NextPositions.read(end_B).host
        self._state = replace(old, tables=tables, start=start, low=low, next=end_B, known=known, host=host)

    def _pick(self, index: tuple[int, ...]) -> None:
        old = self._state
        if old is None:
            return
        rows = torch.tensor(index, device=self.device)
        many = [i * self._heads + head for i in index for head in range(self._heads)]
        scores = None if old.scores is None else old.scores[torch.tensor(many, device=self.device)]
        start, low, end = (x[rows] for x in (old.start, old.low, old.next))
        known = picked(old.known, many)
        self._state = _Held(old.tables.pick(many), scores, start, low, end, known, old.most, old.host)

    def _clear(self) -> None:
        self._state = self._before = self._pass = None

    def fork(self) -> Selective:
        self.commit()
        other = self.fresh(self.batch)
        other._state = self._state  # states are never written into
        return other

    def fresh(self, batch: int) -> Selective:
        return Selective(batch, self._policy, heads=self._heads, draft=self._draft, device=self.device)

    # ---- as plain data

    def dump(self) -> LedgerDump:
        numbers = {"kind": self.kind, "batch": self.batch, "heads": self._heads, "draft": self._draft}
        numbers |= {"policy": {"kind": self._policy.kind, **asdict(self._policy)}}  # pyright: ignore[reportArgumentType] (every policy is a dataclass)
        state = self._state
        if state is None:
            return LedgerDump(numbers, {})
        tables = dump_tables(state.tables, self.places)
        tables |= {"start": state.start.cpu(), "low": state.low.cpu(), "next": state.next.cpu()}
        tables |= {} if state.scores is None else {"scores": state.scores.cpu().contiguous()}
        return LedgerDump(numbers | {"most": state.most, "known": dump_known(state.known)}, tables)

    @classmethod
    def from_dump(cls, saved: DumpReader, device: torch.device) -> Selective:
        heads, draft = saved.count("heads"), saved.count("draft", 0)
        policy = saved.made("policy", POLICIES)
        ledger = Selective(saved.batch, policy, heads=heads, draft=draft, device=device)
        rows = saved.rows(heads)
        tables = rows.tables(ledger.places)
        if tables is not None:
            ledger._state = ledger._from_tables(saved, rows, tables)
        return ledger

    def _from_tables(self, saved: DumpReader, rows: DumpReader, tables: Tables) -> _Held:
        known, most = rows.known(), saved.count("most", 0)
        check_known(known, tables, 0, self._size)
        start, low, end = (saved.column(name) for name in ("start", "low", "next"))
        order = tables.order
        filled = order >= 0
        ends = end.repeat_interleave(self._heads)[:, None]
        if bool((order >= ends).any()) or int(filled.sum(1).max()) > most or bool(filled[:, self._size :].any()):
            damaged("it does not hold what it says")
        if any(len(row) != len(set(row)) for row in ([o for o in row if o >= 0] for row in order.tolist())):
            damaged("it holds a token twice")
        scores = rows.scores(self.places) if self._policy.observes else None
        scores = None if scores is None else scores.to(self.device)
        start, low, end = (x.to(self.device) for x in (start, low, end))
        host = int(end[0]) if bool((end == end[0]).all()) else None
        return _Held(tables.to(self.device), scores, start, low, end, known, most, host)

    @property
    def kept_places(self) -> int:
        return self.places

    # ---- what it holds

    def _limits(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """start, low and next of every row. May read a device."""
        state = self._state
        if state is None:
            none = (0,) * self.batch
            return none, none, none
        return tuple(state.start.tolist()), tuple(state.low.tolist()), tuple(state.next.tolist())

    @property
    def name(self) -> str:
        return str(self._policy) + (f", draft {self._draft}" if self._draft else "")

    @property
    def next_positions(self) -> NextPositions:
        if self._state is None:
            return NextPositions.all(0, self.batch, self.device)
        if self._state.host is not None:
            return NextPositions(self._state.next, self._state.host)
        return NextPositions.read(self._state.next)

    @property
    def holding(self) -> bool:
        return self._state is not None

    def _evicted(self) -> tuple[int, ...]:
        tokens = [n for n in self.tokens for _ in range(self._heads)]
        if self._state is None:
            return (0,) * len(tokens)
        held = (self._state.tables.order >= 0).sum(1).tolist()
        return tuple(n - h for n, h in zip(tokens, held, strict=True))

    def _shared(self) -> tuple[int, ...]:
        return (0,) * (self.batch * self._heads)


def _free_places(order_RS: Tensor, wanted_RT: Tensor, nowhere: int) -> Tensor:
    """(R, T): a free place for every token that wants one, ``nowhere`` for the others."""
    free = (order_RS >= 0).to(torch.int8).argsort(dim=1, stable=True)
    rank = (wanted_RT.long().cumsum(1) - 1).clamp_min(0)
    return torch.where(wanted_RT, free.gather(1, rank), nowhere)
