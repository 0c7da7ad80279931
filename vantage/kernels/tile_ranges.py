"""Which tiles there are to visit, worked out from the lowest and highest place of each block, once for all layers.

Nothing is read back from the device. A block of queries visits keys from ``lo`` to ``hi``; those from ``full_lo`` to
``full_hi`` are seen whole by all of its queries. Too wide is never wrong, only slower: masked tiles ask for each pair.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from vantage.kernels.mask_flags import MaskFlags
from vantage.spec.positions import Pair, Positions

FAR = 2**30  # behind every order


class BlockBounds(NamedTuple):
    """(R, n): of the filled places of each block."""

    order: tuple[Tensor, Tensor]
    pos: tuple[Tensor, Tensor]
    segment: tuple[Tensor, Tensor]
    rank: tuple[Tensor, Tensor]
    chunk: tuple[Tensor, Tensor]
    whole: Tensor

    def turned(self, *, keys: bool) -> BlockBounds:
        """As (R, queries, 1) or (R, 1, keys)."""

        def turn(x: Tensor) -> Tensor:
            return x[:, None, :] if keys else x[:, :, None]

        return BlockBounds(*((turn(x[0]), turn(x[1])) for x in self[:-1]), whole=turn(self.whole))


class TileRanges(NamedTuple):
    """(R, blocks, 4), int32: lo, full_lo, full_hi, hi; of keys for blocks of queries, of queries for blocks of keys."""

    keys: Tensor
    queries: Tensor


def tile_ranges(pair: Pair, flags: MaskFlags, block: int, beyond: int | None) -> TileRanges:
    """``beyond``: a tile is full only if every query stands so far behind every key; ``None``: anywhere."""
    n = pair.rows
    q = _bounds(pair.q, n, block, flags.chunk).turned(keys=False)
    k = _bounds(pair.k, n, block, flags.chunk).turned(keys=True)
    some, full = _tiles(flags, q, k)
    if beyond is not None:
        full = full & (q.pos[0] - k.pos[1] >= beyond)
    return TileRanges(_stretches(some, full), _stretches(some.transpose(1, 2), full.transpose(1, 2)))


def _bounds(at: Positions, rows: int, block: int, chunk: int) -> BlockBounds:
    order, pos = at.order[:rows], at.pos[:rows]
    segment = torch.zeros_like(order) if at.segment is None else at.segment[:rows]
    missing = -order.shape[1] % block
    if missing:
        order, pos, segment = (torch.nn.functional.pad(x, (0, missing), value=-1) for x in (order, pos, segment))
    order, pos, segment = (x.unflatten(1, (-1, block)) for x in (order, pos, segment))
    filled = order >= 0
    rank = order - segment

    def ends(x: Tensor) -> tuple[Tensor, Tensor]:
        return torch.where(filled, x, FAR).amin(-1), torch.where(filled, x, -FAR).amax(-1)

    start = order - rank % chunk if chunk else order
    return BlockBounds(ends(order), ends(pos), ends(segment), ends(rank), ends(start), filled.all(-1))


def _tiles(flags: MaskFlags, q: BlockBounds, k: BlockBounds) -> tuple[Tensor, Tensor]:
    """(R, queries, keys): whether some pair of a tile may be visible, and whether all are."""
    some = (q.order[0] < FAR) & (k.order[0] < FAR)
    full = q.whole & k.whole
    inner_some, inner_full = some, full
    if flags.causal:
        inner_some, inner_full = inner_some & (k.order[0] <= q.order[1]), inner_full & (k.order[1] <= q.order[0])
    if flags.window:
        n = flags.window
        inner_some = inner_some & (q.order[0] - k.order[1] < n) & (k.order[0] - q.order[1] < n)
        inner_full = inner_full & (q.order[1] - k.order[0] < n) & (k.order[1] - q.order[0] < n)
    if flags.chunk:
        inner_some, inner_full = _alike(q.chunk, k.chunk, inner_some, inner_full)
    if flags.prefix:
        inner_some = inner_some | ((k.rank[0] < flags.prefix) & some)
        inner_full = inner_full | ((k.rank[1] < flags.prefix) & full)
    if flags.segments:
        inner_some, inner_full = _alike(q.segment, k.segment, inner_some, inner_full)
    return inner_some, inner_full


def _alike(a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor], some: Tensor, full: Tensor) -> tuple[Tensor, Tensor]:
    """Where two things must be the same: they may be if their bounds meet, and are if all four are one."""
    some = some & (a[0] <= b[1]) & (b[0] <= a[1])
    return some, full & (a[0] == a[1]) & (b[0] == b[1]) & (a[0] == b[0])


def _stretches(some: Tensor, full: Tensor) -> Tensor:
    """lo and hi around all tiles with something to see, and the last unbroken stretch of full ones between them."""
    i = torch.arange(some.shape[-1], device=some.device)
    hi = torch.where(some, i + 1, 0).amax(-1)
    lo = torch.minimum(torch.where(some, i, some.shape[-1]).amin(-1), hi)
    end = torch.where(full, i + 1, 0).amax(-1)
    start = torch.where(~full & (i < end[..., None]), i + 1, 0).amax(-1)
    start, end = torch.where(end > 0, start, lo), torch.where(end > 0, end, lo)
    return torch.stack((lo, start, end, hi), -1).to(torch.int32)
