"""How a pass over blocks is written and read, and the positions of what is read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import final

import torch
from torch import Tensor

from vantage.cache.blocks import stride
from vantage.cache.facts import Ranges
from vantage.cache.moves import BufferRead, BufferWrite, Gathered, PoolPlaces, Strided
from vantage.cache.paged_state import PagedState
from vantage.cache.pool import BIN
from vantage.spec.positions import Known, Positions


@final
class BlockMoves:
    """Slices without a copy where equal rows lie at equal distances, gathered block by block anywhere else."""

    def __init__(self, block: int, device: torch.device, steps: Ranges):
        self._size, self._device, self._ranges = block, device, steps
        self._block_tables: dict[tuple[tuple[int, ...], ...], Tensor] = {}

    def write(self, new: PagedState, width: int, counts: Sequence[int], tokens: Callable[[], Tensor]) -> BufferWrite:
        """Where a pass of so many columns goes. ``tokens``: which token of its row each is, -1 for none, (B, T)."""
        size = self._size
        apart = stride(new.rows, size)
        if apart is not None and min(counts) == width:
            at = new.rows[0].place(size) + new.rows[0].tokens - width
            return Strided(at, apart, len(new.rows), width)
        return PoolPlaces(lambda: self._places(new, tokens()))

    def _places(self, new: PagedState, token_BT: Tensor) -> Tensor:
        size = self._size
        gone = torch.tensor([row.gone for row in new.rows], device=self._device)[:, None]
        column = (token_BT // size - gone).clamp_min(0)
        block = self._block_table(tuple(row.blocks for row in new.rows)).gather(1, column)
        return torch.where(token_BT >= 0, block * size + token_BT % size, BIN * size)

    def read(
        self, state: PagedState, hidden: Sequence[int], length: int | None, gather: bool
    ) -> tuple[BufferRead, Positions]:
        """All that is held but so many tokens at the front of each row, which nobody can see."""
        rows, size = state.rows, self._size
        apart = None if gather else stride(rows, size)
        if apart is not None:
            skip = max(min(hidden), rows[0].gone * size)
            n = rows[0].tokens - skip
            return Strided(rows[0].place(size) + skip, apart, len(rows), n), self._view(state, [skip], n, length)
        first = [max(tokens // size, row.gone) for tokens, row in zip(hidden, rows, strict=True)]
        if state.tables is None:  # equal rows: keep them so
            first = [max(first)] * len(rows)
        skips = [block * size for block in first]
        n = max(row.tokens - skip for row, skip in zip(rows, skips, strict=True))
        n = n if state.tables is None else max(1, n)
        blocks = tuple(row.blocks[block - row.gone :] for row, block in zip(rows, first, strict=True))
        return Gathered(lambda: self._block_table(blocks), size, n), self._view(state, skips, n, length)

    def _view(self, state: PagedState, skips: Sequence[int], n: int, length: int | None) -> Positions:
        """The positions of n tokens a row, after those that are skipped (one number, or one a row)."""
        if state.tables is None:
            return self._ranges.run(state.first + skips[0], len(state.rows), n, length)
        known, even = state.known, len(set(skips)) == 1
        if any(skips):
            skips = skips if len(skips) == len(state.rows) else [skips[0]] * len(state.rows)
            counts = tuple(row.tokens - skip for row, skip in zip(state.rows, skips, strict=True))
            known = Known(None, known.order, known.pos, counts, min(counts) < n, known.same_rows and even)
        # the columns after a row's last token are empty: a short row shows some, and so does one that has let go of all
        wide = state.tables.wide(1 + max(skips) + n)
        if even:
            return wide.cut(1 + skips[0], n, known, length)
        column = 1 + torch.tensor(skips, device=self._device)[:, None] + self._ranges.row(0, n)
        return wide.view(lambda t: t.gather(1, column), known, length)

    def _block_table(self, blocks: tuple[tuple[int, ...], ...]) -> Tensor:
        """The blocks of every row, (B, blocks), the bin where a row has fewer. Kept until a row gets a block."""
        if blocks not in self._block_tables:
            self._block_tables = dict(list(self._block_tables.items())[-1:])  # one to write by, one to read by
            wide = max(1, *(len(row) for row in blocks))
            table = [row + (BIN,) * (wide - len(row)) for row in blocks]
            self._block_tables[blocks] = torch.tensor(table, dtype=torch.int64, device=self._device)
        return self._block_tables[blocks]
