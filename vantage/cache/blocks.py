"""Rows of blocks: which blocks of a pool hold a row's tokens, and what a pass needs of the pool."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple, final

from vantage.cache.pool import Pool, Want


@final
@dataclass(frozen=True)
class BlockRow:
    """One row: its token i stands in block ``i // block``, ``gone`` blocks at the front having been let go."""

    blocks: tuple[int, ...] = ()
    tokens: int = 0
    gone: int = 0
    run: bool = True  # the blocks lie side by side

    def place(self, block: int) -> int:
        """Where token 0 stands, or would stand, if the row is a run."""
        return (self.blocks[0] - self.gone) * block

    def with_blocks(self, more: Sequence[int]) -> BlockRow:
        if not more:
            return self
        run = self.run and _side_by_side((*self.blocks[-1:], *more))
        return BlockRow((*self.blocks, *more), self.tokens, self.gone, run)


def _side_by_side(blocks: Sequence[int]) -> bool:
    return not blocks or [*blocks] == [*range(blocks[0], blocks[0] + len(blocks))]  # asked at every fork: no loop


class BlockCopy(NamedTuple):
    """A block to be copied, in every layer's store."""

    source: int
    target: int


class Plan(NamedTuple):
    """What a pass does to the rows and the pool."""

    rows: tuple[BlockRow, ...]
    taken: tuple[int, ...] = ()  # new blocks: given back if the pass fails
    copies: tuple[BlockCopy, ...] = ()
    left: tuple[int, ...] = ()  # blocks no longer needed: given back when the pass is committed


@final
@dataclass(frozen=True)
class _Need:
    """What one row needs of the pool."""

    row: BlockRow
    grown: BlockRow  # the row with its new tokens, and the blocks it had
    blocks: int  # how many more it takes
    split: bool  # its last block is part full and used by others: it must be copied before it is written

    @staticmethod
    def of(pool: Pool, row: BlockRow, tokens: int) -> _Need:
        grown = BlockRow(row.blocks, row.tokens + tokens, row.gone, row.run)
        blocks = -(-grown.tokens // pool.block) - row.gone - len(row.blocks)
        split = tokens > 0 and row.tokens % pool.block > 0 and pool.uses(row.blocks[-1]) > 1
        return _Need(row, grown, blocks, split)

    def want(self) -> Want:
        if self.split:
            return Want(self.blocks + 1)
        return Want(self.blocks, self.row.blocks[-1] if self.row.blocks else None)

    def blocked(self, pool: Pool) -> bool:
        """Whether its new blocks cannot lie next to its last one."""
        return bool(self.row.blocks) and not pool.follows(self.row.blocks[-1], self.blocks)


def plan(pool: Pool, rows: Sequence[BlockRow], counts: Sequence[int]) -> Plan:
    """Take the blocks that so many more tokens a row need. Raises, with nothing taken, if there are not enough."""
    needs = [_Need.of(pool, row, n) for row, n in zip(rows, counts, strict=True)]
    if not any(need.blocks or need.split for need in needs):
        return Plan(tuple(need.grown for need in needs))
    pool.prepare(sum(need.want().blocks for need in needs))
    alone = (
        pool.grows and stride(rows, pool.block) is not None and all(pool.uses(b) == 1 for r in rows for b in r.blocks)
    )
    if alone and any(need.blocked(pool) for need in needs):
        return _move(pool, needs)
    new, taken, copies = [], [], []
    for need, blocks in zip(needs, pool.take([need.want() for need in needs]), strict=True):
        row = need.grown
        if need.split:
            copies.append(BlockCopy(row.blocks[-1], blocks[0]))
            row = replace(row, blocks=row.blocks[:-1])
        new.append(row.with_blocks(blocks))
        taken += blocks
    return Plan(tuple(new), tuple(taken), tuple(copies), tuple(copy.source for copy in copies))


def wanted(pool: Pool, rows: Sequence[BlockRow], counts: Sequence[int]) -> int:
    """How many blocks that plan would take, if no row has to move."""
    return sum(_Need.of(pool, row, n).want().blocks for row, n in zip(rows, counts, strict=True))


def _move(pool: Pool, needs: Sequence[_Need]) -> Plan:
    """Rows that have grown into each other move to where each has as much room again. Seldom: they double."""
    sizes = [len(need.row.blocks) + need.blocks for need in needs]
    pool.reserve(2 * max(sizes) * (len(needs) + 1))
    new, taken, copies = [], [], []
    for need, blocks in zip(needs, pool.take([Want(n) for n in sizes]), strict=True):
        new.append(BlockRow((), need.grown.tokens, need.grown.gone).with_blocks(blocks))
        taken += blocks
        copies += [BlockCopy(*pair) for pair in zip(need.row.blocks, blocks, strict=False)]
    return Plan(tuple(new), tuple(taken), tuple(copies), tuple(copy.source for copy in copies))


def stride(rows: Sequence[BlockRow], block: int) -> int | None:
    """How many places apart equal rows stand, if each is a run; 0 for a single row, ``None`` if they do not."""
    one = rows[0]
    if any(not row.run or not row.blocks or row.tokens != one.tokens or row.gone != one.gone for row in rows):
        return None
    apart = {b.blocks[0] - a.blocks[0] for a, b in pairwise(rows)} or {0}
    return apart.pop() * block if len(apart) == 1 and (len(rows) == 1 or min(apart) > 0) else None


def cropped(pool: Pool, rows: Sequence[BlockRow], kept: Sequence[int]) -> tuple[BlockRow, ...]:
    """The rows with so many tokens kept; blocks past them are given back."""
    new = []
    for row, tokens in zip(rows, kept, strict=True):
        blocks = row.blocks[: -(-tokens // pool.block) - row.gone]
        pool.release(row.blocks[len(blocks) :])
        new.append(BlockRow(blocks, tokens, row.gone, row.run or _side_by_side(blocks)))
    return tuple(new)


def let_go(pool: Pool, rows: Sequence[BlockRow], keep: int) -> tuple[BlockRow, ...]:
    """The rows without the blocks that lie wholly before their last ``keep`` tokens."""
    new = []
    for row in rows:
        gone = max(row.gone, (row.tokens - keep) // pool.block)
        pool.release(row.blocks[: gone - row.gone])
        blocks = row.blocks[gone - row.gone :]
        run = row.run or _side_by_side(blocks)
        new.append(row if gone == row.gone else BlockRow(blocks, row.tokens, gone, run))
    return tuple(new)


def shared_tokens(pool: Pool, rows: Sequence[BlockRow]) -> tuple[int, ...]:
    """Tokens of each row that stand in blocks with other users."""
    size = pool.block
    return tuple(
        sum(min(size, row.tokens - (row.gone + i) * size) for i, block in enumerate(row.blocks) if pool.uses(block) > 1)
        for row in rows
    )
