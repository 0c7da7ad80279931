"""Ways to write into a buffer and to read from it.

A ledger decides where things go; it says so with one write and one read that every layer's
buffers then follow. Buffers are contiguous: (B, G, places, w) where rows own their places,
(G, places, w) where they share a pool. ``x`` is what a pass brings, (B, G, T, w).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor


class BufferWrite(ABC):
    """Puts new entries into a buffer."""

    @abstractmethod
    def put(self, buffer: Tensor, x_BGTw: Tensor) -> None: ...


class BufferRead(ABC):
    """Takes out what there is to look at, (B, G, S, w). ``x`` is what the pass brings, if it brings anything."""

    @abstractmethod
    def get(self, buffer: Tensor, x_BGTw: Tensor | None) -> Tensor: ...


# ---- rows that own their places: (B, G, places, w)


@final
@dataclass(frozen=True)
class Span(BufferWrite, BufferRead):
    """Places at … at + n - 1 of every row, without a copy."""

    at: int
    n: int

    def put(self, buffer: Tensor, x_BGTw: Tensor) -> None:
        self.get(buffer).copy_(x_BGTw)

    def get(self, buffer: Tensor, x_BGTw: Tensor | None = None) -> Tensor:
        b, g, places, w = buffer.shape
        # the same as narrow(2, at, n) in two thirds of the time; this runs four times a layer and step
        return buffer.as_strided((b, g, self.n, w), (g * places * w, places * w, w, 1), self.at * w)


@final
@dataclass(frozen=True)
class Whole(BufferRead):
    """All of a buffer that holds what is to be seen and nothing else."""

    def get(self, buffer: Tensor, x_BGTw: Tensor | None = None) -> Tensor:
        return buffer


@final
@dataclass(frozen=True, eq=False)
class Places(BufferWrite):
    """The same places in every row, in any order. Takes the last of what the pass brings."""

    index: Tensor  # (n,), n <= T

    def put(self, buffer: Tensor, x_BGTw: Tensor) -> None:
        n = len(self.index)
        last = x_BGTw.narrow(2, x_BGTw.shape[2] - n, n)
        buffer.index_copy_(2, self.index, last.to(buffer.dtype))


@final
@dataclass(frozen=True, eq=False)
class Scatter(BufferWrite):
    """A place for every token of every row."""

    index: Tensor  # (B, T)

    def put(self, buffer: Tensor, x_BGTw: Tensor) -> None:
        buffer.scatter_(2, self.index[:, None, :, None].expand(x_BGTw.shape), x_BGTw.to(buffer.dtype))


@final
@dataclass(eq=False)
class HeadScatter(BufferWrite):
    """A place for every token of every row, or of every key/value head of a row."""

    index: Tensor  # (B·heads, T); of a pass that waits it is set when the pass is committed
    heads: int

    def put(self, buffer: Tensor, x_BGTw: Tensor) -> None:
        index = self.index.unflatten(0, (-1, self.heads))
        if self.heads != x_BGTw.shape[1]:
            index = index.repeat_interleave(x_BGTw.shape[1] // self.heads, 1)
        buffer.scatter_(2, index[..., None].expand(x_BGTw.shape), x_BGTw.to(buffer.dtype))


@final
@dataclass(frozen=True)
class Concatenated(BufferRead):
    """Some spans of the buffer, then what the pass brings. With no span: what it brings, without a copy."""

    spans: tuple[Span, ...] = ()

    def get(self, buffer: Tensor, x_BGTw: Tensor | None) -> Tensor:
        assert x_BGTw is not None, "a joined read belongs to a pass"
        x = x_BGTw.to(buffer.dtype)
        return torch.cat([*(span.get(buffer) for span in self.spans), x], 2) if self.spans else x


@final
@dataclass(frozen=True, eq=False)
class Packing:
    """Of a pass into a cache whose older tokens are packed in groups: what is packed, and where the others stand."""

    packed: Tensor  # (B,): tokens at the front of each row that are read packed
    turns: int  # exact places: token i of a row stands at i % turns
    exact: Tensor | None = None  # (B, T): the exact place of what the pass brings; None: it only looks
    group: Tensor | None = None  # (B, size): exact places of the group that is packed now; None: no row packs one
    into: Tensor | None = None  # (B, size): its places, or the one that nobody reads


# ---- rows that share a pool: (G, places, w)


@final
@dataclass(frozen=True)
class Strided(BufferWrite, BufferRead):
    """n places of every row, row b starting at ``at + b * stride``, without a copy."""

    at: int
    stride: int
    rows: int
    n: int

    def put(self, buffer: Tensor, x_BGTw: Tensor) -> None:
        self.get(buffer).copy_(x_BGTw)

    def get(self, buffer: Tensor, x_BGTw: Tensor | None = None) -> Tensor:
        g, places, w = buffer.shape
        return buffer.as_strided((self.rows, g, self.n, w), (self.stride * w, places * w, w, 1), self.at * w)


class LazyTensor:
    """A tensor that is made when it is first wanted: kernels that find places by themselves never want it."""

    def __init__(self, tensor: Tensor | Callable[[], Tensor]):
        self._tensor = tensor

    def get(self) -> Tensor:
        if not isinstance(self._tensor, Tensor):
            self._tensor = self._tensor()
        return self._tensor


@final
class PoolPlaces(BufferWrite):
    """A place in the pool for every token of every row, (B, T)."""

    def __init__(self, index: Tensor | Callable[[], Tensor]):
        self._index = LazyTensor(index)

    @property
    def index(self) -> Tensor:
        return self._index.get()

    def put(self, buffer: Tensor, x_BGTw: Tensor) -> None:
        flat = x_BGTw.transpose(0, 1).flatten(1, 2)
        buffer.index_copy_(1, self.index.flatten(), flat.to(buffer.dtype))


@final
@dataclass(frozen=True, eq=False)
class BlockCopies:
    """Whole blocks that are copied before a row is written: they were shared, or their row moves."""

    source: Tensor  # (n,) blocks
    target: Tensor
    block: int

    def run(self, buffer: Tensor) -> None:
        blocks = buffer.unflatten(1, (-1, self.block))
        blocks.index_copy_(1, self.target, blocks.index_select(1, self.source))


@final
@dataclass(frozen=True, eq=False)
class Copied(BufferWrite):
    """Copy blocks first, then write."""

    copies: BlockCopies
    then: BufferWrite

    def put(self, buffer: Tensor, x_BGTw: Tensor) -> None:
        self.copies.run(buffer)
        self.then.put(buffer, x_BGTw)


@final
class Gathered(BufferRead):
    """The blocks of a table (B, blocks), row by row, cut to n places."""

    def __init__(self, table: Tensor | Callable[[], Tensor], block: int, n: int):
        self._table, self.block, self.n = LazyTensor(table), block, n

    @property
    def table(self) -> Tensor:
        return self._table.get()

    def get(self, buffer: Tensor, x_BGTw: Tensor | None) -> Tensor:
        rows, width = self.table.shape
        g, places, w = buffer.shape
        # whole blocks at a time, as rows of a matrix: long runs of memory, for which a GPU has a kernel of its own
        blocks = places // self.block
        index = self.table.flatten() + torch.arange(g, device=buffer.device)[:, None] * blocks
        gathered = buffer.view(g * blocks, self.block * w).index_select(0, index.flatten())
        return gathered.view(g, rows, width * self.block, w).transpose(0, 1).narrow(2, 0, self.n)
