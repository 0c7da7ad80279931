"""A step whose places are tensors: the host's numbers of it stand nowhere in what is computed.

A graph that was made of one step, by a compiler or by CUDA, then serves all that follow. A ``PlacedStep`` says for one
ledger where a token of each row goes and what it sees; a ``PlacedCache`` is a layer's cache for that one pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn, final

import torch
from torch import Tensor
from torch.nn import functional

from vantage.cache.codecs import Codec, StreamShape
from vantage.cache.ledger import Step
from vantage.cache.moves import (
    BufferRead,
    BufferWrite,
    Copied,
    Gathered,
    Places,
    PoolPlaces,
    Scatter,
    Span,
    Strided,
    Whole,
)
from vantage.cache.running import as_kept
from vantage.errors import CacheError
from vantage.spec.parts import View
from vantage.spec.positions import EMPTY, Known, Positions


@final
class PlacedCache:
    """The keys and values of one layer in buffers that are there already, with a place for what the pass brings."""

    late = False

    def __init__(
        self,
        buffers: Sequence[Tensor],
        codec: Codec,
        streams: tuple[StreamShape, ...],
        write: BufferWrite,
        read: BufferRead,
        view_pos: Positions,
    ):
        self._buffers, self._codec, self._streams = buffers, codec, streams
        self._write, self._read, self._view_pos = write, read, view_pos

    def append(self, pos: Positions, k_BGTd: Tensor, v_BGTe: Tensor, *streams: Tensor) -> View:
        cut = len(self._buffers) - len(self._streams)
        own = as_kept(streams, self._streams, self._buffers[cut:], self._read, pos, self._view_pos)
        for buffer, x in zip(self._buffers, (*self._codec.encode(k_BGTd, v_BGTe), *own), strict=True):
            self._write.put(buffer, x)
        shown = [self._read.get(buffer, None) for buffer in self._buffers]
        k, v = self._codec.decode(shown[:cut])
        return View(k, v, self._view_pos, tuple(shown[cut:]), own)

    def view(self) -> View:
        raise CacheError("a step that is placed appends: look with the cache itself")

    @property
    def states(self) -> NoReturn:
        raise CacheError("a step that is placed keeps no states")


@final
@dataclass(frozen=True, eq=False)
class PlacedStep:
    """Where a step of one token a row goes in one ledger, and what it sees there. Shapes change, numbers do not."""

    index: Tensor  # (1,) of what is seen, the same in every row; or (B, 1); in a pool (B, 1) of its places
    pos: Tensor  # (B, S): of what is seen, -1 where nothing stands
    order: Tensor
    table: Tensor | None  # (B, blocks): in a pool whose blocks are gathered
    block: int
    same_rows: bool

    @staticmethod
    def of(step: Step) -> PlacedStep | None:
        """The same step, whose buffers are ``shown``; ``None``: it is more than one token in one place."""
        if step.deferred or step.selected is not None or step.packing is not None or step.view_pos.segment is not None:
            return None
        write = step.write.then if isinstance(step.write, Copied) else step.write
        where, read = step.view_pos, step.read
        pos, order, device = where.pos, where.order, where.device
        match write, read:
            case ((Span(n=1) | Strided(n=1)), (Span() | Strided())):
                index = torch.full((1,), write.at - read.at, device=device)
            case ((Places() | Scatter()), Span()):
                index = write.index if read.at == 0 else write.index - read.at
            case Strided(n=1), Gathered():
                index = torch.arange(write.rows, device=device)[:, None] * write.stride + write.at
            case PoolPlaces(), Gathered():
                index = write.index
            case _:
                return None
        table, block = (read.table, read.block) if isinstance(read, Gathered) else (None, 0)
        if table is not None:
            spare = table.shape[1] * block - pos.shape[1]
            pos, order = (functional.pad(t, (0, spare), value=EMPTY) for t in (pos, order))
        return PlacedStep(index, pos, order, table, block, where.known.same_rows)

    def shown(self, step: Step, buffers: Sequence[Tensor]) -> list[Tensor]:
        """What a layer's buffers become: what is seen of them, or the pool."""
        return list(buffers) if self.table is not None else [step.read.get(buffer, None) for buffer in buffers]

    def moves(self) -> tuple[BufferWrite, BufferRead]:
        """How to write and read what is shown."""
        if self.table is not None:
            return PoolPlaces(self.index), Gathered(self.table, self.block, self.table.shape[1] * self.block)
        return (Places if self.index.dim() == 1 else Scatter)(self.index), Whole()

    def view_pos(self, top: int, length: int | None) -> Positions:
        """Positions of what is seen; the host knows of them only that none is past ``top``."""
        known = Known(None, None, (0, top), None, empty=True, same_rows=self.same_rows)
        return Positions(self.pos, self.order, None, known, length)
