"""A pool of blocks, counted by use: the memory that paged rows share.

The pool only does the counting. Block b of every layer's store is places b * block … of its
buffers; block 0 is the bin, where empty places are written and which is never read as a token.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple, final

import numpy as np

from vantage.cache.memory import FOLLOWS, grown
from vantage.errors import BadInput, CacheError

BIN = 0
BLOCK = 16  # tokens of a block, unless somebody says otherwise


class Want(NamedTuple):
    """Some blocks for one row, best right after the last one it has."""

    blocks: int
    after: int | None = None


class Gap(NamedTuple):
    """Free blocks side by side."""

    start: int
    blocks: int


@final
class Pool:
    """``tokens`` in blocks of ``block``, or growing when ``tokens`` is ``None`` (``memory.grown``).

    A row whose blocks lie side by side is read without a copy, so the pool hands out the
    block next to a row's last one where it can, and starts new rows far from the others.
    """

    def __init__(self, tokens: int | None = None, block: int = BLOCK, follows: int = FOLLOWS):
        """``follows``: tokens to make room for beyond the first ones, in a pool that grows."""
        if block < 1:
            raise BadInput(f"blocks of {block} tokens: give at least 1")
        if tokens is not None and tokens < 1:
            raise BadInput(f"a pool for {tokens} tokens: give at least 1, or None to grow")
        self.block = block
        self.grows, self._follows = tokens is None, -(-follows // block)
        blocks = 0 if tokens is None else -(-tokens // block)
        self._uses = [1] + [0] * blocks  # the bin is always in use
        self._used = bytearray(self._uses)  # 1 for those with users: to look through all of them at once
        self._free = blocks

    @property
    def places(self) -> int:
        """Places of a buffer, the bin's included."""
        return len(self._uses) * self.block

    @property
    def blocks(self) -> int:
        return len(self._uses) - 1

    @property
    def free(self) -> int:
        """Blocks nobody uses."""
        return self._free

    def uses(self, block: int) -> int:
        return self._uses[block]

    def prepare(self, blocks: int) -> None:
        """Have so many free: grow if it may, raise if it may not."""
        if blocks > self._free and not self.grows:
            raise CacheError(
                f"out of blocks: the pool has {self.blocks} of {self.block} tokens, {self._free} are free and "
                f"{blocks} are needed; free or crop a cache, or make the pool larger (capacity)"
            )
        if blocks > self._free:
            most = grown(self.blocks, self.blocks + blocks - self._free, self._follows)
            self._grow(most - self.blocks)

    def reserve(self, blocks: int) -> None:
        """Grow until so many lie free side by side."""
        if all(gap.blocks < blocks for gap in self._gaps()):
            self._grow(max(blocks, self.blocks))

    def follows(self, block: int, n: int) -> bool:
        """Whether the n blocks after this one are free."""
        after = self._uses[block + 1 : block + 1 + n]
        return len(after) == n and not any(after)

    def take(self, wants: Sequence[Want]) -> list[list[int]]:
        """Blocks for every want, each used once from now on. All or nothing."""
        self.prepare(sum(want.blocks for want in wants))
        taken = [self._next_to(want) for want in wants]
        short = [i for i, want in enumerate(wants) if len(taken[i]) < want.blocks]
        for i, more in zip(short, self._apart([wants[i].blocks - len(taken[i]) for i in short]), strict=True):
            taken[i] += more
        return taken

    def use_from_the_start(self, blocks: Iterable[int]) -> None:
        """In a fresh pool: take the blocks 1, 2, … that are named here, each as often as it is named."""
        assert self._free == self.blocks, "this pool is in use"
        uses = Counter(blocks)
        if uses:
            self.take([Want(len(uses))])
            self.share(block for block, n in uses.items() for _ in range(n - 1))

    def share(self, blocks: Iterable[int]) -> None:
        """One more user of each."""
        for block in blocks:
            assert self._uses[block] > 0, "a free block cannot be shared"
            self._uses[block] += 1

    def release(self, blocks: Iterable[int]) -> None:
        """One user less of each; without users it is free."""
        for block in blocks:
            assert block != BIN, "the bin is never given back"
            assert self._uses[block] > 0, "a block was given back twice"
            self._uses[block] -= 1
            if self._uses[block] == 0:
                self._used[block] = 0
                self._free += 1

    def _grow(self, blocks: int) -> None:
        self._uses += [0] * blocks
        self._used += bytes(blocks)
        self._free += blocks

    def _use(self, blocks: Iterable[int]) -> list[int]:
        taken = list(blocks)
        for block in taken:
            self._uses[block] = self._used[block] = 1
        self._free -= len(taken)
        return taken

    def _next_to(self, want: Want) -> list[int]:
        """As many as lie free right after the row's last block."""
        if want.after is None:
            return []
        start = want.after + 1
        near = self._uses[start : start + want.blocks]
        free = next((i for i, uses in enumerate(near) if uses), len(near))
        return self._use(range(start, start + free))

    def _apart(self, counts: Sequence[int]) -> list[list[int]]:
        """Blocks for rows that begin anew: evenly over the largest gap, or wherever there are any."""
        if not counts:
            return []
        starts, ends = self._edges()
        largest = int((ends - starts).argmax())
        gap = Gap(int(starts[largest]), int(ends[largest] - starts[largest]))
        behind = int(gap.start > 1)  # leave room to grow for whoever ends where the gap begins
        stride = gap.blocks // (len(counts) + behind)
        if stride >= max(counts):
            starts = [gap.start + stride * (i + behind) for i in range(len(counts))]
            return [self._use(range(start, start + n)) for start, n in zip(starts, counts, strict=True)]
        return [self._use(self._any(n)) for n in counts]

    def _any(self, n: int) -> list[int]:
        """n free blocks, from the largest gaps: the fewer pieces the better."""
        free: list[int] = []
        for gap in sorted(self._gaps(), key=lambda gap: -gap.blocks):
            free += range(gap.start, gap.start + min(gap.blocks, n - len(free)))
        return free

    def _gaps(self) -> list[Gap]:
        starts, ends = (edges.tolist() for edges in self._edges())
        return [Gap(start, end - start) for start, end in zip(starts, ends, strict=True)]

    def _edges(self) -> tuple[np.ndarray, np.ndarray]:
        """Where gaps begin, and where they end."""
        edges = np.flatnonzero(np.diff(np.frombuffer(b"\1" + self._used + b"\1", np.int8)))
        return edges[::2], edges[1::2]
