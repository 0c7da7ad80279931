"""A bias by what a query counts from the newest key on (CoPE), in attention of a new token over a cache.

The count of a key takes in all later ones, of which other programs have most. But counts end at a highest one, so that
mostly the gates of the newest keys are enough: every program sums these by itself. Only where some head has not reached
the highest count by then, each program sums the gates of its share first and waits for the sums of later shares.

No program waits in vain, in whatever order the device starts them:
- Shares are given out as programs begin, the newest keys first (``begun_as``), so that one waits only for programs that
  are running, and each of these tells its sum before it waits itself.
- Nothing keeps them from running on. A kernel that is launched ahead gets places only when all programs of this one
  have theirs, and kernels before it end by themselves.
- A sum is its own sign: one number, exchanged atomically and read anew each time, so that no other write has to be
  ordered with it. The last program of a row's heads puts NOT_SUMMED back when all have read it, and the next layer
  reads the room after this kernel's end.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import triton
import triton.language as tl
from torch import Tensor

from vantage.kernels.gpu.count_tiles import by_count
from vantage.kernels.gpu.row_shares import ask, slots_of
from vantage.kernels.gpu.score_bias import COUNTS, DeviceBias

NOT_SUMMED = tl.constexpr(-1.0)  # stands where a share's sum will be: no sum is negative
RECENT = 256  # the newest keys, whose gates every program sums
COUNTS_AT_ONCE = tl.constexpr(64)


@dataclass(frozen=True)
class CountBias(DeviceBias):
    """``one``: room for the numbers of queries by count, (rows, H, width); ``two``: for the gates of shares, (rows,
    splits, H), NOT_SUMMED between passes. ``vectors`` (width, d), in the queries' type: what numbers are made of."""

    vectors: Tensor | None = None
    recent: int = RECENT  # a power of two

    @staticmethod
    def make(vectors: Tensor, rows: int, splits: int, heads: int, recent: int = RECENT) -> CountBias:
        width, device = len(vectors), vectors.device
        tables = torch.empty((rows, heads, width), device=device)
        gates = torch.full((rows, splits, heads), NOT_SUMMED.value, device=device)
        return CountBias(COUNTS.value, tables, gates, width, vectors, recent)

    def sharing(self, vectors: Tensor) -> CountBias:
        """The same room for another layer's vectors."""
        return replace(self, vectors=vectors)


@triton.jit
def begun_as(begun, SPLITS: tl.constexpr):
    """As which of its row's heads the program has begun, from 0 on: all SPLITS of a pass come here, so that the number
    of all passes needs no reset, and may run over (SPLITS is a power of two)."""
    return tl.atomic_add(begun, 1, sem="relaxed") & (SPLITS - 1)


@triton.jit
def ask_recent(k_base, blocks, first, n, block, vectors, width, newest, D: tl.constexpr, RECENT: tl.constexpr,
               PAGED: tl.constexpr):  # fmt: skip
    """The program of the newest share brings the newest keys nearer, which all programs of a row read at once, and what
    tables are made of."""
    if newest:
        j = tl.maximum(n - RECENT, first) + tl.arange(0, RECENT)
        j = tl.maximum(tl.minimum(j, n - 1), 0)
        ask(k_base + slots_of(blocks, j, j >= 0, block, PAGED) * D)
        ask(vectors + tl.minimum(tl.arange(0, RECENT), width - 1) * D)


@triton.jit
def gates_between(
    q, begin, end, later_from, k_base, k_scales, blocks, block, d, scale, D: tl.constexpr, KEYS: tl.constexpr,
    STAGES: tl.constexpr, PAGED: tl.constexpr, PRECISION: tl.constexpr, TYPE: tl.constexpr, INT8: tl.constexpr,
):  # fmt: skip
    """The gates of the keys from ``begin`` to ``end``, summed for each query; and those from ``later_from`` on."""
    total = tl.zeros((q.shape[0],), tl.float32)
    later = tl.zeros((q.shape[0],), tl.float32)
    for at in tl.range(begin, end, KEYS, num_stages=STAGES):
        j = at + tl.arange(0, KEYS)
        valid = j < end
        slot = slots_of(blocks, j, valid, block, PAGED)
        k = tl.load(k_base + slot[:, None] * D + d[None, :], mask=valid[:, None] & (d < D)[None, :], other=0.0)
        s = tl.dot(q, tl.trans(k.to(TYPE)), input_precision=PRECISION)
        if INT8:
            s *= tl.load(k_scales + slot, mask=valid, other=0.0)[None, :]
        gates = tl.where(valid[None, :], tl.sigmoid(s * scale), 0.0)
        total += tl.sum(gates, 1)
        later += tl.sum(tl.where((j >= later_from)[None, :], gates, 0.0), 1)
    return total, later


@triton.jit
def counted_before(
    new, q, first, start, end, n, share, split, active, k_base, k_scales, blocks, block, d, scale, sums, h, mine, width,
    H: tl.constexpr, D: tl.constexpr, SPLITS: tl.constexpr, KEYS: tl.constexpr, STAGES: tl.constexpr,
    RECENT: tl.constexpr, PAGED: tl.constexpr, PRECISION: tl.constexpr, TYPE: tl.constexpr, INT8: tl.constexpr,
):  # fmt: skip
    """What heads have counted before they come to the share of the keys from ``start`` to ``end``, at least up to the
    highest count: ``new``, the gate of the new token, and those of later keys. ``sums`` (SPLITS, H): what programs of
    the row tell each other. All of them come to the same of the newest keys, so that none waits in vain."""
    recent = tl.maximum(first, n - RECENT)
    near, later = gates_between(
        q, tl.where(start < recent, recent, end), n, end, k_base, k_scales, blocks, block, d, scale, D, KEYS, STAGES,
        PAGED, PRECISION, TYPE, INT8,
    )  # fmt: skip
    carry = new + later
    if (start < recent) & (active > 1) & (tl.min(tl.where(mine, new + near, width)) < width - 1):
        own, _ = gates_between(
            q, start, tl.minimum(end, recent), start, k_base, k_scales, blocks, block, d, scale, D, KEYS, STAGES,
            PAGED, PRECISION, TYPE, INT8,
        )  # fmt: skip
        to = (sums + split * H + h).to(tl.pointer_type(tl.int32), bitcast=True)
        tl.atomic_xchg(to, own.to(tl.int32, bitcast=True), mask=mine, sem="relaxed")
        i = tl.arange(0, SPLITS)
        wanted = ((i > split) & (i < active) & (first + i * share < recent))[:, None] & mine[None, :]
        addresses = sums + i[:, None] * H + h[None, :]
        others = tl.load(addresses, mask=wanted, other=0.0, volatile=True)
        while tl.min(others) < 0:
            others = tl.load(addresses, mask=wanted, other=0.0, volatile=True)
        carry += tl.sum(others, 0)
    return carry


@triton.jit
def forget_counts(sums, h, mine, H: tl.constexpr, SPLITS: tl.constexpr):
    """For the last program of a row's heads, when all have read what others counted."""
    to = sums + tl.arange(0, SPLITS)[:, None] * H + h[None, :]
    tl.store(to, tl.full(to.shape, NOT_SUMMED, tl.float32), mask=mine[None, :])


@triton.jit
def highest_number(raw, vectors, width, d, D: tl.constexpr):
    """What queries have for the highest count, (heads, 1)."""
    vector = tl.load(vectors + (width - 1) * D + d, mask=d < D, other=0.0).to(tl.float32)
    return tl.sum(raw.to(tl.float32) * vector[None, :], 1)[:, None]


@triton.jit
def count_table(raw, vectors, to, mine, width, d, D: tl.constexpr, PRECISION: tl.constexpr, TYPE: tl.constexpr):
    """What queries have for every count. Programs of a row that need it write the same numbers."""
    for begin in range(0, width, COUNTS_AT_ONCE):
        w = begin + tl.arange(0, COUNTS_AT_ONCE)
        vector = tl.load(vectors + w[:, None] * D + d[None, :], mask=(w < width)[:, None] & (d < D)[None, :], other=0.0)
        by = tl.dot(raw.to(TYPE), tl.trans(vector), input_precision=PRECISION)
        tl.store(to + w[None, :], by, mask=mine[:, None] & (w < width)[None, :])
    tl.debug_barrier()


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
