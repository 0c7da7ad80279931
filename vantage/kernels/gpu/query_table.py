"""What new queries have for every distance, before they attend: factor · (q + offset)·keys at each of them.

Attention reads it as a table of its own for each query. A program makes the numbers of up to 16 queries for a share of
the distances, so that vectors of distances are read once for as many rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from vantage.kernels.gpu.decode import TYPES
from vantage.kernels.gpu.row_shares import ask
from vantage.kernels.gpu.score_bias import DeviceBias
from vantage.kernels.gpu.tiles import ROW_TABLE

Launch = Any  # triton's kernels: indexed by their grid, then called
QUERIES = 16  # of a program: the fewest that a product of tiles takes
PROGRAMS = 1024  # that all vectors are read by, about: fewer have too little of them on the way


@dataclass(frozen=True)
class QueryTable:
    """What tables of queries are made of."""

    keys: Tensor  # (H or 1, width, d), in the queries' type
    offset: Tensor | None  # (H, d) float32
    factor: float
    bounded: bool  # further out is as the last: all of a table is made, however many tokens are held

    @property
    def width(self) -> int:
        return self.keys.shape[1]

    def bias(self, tables: Tensor) -> DeviceBias:
        """Of queries with these tables, (B, H, width)."""
        return DeviceBias(ROW_TABLE.value, tables, tables, self.width)


@triton.jit
def by_distance(
    qkv, vectors, shifts, held, tables, qkv_stride, rows, width, factor, H: tl.constexpr, D: tl.constexpr,
    D_TILE: tl.constexpr, QUERIES: tl.constexpr, SOME: tl.constexpr, SHARES: tl.constexpr, COMMON: tl.constexpr,
    BOUNDED: tl.constexpr, OFFSET: tl.constexpr, PRECISION: tl.constexpr, TYPE: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """tables (B, H, width). COMMON: all heads have the same vectors, so that heads of a row are queries of a tile."""
    r = tl.program_id(0) * QUERIES + tl.arange(0, QUERIES)
    first = vectors
    if COMMON:
        b = r // H
        h = r % H
    else:
        b = r
        h = r * 0 + tl.program_id(1)
        first = vectors + tl.program_id(1).to(tl.int64) * width * D
    mine = b < rows
    reach = width
    if not BOUNDED:  # no key is further than the first token
        reach = tl.minimum(tl.max(tl.load(held + b, mask=mine, other=-1)) + 1, width)
    share = tl.cdiv(tl.cdiv(reach, SHARES), SOME) * SOME
    start = tl.program_id(2) * share
    end = tl.minimum(start + share, reach)
    if start >= end:
        return
    d = tl.arange(0, D_TILE)
    if DEPENDENT:  # vectors do not change: they can be asked for while the kernel before still runs
        asked = tl.minimum(start + tl.arange(0, SOME), end - 1).to(tl.int64)
        ask(first + asked * D)
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    inside = mine[:, None] & (d < D)[None, :]
    at = b.to(tl.int64)[:, None] * qkv_stride + h[:, None] * D + d[None, :]
    q = tl.load(qkv + at, mask=inside, other=0.0).to(tl.float32)
    if OFFSET:
        q += tl.load(shifts + h[:, None] * D + d[None, :], mask=inside, other=0.0)
    q = q.to(TYPE)
    to = tables + (b.to(tl.int64) * H + h)[:, None] * width
    for begin in tl.range(start, end, SOME, num_stages=3):
        j = begin + tl.arange(0, SOME)
        k = tl.load(first + j.to(tl.int64)[:, None] * D + d[None, :], mask=(j < end)[:, None] & (d < D)[None, :],
                    other=0.0)  # fmt: skip
        s = tl.dot(q, tl.trans(k), input_precision=PRECISION) * factor
        tl.store(to + j[None, :], s, mask=mine[:, None] & (j < end)[None, :])


def fill(
    qkv: Tensor,
    tables: Tensor,
    table: QueryTable,
    held: Tensor,
    *,
    heads: int,
    key_dim: int,
    some: int = 128,
    dependent: bool = False,
) -> None:
    """tables (B, heads, width) float32 from qkv (B, queries | …). ``held`` (B,): of tables that are not bounded
    numbers are made up to that distance, and none of rows that hold -1."""
    B, common = len(qkv), len(table.keys) == 1
    grid = (triton.cdiv(B * heads, QUERIES), 1) if common else (triton.cdiv(B, QUERIES), heads)
    shares = max(1, min(triton.cdiv(table.width, some), PROGRAMS // (grid[0] * grid[1])))
    shares = 1 << (shares.bit_length() - 1)
    extra = {"launch_pdl": True} if dependent else {}
    kernel: Launch = by_distance
    kernel[(*grid, shares)](
        qkv, table.keys, held if table.offset is None else table.offset, held, tables, qkv.stride(0), B, table.width,
        table.factor, H=heads, D=key_dim, D_TILE=max(16, triton.next_power_of_2(key_dim)), QUERIES=QUERIES, SOME=some,
        SHARES=shares, COMMON=common, BOUNDED=table.bounded, OFFSET=table.offset is not None,
        PRECISION="ieee" if qkv.dtype is torch.float32 else "tf32", TYPE=TYPES[qkv.dtype], DEPENDENT=dependent,
        num_warps=4, **extra,
    )  # fmt: skip
