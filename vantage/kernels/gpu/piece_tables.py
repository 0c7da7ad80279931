"""The tables of a function in pieces (gpu/pieces.py), made of a network of one hidden layer in one launch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from vantage.kernels.gpu.far import LOG2E
from vantage.kernels.gpu.operators import on
from vantage.kernels.gpu.pieces import HEADER

AT_ONCE = 1024  # queries of a program


@triton.jit
def _tables_of_a_head(
    W, B, OUTER, OUTER_B, C, P0, P1, h, wt, oh, ot, K, width, cool, K_TILE: tl.constexpr, W_TILE: tl.constexpr
):
    """P0 of one head: slope and offset of each piece; the first head writes the break points as well."""
    k = tl.arange(0, K_TILE)
    inside = k < K
    w = tl.load(W + k * wt, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(B + k, mask=inside, other=0.0).to(tl.float32)
    out = tl.load(OUTER + h * oh + k * ot, mask=inside, other=0.0).to(tl.float32)
    at = -b / tl.where(w == 0, 1.0, w)
    cuts = (w != 0) & (tl.abs(at) < float("inf"))  # a unit without a weight cuts nothing
    at = tl.where(inside, tl.where(cuts, at, 0.0), float("inf"))
    before = (at[None, :] < at[:, None]) | ((at[None, :] == at[:, None]) & (k[None, :] < k[:, None]))
    rank = tl.sum(before.to(tl.int32), 1)  # of each unit's break point among all
    p = tl.arange(0, W_TILE)
    piece = tl.minimum(p, K)  # behind the last break point all is alike
    beyond = rank[None, :] < piece[:, None]
    active = tl.where(cuts, (w > 0)[None, :] == beyond, (b > 0)[None, :])
    slope = tl.sum(tl.where(active, (out * w)[None, :], 0.0), 1)
    offset = tl.sum(tl.where(active, (out * b)[None, :], 0.0), 1) + tl.load(OUTER_B + h).to(tl.float32)
    to = P0 + (h * width + p) * 2
    tl.store(to, slope * cool, mask=p < width)
    tl.store(to + 1, offset * cool, mask=p < width)
    if h == 0:
        tl.store(P1 + tl.arange(0, HEADER), tl.where(tl.arange(0, HEADER) == 0, tl.abs(tl.load(C).to(tl.float32)), 0.0))
        tl.store(P1 + HEADER + rank, at, mask=inside)
        tl.store(P1 + HEADER + p, float("inf"), mask=(p >= K) & (p < width - 1))


@triton.jit
def _tables(
    W, B, OUTER, OUTER_B, C, LIMIT, P0, P1, wt, oh, ot, K, width, cool, eps, first, T, queries, H: tl.constexpr,
    K_TILE: tl.constexpr, W_TILE: tl.constexpr, AT_ONCE: tl.constexpr,
):  # fmt: skip
    """The first H programs have the pieces of a head each, the others a number for each of so many queries."""
    program = tl.program_id(0)
    if program < H:
        _tables_of_a_head(W, B, OUTER, OUTER_B, C, P0, P1, program, wt, oh, ot, K, width, cool, K_TILE, W_TILE)
    else:
        i = (program - H).to(tl.int64) * AT_ONCE + tl.arange(0, AT_ONCE)
        within = tl.maximum((first + i % T).to(tl.float32), tl.abs(tl.load(LIMIT).to(tl.float32)))
        psi = tl.log(1.0 + tl.abs(tl.load(C).to(tl.float32)) * within)
        tl.store(P1 + HEADER + width - 1 + i, 1.0 / ((psi + eps) * LOG2E), mask=i < queries)


def piece_tables(
    weights: Sequence[Tensor], eps: float, cool: float, heads: Sequence[int], first: int, T: int, breaks: int
) -> tuple[Tensor, Tensor]:
    """(H, breaks + 1, 2) and the second tensor of ``fused_bias._pieces``, of queries from position ``first`` on."""
    inner, inner_bias, outer, outer_bias, c, limit = (x.detach() for x in weights)
    H, K = outer.shape
    queries, width = heads[0] * heads[1] * T, breaks + 1
    one = torch.empty(H, width, 2, device=c.device, dtype=torch.float32)
    two = torch.empty(4 + breaks + queries, device=c.device, dtype=torch.float32)
    kernel: Any = _tables
    with on(c):
        kernel[(H + triton.cdiv(queries, AT_ONCE),)](
            inner, inner_bias, outer, outer_bias, c, limit, one, two, inner.stride(0), *outer.stride(), K, width, cool,
            eps, first, T, queries, H=H, K_TILE=max(16, triton.next_power_of_2(K)),
            W_TILE=triton.next_power_of_2(width), AT_ONCE=AT_ONCE,
        )  # fmt: skip
    return one, two
