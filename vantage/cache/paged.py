"""Places in a pool of blocks: rows of any length, prefixes shared until somebody writes.

A row's tokens stand one after another in its blocks; empty places are not stored. Where equal
rows lie in the pool at equal distances, as a single row does, a view is a slice without a copy;
anywhere else it is gathered block by block.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor

from vantage.cache.blocks import BlockRow, Plan, cropped, let_go, plan, shared_tokens, wanted
from vantage.cache.dump import DumpReader, LedgerDump, dump_known, dump_tables
from vantage.cache.facts import (
    NextPositions,
    Ranges,
    Tables,
    check_rising,
    check_segments,
    joined,
    unlike,
)
from vantage.cache.ledger import Layout, Ledger, LedgerExtension, Step
from vantage.cache.moves import BlockCopies, Copied
from vantage.cache.paged_moves import BlockMoves
from vantage.cache.paged_state import PagedState, dump_rows, read_rows, read_state, together
from vantage.cache.pool import Pool
from vantage.errors import BadInput, CacheError
from vantage.spec.positions import Known, Positions


@final
class Paged(Ledger):
    """Rows in a pool, which several ledgers may share. In every row the order must go on by one.

    With a ``window`` a view leaves out what its first query cannot see any more. With a ``draft``
    as well, blocks that lie wholly outside window + draft go back to the pool, and rows can be
    taken back by ``draft`` tokens at most; without one nothing is let go.

    With ``gather`` a view is always gathered, so that its shape and strides depend on the number of
    tokens alone and never on where the blocks happen to lie: the same row gives the same bits.
    """

    kind = "paged"
    _state = PagedState((), Known())  # so that a ledger that was refused at birth has nothing to give back

    def __init__(
        self,
        batch: int,
        pool: Pool,
        *,
        window: int | None = None,
        draft: int | None = None,
        device: torch.device | str | None = None,
        gather: bool = False,
        ranges: Ranges | None = None,
    ):
        super().__init__(batch, device)
        if window is not None and window < 1:
            raise BadInput(f"a window of {window}: give at least 1, or None to see everything")
        if draft is not None and (draft < 0 or window is None):
            raise BadInput(f"draft={draft} with window={window}: a draft of 0 or more goes with a window")
        self.pool = pool
        self.gather = gather
        self._window, self._draft = window, draft
        self._forget()
        self._ranges = Ranges(self.device) if ranges is None else ranges
        self._moves = BlockMoves(pool.block, self.device, self._ranges)

    def __del__(self) -> None:
        if self._state.rows:
            self.free()

    # ---- a pass

    def _append(self, pos: Positions) -> Step:
        state, counts = self._state, pos.known.counts
        if counts is None:
            raise BadInput(
                "a paged cache must know how many tokens each row gets: make the positions on the host, with "
                "Positions.arange, Positions.rows or Positions.of on cpu tensors, then move them with .to(device)"
            )
        plain = self._runs_on(pos)
        if not plain:
            held = state.longest > 0
            check_segments(held, state.tables is not None and state.tables.segment is not None, pos)
            check_rising(pos, self.next_positions, by_one=True)
        todo = plan(self.pool, state.rows, counts)
        # nothing is refused from here on
        token_BT = None
        if plain:
            assert pos.known.first is not None
            new = PagedState.run(todo.rows, pos.known.first - state.longest)
        else:
            token_BT = self._tokens(pos, state.rows)
            new = self._with_tables(pos, todo.rows, token_BT)
        write = self._moves.write(
            new, pos.shape[1], counts, lambda: self._tokens(pos, state.rows) if token_BT is None else token_BT
        )
        if (copies := self._copies(todo)) is not None:
            write = Copied(copies, write)
        hidden = [0 if self._window is None else max(0, row.tokens - self._window + 1) for row in state.rows]
        read, view = self._moves.read(new, hidden, pos.length, self.gather)
        self._before, self._plan = state, todo
        self._state = new if new.longest else PagedState.run(new.rows, 0)
        return Step(write, read, view, self.places)

    def _runs_on(self, pos: Positions) -> bool:
        """Whether all is a plain run with these positions too."""
        state, first = self._state, pos.known.first
        if first is None or pos.segment is not None or state.tables is not None:
            return False
        longest = state.longest
        return longest == 0 or first == state.first + longest

    def _tokens(self, pos: Positions, rows: tuple[BlockRow, ...]) -> Tensor:
        """Which token of its row each one is, -1 for an empty place, (B, T). ``rows``: before the pass."""
        before = torch.tensor([row.tokens for row in rows], device=self.device)
        return torch.where(pos.filled, before[:, None] + pos.filled.long().cumsum(1) - 1, -1)

    def _with_tables(self, pos: Positions, rows: tuple[BlockRow, ...], token_BT: Tensor) -> PagedState:
        """The state after rows that are no plain run."""
        state = self._state
        longest = max(1, *(row.tokens for row in rows))  # a view has one column at least
        # a copy: a shorter row's next columns were shown, as empty, in views that somebody may still hold
        tables = (state.tables or self._tables(pos)).fitted(1 + longest, pos)
        tables.scatter(token_BT + 1, pos)
        counts = tuple(row.tokens for row in rows)
        known = joined(state.known, pos.known)
        known = Known(None, known.order, known.pos, counts, min(counts) < longest, known.same_rows)
        next_B = torch.maximum(self.next_positions.order, pos.order.amax(1) + 1)
        return PagedState(rows, known if pos.segment is None else unlike(known), tables, next_B)

    def _tables(self, like: Positions) -> Tables:
        """Tables of a plain run."""
        n = self._state.longest
        tables = Tables.blank(self.batch, 1 + n, like)
        tables.write(1, self._ranges.run(self._state.first, self.batch, n, None))
        return tables

    def _undo(self) -> None:
        self.pool.release(self._plan.taken)
        self._state, self._plan = self._before, Plan(self._before.rows)

    def _done(self) -> None:
        self.pool.release(self._plan.left)
        state = self._state
        self._plan = Plan(state.rows)
        if self._draft is not None and self._window is not None:
            rows = let_go(self.pool, state.rows, self._window - 1 + self._draft)
            self._state = PagedState(rows, state.known, state.tables, state.next_B)
        self._before = self._state

    def _look(self) -> Step:
        read, view = self._moves.read(self._state, [0] * self.batch, None, self.gather)
        return Step(None, read, view, self.places)

    def _layout(self) -> Layout | None:
        state = self._state
        if state.tables is not None and state.tables.segment is not None:
            return None
        return Layout(
            tuple(row.tokens for row in self._before.rows),
            state.tables is None,
            tuple(row.blocks for row in state.rows),
            self.pool.block,
            tuple(row.gone for row in state.rows),
        )

    @property
    def extensible(self) -> bool:
        return self._state.tables is None and self._state.longest > 0

    def extend(self, tokens: int) -> LedgerExtension:
        self.commit()
        state = self._state
        todo = plan(self.pool, state.rows, (tokens,) * self.batch)
        # what is given back here may be written again by later work only, which waits for what is under way
        self.pool.release(todo.left)
        rows = todo.rows
        held = tuple(row.tokens for row in state.rows)
        layout = Layout(held, True, tuple(r.blocks for r in rows), self.pool.block, tuple(r.gone for r in rows))
        if self._draft is not None and self._window is not None:  # twice as many tokens as that may be taken back
            rows = let_go(self.pool, rows, self._window - 1 + self._draft + 2 * tokens)
        self._state = self._before = PagedState.run(rows, state.first)
        self._plan = Plan(rows)
        self._changed()
        return LedgerExtension(layout, state.first, self.places, self._copies(todo))

    def _copies(self, todo: Plan) -> BlockCopies | None:
        if not todo.copies:
            return None
        source, target = torch.tensor(todo.copies, device=self.device).unbind(1)
        return BlockCopies(source, target, self.pool.block)

    # ---- between passes

    def _check_crop(self, to: tuple[int, ...]) -> None:
        for b, (row, kept) in enumerate(zip(self._state.rows, self._state.kept(to), strict=True)):
            if row.gone and kept - (self._window or 1) + 1 < row.gone * self.pool.block:
                raise CacheError(
                    f"cannot take row {b} back by {row.tokens - kept} tokens: blocks outside its window of "
                    f"{self._window} and draft of {self._draft} have been let go; "
                    f"make the cache with a draft of {row.tokens - kept} or more, or draft=None to keep everything"
                )

    def _crop(self, to: tuple[int, ...]) -> None:
        state, kept = self._state, self._state.kept(to)
        even = len(set(kept)) == 1
        tables = state.tables
        if even and tables is None:  # a plain run stays one, and no device is asked
            rows = cropped(self.pool, state.rows, kept)
            self._state = self._before = PagedState.run(rows, state.first if any(kept) else 0)
            self._plan = Plan(rows)
            return
        lost = [row.tokens - n for row, n in zip(state.rows, kept, strict=True)]
        if tables is None:
            tables = self._tables(self._ranges.run(0, self.batch, 1, None))
        end_B = self.next_positions.order - torch.tensor(lost, device=self.device)
        end_B = torch.where(torch.tensor(kept, device=self.device) > 0, end_B, 0)
        rows = cropped(self.pool, state.rows, kept)
        if not any(kept):
            self._state = PagedState.run(rows, 0)
        else:
            limit = torch.tensor(to, device=self.device)[:, None]
            tables = tables.keep(tables.order < limit)
            old = state.known
            known = Known(None, old.order, old.pos, tuple(kept), not even, old.same_rows and even)
            self._state = PagedState(rows, known, tables, end_B).settled(self.device)
        self._before, self._plan = self._state, Plan(rows)

    def _pick(self, index: tuple[int, ...]) -> None:
        state = self._state
        new = state.pick(index, self.device)
        for row in new.rows:
            self.pool.share(row.blocks)
        for row in state.rows:
            self.pool.release(row.blocks)
        self._state = self._before = new
        self._plan = Plan(new.rows)

    def _clear(self) -> None:
        for row in self._state.rows:
            self.pool.release(row.blocks)
        self._forget()

    def _forget(self) -> None:
        self._state = self._before = PagedState.run((BlockRow(),) * self.batch, 0)
        self._plan = Plan(self._state.rows)

    def fork(self) -> Paged:
        self.commit()
        other = self.fresh(self.batch)
        state = self._state
        for row in state.rows:
            self.pool.share(row.blocks)
        other._state = other._before = state  # states are never written into
        return other

    def fresh(self, batch: int) -> Paged:
        ranges = self._ranges if self._window is None else None  # rows with a window begin each elsewhere
        return Paged(
            batch,
            self.pool,
            window=self._window,
            draft=self._draft,
            device=self.device,
            gather=self.gather,
            ranges=ranges,
        )

    # ---- as plain data

    def dump(self) -> LedgerDump:
        numbers = {"kind": self.kind, "batch": self.batch, "block": self.pool.block}
        numbers |= {"rows": dump_rows(self._state.rows), "known": dump_known(self._state.known)}
        numbers |= {"pool": None if self.pool.grows else self.pool.blocks}
        numbers |= {"window": self._window, "draft": self._draft}
        return LedgerDump(numbers, dump_tables(self._state.tables, 1 + self._state.longest))

    @classmethod
    def from_dump(cls, saved: DumpReader, device: torch.device) -> Paged:
        rows, blocks, size = read_rows(saved), saved.maybe("pool"), saved.count("block")
        pool = Pool(None if blocks is None else blocks * size, size)
        ledger = Paged(saved.batch, pool, window=saved.maybe("window"), draft=saved.maybe("draft", 0), device=device)
        pool.use_from_the_start(block for row in rows for block in row.blocks)
        ledger._state = ledger._before = read_state(saved, rows, device)
        ledger._plan = Plan(rows)
        return ledger

    @property
    def kept_places(self) -> Tensor:
        """Those of the blocks in use, as ``dump`` numbers them."""
        used = torch.tensor(sorted(self.blocks), dtype=torch.int64)
        return (used[:, None] * self.pool.block + torch.arange(self.pool.block)).flatten()

    # ---- rows that come together and go apart

    @staticmethod
    def check_join(parts: Sequence[Paged]) -> None:
        """Raises where ``join`` would not work."""
        if any(part.pool is not parts[0].pool for part in parts):
            raise CacheError("rows of different pools cannot be joined: make the caches with cache.fresh() of one")
        states = [part._state for part in parts if part.holding]
        if len({state.tables is not None and state.tables.segment is not None for state in states}) > 1:
            raise BadInput("rows with segments and rows without cannot be joined: give all of them segments, or none")

    @staticmethod
    def join(parts: Sequence[Paged]) -> Paged:
        """The rows of several ledgers over one pool as the rows of one; the parts hold nothing afterwards."""
        Paged.check_join(parts)
        whole = parts[0].fresh(sum(part.batch for part in parts))
        states = [part._give() for part in parts]
        rows = tuple(row for state in states for row in state.rows)
        plain = all(state.tables is None for state in states)
        if plain and len({(state.first, state.longest) for state in states}) == 1:
            state = PagedState.run(rows, states[0].first)
        else:
            state = together(states, whole.device).settled(whole.device)
        whole._state, whole._before, whole._plan = state, state, Plan(rows)
        return whole

    def split(self) -> list[Paged]:
        """Every row as a ledger of its own; this one holds nothing afterwards."""
        state, alone = self._give(), []
        for b in range(len(state.rows)):
            one = self.fresh(1)
            one._state = one._before = state.pick((b,), self.device)
            one._plan = Plan(one._state.rows)
            alone.append(one)
        return alone

    def _give(self) -> PagedState:
        """The state, handed over: its blocks now belong to whoever called."""
        self.commit()
        state = self._state
        self._forget()
        self._changed()
        return state

    @property
    def blocks(self) -> set[int]:
        """The blocks of the pool that its rows use."""
        return {block for row in self._state.rows for block in row.blocks}

    @property
    def freeable(self) -> int:
        """How many of its blocks nobody else uses."""
        return sum(self.pool.uses(block) == 1 for row in self._state.rows for block in row.blocks)

    def wants(self, tokens: int) -> int:
        """How many blocks it would take to append so many tokens to every row."""
        return wanted(self.pool, self._state.rows, [tokens] * self.batch)

    # ---- what it holds

    @property
    def name(self) -> str:
        pool = "growing pool" if self.pool.grows else f"pool of {self.pool.blocks} blocks"
        window = "" if self._window is None else f", window {self._window}"
        return f"paged, {pool} of {self.pool.block} tokens a block{window}"

    @property
    def places(self) -> int:
        return self.pool.places

    @property
    def used(self) -> int:
        return self.places

    @property
    def capacity(self) -> int | None:
        return None if self.pool.grows else self.pool.blocks * self.pool.block

    @property
    def pooled(self) -> bool:
        return True

    @property
    def tokens(self) -> tuple[int, ...]:
        return tuple(row.tokens for row in self._state.rows)

    @property
    def next_positions(self) -> NextPositions:
        state = self._state
        return NextPositions.after(state.known, state.next_B, state.longest, self.batch, self.device)

    @property
    def holding(self) -> bool:
        return self._state.longest > 0

    def _evicted(self) -> tuple[int, ...]:
        return tuple(row.gone * self.pool.block for row in self._state.rows)

    def _shared(self) -> tuple[int, ...]:
        return shared_tokens(self.pool, self._state.rows)
