"""What a paged ledger knows: the blocks of its rows, and the positions of their tokens."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import torch
from torch import Tensor
from torch.nn import functional

from vantage.cache.blocks import BlockRow
from vantage.cache.dump import DumpReader, check_known, damaged, whole_number
from vantage.cache.facts import Tables, joined, on_host, picked
from vantage.spec.positions import EMPTY, Known


@final
@dataclass(frozen=True, eq=False)
class PagedState:
    """The rows, and the positions of their tokens: a plain run told by ``known``, or tables by token."""

    rows: tuple[BlockRow, ...]
    known: Known
    tables: Tables | None = None  # column i + 1 is token i; column 0 is where empty places are written
    next_B: Tensor | None = None  # with tables: where each row goes on

    @property
    def longest(self) -> int:
        return max(row.tokens for row in self.rows)

    @property
    def first(self) -> int:
        """Where a plain run begins."""
        assert self.known.first is not None
        return self.known.first

    @staticmethod
    def run(rows: tuple[BlockRow, ...], first: int) -> PagedState:
        """Equal rows that run from ``first``."""
        return PagedState(rows, Known.run(first, len(rows), rows[0].tokens))

    def kept(self, to: Sequence[int]) -> list[int]:
        """How many tokens of each row have an order below ``to``. May read a device."""
        ends = [self.first + self.longest] * len(self.rows) if self.next_B is None else self.next_B.tolist()
        return [
            min(max(limit - (end - row.tokens), 0), row.tokens)
            for limit, end, row in zip(to, ends, self.rows, strict=True)
        ]

    def pick(self, index: Sequence[int], device: torch.device) -> PagedState:
        """Some of the rows, in this order."""
        rows, known = tuple(self.rows[i] for i in index), picked(self.known, index)
        if self.tables is None:
            return PagedState(rows, known)
        assert self.next_B is not None
        next_B = self.next_B[torch.tensor(index, device=device)]
        counts = {row.tokens for row in rows}
        known = replace(known, empty=len(counts) > 1)
        return PagedState(rows, known, self.tables.pick(index), next_B).settled(device)

    def settled(self, device: torch.device) -> PagedState:
        """In host memory facts are read anew; rows that hold nothing are a plain run of nothing."""
        if not self.longest:
            return PagedState.run(self.rows, 0)
        if self.tables is None or not on_host(device):
            return self
        known = self.tables.facts(1, self.longest)
        if known.first is not None:
            return PagedState(self.rows, known)
        return PagedState(self.rows, known, self.tables, self.next_B)


def together(states: Sequence[PagedState], device: torch.device) -> PagedState:
    """The state of rows that are no plain run together."""
    rows = tuple(row for state in states for row in state.rows)
    counts, longest = tuple(row.tokens for row in rows), max(row.tokens for row in rows)
    held = [state for state in states if state.longest]
    columns = [[], [], []]
    for state in states:
        for column, t in zip(columns, _columns(state, device), strict=True):
            column.append(t)
    segmented = any(state.tables is not None and state.tables.segment is not None for state in held)
    with torch.inference_mode(False):
        pos, order, segment = (_stacked(column, longest) for column in columns)
    tables = Tables(pos, order, segment if segmented else None)
    known = held[0].known
    for state in held[1:]:
        known = joined(replace(known, counts=None), replace(state.known, counts=None))
    known = Known(None, known.order, known.pos, counts, empty=min(counts) < longest)
    return PagedState(rows, known, tables, order.amax(1) + 1)


def _columns(state: PagedState, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """pos, order and segment of a state's tokens, (B, tokens)."""
    n, size = state.longest, (len(state.rows), state.longest)
    if state.tables is None:
        row = torch.arange(state.first, state.first + n, device=device).expand(size)
        return row, row, torch.full(size, EMPTY, device=device)
    tables = state.tables
    segment = torch.full(size, EMPTY, device=device) if tables.segment is None else tables.segment[:, 1 : 1 + n]
    return tables.pos[:, 1 : 1 + n], tables.order[:, 1 : 1 + n], segment


def _stacked(parts: Sequence[Tensor], longest: int) -> Tensor:
    """Rows of unequal width under each other, an empty column in front."""
    dtype = functools.reduce(torch.promote_types, (part.dtype for part in parts))
    wide = [functional.pad(part.to(dtype), (1, longest - part.shape[1]), value=EMPTY) for part in parts]
    return torch.cat(wide)


# ---- as plain data


def dump_rows(rows: Sequence[BlockRow]) -> list[Any]:
    """Blocks, tokens and blocks gone of every row. Blocks are numbered anew, 1, 2, …: block 0 is the bin."""
    used = sorted({block for row in rows for block in row.blocks})
    number = {block: i + 1 for i, block in enumerate(used)}
    return [[[number[block] for block in row.blocks], row.tokens, row.gone] for row in rows]


def read_rows(saved: DumpReader) -> tuple[BlockRow, ...]:
    blocks = saved.maybe("pool")
    rows = tuple(_row(row, saved.count("block")) for row in saved.list("rows", saved.batch))
    used = sorted({block for row in rows for block in row.blocks})
    if used != list(range(1, len(used) + 1)) or (blocks is not None and len(used) > blocks):
        damaged(f"its rows stand in the blocks {used} of {blocks}")
    return rows


def _row(saved: Any, size: int) -> BlockRow:
    if not (isinstance(saved, list) and len(saved) == 3 and isinstance(saved[0], list)):
        damaged(f"a row is {str(saved)[:80]!r}")
    blocks = [whole_number(block, "block", 1) for block in saved[0]]
    tokens, gone = (whole_number(n, "row", 0) for n in saved[1:])
    if len(blocks) != -(-tokens // size) - gone:
        damaged(f"a row of {tokens} tokens, {gone} blocks of which are gone, stands in {len(blocks)} blocks of {size}")
    return BlockRow((), tokens, gone).with_blocks(blocks)


def read_state(saved: DumpReader, rows: tuple[BlockRow, ...], device: torch.device) -> PagedState:
    counts = [row.tokens for row in rows]
    longest = max(counts)
    tables = saved.tables(1 + longest)
    if tables is None:
        if any(count != longest for count in counts):
            damaged("its rows differ and it does not say how")
        return PagedState(rows, saved.run(longest))
    held = (tables.order[:, 1:] >= 0).sum(1).tolist()
    if held != counts:
        damaged(f"its rows hold {held} positions for {counts} tokens")
    known = saved.known()
    check_known(known, tables, 1, longest)
    tables.order[:, 0] = tables.pos[:, 0] = EMPTY
    return PagedState(rows, known, tables.to(device), (tables.order.amax(1) + 1).to(device))
