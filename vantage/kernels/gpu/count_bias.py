"""A bias by what a query counts from the newest key on (CoPE), in attention of a new token over a cache.

What a key counts for is known only with its scores, and the count of a key takes in all later ones. So a first kernel
sums the gates of every share of the keys, and attention goes through its share from the newest key on, beginning with
the sums of later shares. Keys are read twice, the second time mostly from the L2 cache. The first kernel also makes
each query's numbers for every count.
"""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor

from vantage.kernels.gpu.count_tiles import by_count
from vantage.kernels.gpu.score_bias import COUNTS, DeviceBias


@dataclass(frozen=True)
class CountBias(DeviceBias):
    """``one``: the numbers of queries by count, (rows, H, width), ``two``: the gates of shares, and of the new token
    behind them, (rows, splits + 1, H). Both are made of the queries and ``vectors`` (width, d), in their type."""

    vectors: Tensor | None = None

    @staticmethod
    def over(vectors: Tensor, tables: Tensor, gates: Tensor) -> CountBias:
        return CountBias(COUNTS.value, tables, gates, len(vectors), vectors)


@triton.jit
def later_gates(gates, b, h, mine, split, active, H: tl.constexpr, SPLITS: tl.constexpr):
    """What heads have counted before they come to this share: the new token and all later shares; and the new token."""
    i = tl.arange(0, SPLITS)
    row = gates + b.to(tl.int64) * ((SPLITS + 1) * H)
    later = (i > split) & (i < active)
    sums = tl.load(row + i[:, None] * H + h[None, :], mask=later[:, None] & mine[None, :], other=0.0)
    new = tl.load(row + SPLITS * H + h, mask=mine, other=0.0)
    return new + tl.sum(sums, 0), new


@triton.jit
def counted(s, valid, carry, last, row, mine, tables, width, scale):
    """The bias of a tile of keys from the products s (heads, keys), and what is counted behind it. ``last``: the number
    of the highest count, ``row``: which line of ``tables`` a head has; both (heads, 1)."""
    gates = tl.where(valid[None, :], tl.sigmoid(s * scale), 0.0)
    bias = last + gates * 0.0
    if tl.min(tl.where(mine, carry, width)) < width - 1:
        counts = carry[:, None] + tl.cumsum(gates, 1, reverse=True)
        bias, _, _, _ = by_count(counts, tables, tl.where(mine[:, None], row, 0) * width, width, False)
    return bias, carry + tl.sum(gates, 1)
