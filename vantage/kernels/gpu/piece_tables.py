"""The tables of a function in pieces (gpu/pieces.py), made of a network of one hidden layer in one launch, and the way
back."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from vantage.kernels.gpu.far import LOG2E
from vantage.kernels.gpu.operators import on
from vantage.kernels.gpu.pieces import HEADER
from vantage.spec.rounding import ceil_div, next_power_of_2

QUERIES_PER_PROGRAM = 1024


@triton.jit
def _units(W, B, wt, K, K_TILE: tl.constexpr, W_TILE: tl.constexpr):
    """Weights of the hidden units; their break points, and the rank of each among all; and in which pieces they are
    above 0, (W_TILE, K_TILE)."""
    k = tl.arange(0, K_TILE)
    inside = k < K
    w = tl.load(W + k * wt, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(B + k, mask=inside, other=0.0).to(tl.float32)
    at = -b / tl.where(w == 0, 1.0, w)
    cuts = (w != 0) & (tl.abs(at) < float("inf"))  # a unit without a weight cuts nothing
    at = tl.where(inside, tl.where(cuts, at, 0.0), float("inf"))
    before = (at[None, :] < at[:, None]) | ((at[None, :] == at[:, None]) & (k[None, :] < k[:, None]))
    rank = tl.sum(before.to(tl.int32), 1)
    piece = tl.minimum(tl.arange(0, W_TILE), K)  # behind the last break point all is alike
    beyond = rank[None, :] < piece[:, None]
    return w, b, at, rank, tl.where(cuts, (w > 0)[None, :] == beyond, (b > 0)[None, :])


@triton.jit
def _tables_of_a_head(
    W, B, OUTER, OUTER_B, C, P0, P1, h, wt, oh, ot, K, width, cool, K_TILE: tl.constexpr, W_TILE: tl.constexpr
):
    """P0 of one head: slope and offset of each piece; the first head writes the break points as well."""
    k = tl.arange(0, K_TILE)
    w, b, at, rank, active = _units(W, B, wt, K, K_TILE, W_TILE)
    out = tl.load(OUTER + h * oh + k * ot, mask=k < K, other=0.0).to(tl.float32)
    p = tl.arange(0, W_TILE)
    slope = tl.sum(tl.where(active, (out * w)[None, :], 0.0), 1)
    offset = tl.sum(tl.where(active, (out * b)[None, :], 0.0), 1) + tl.load(OUTER_B + h).to(tl.float32)
    to = P0 + (h * width + p) * 2
    tl.store(to, slope * cool, mask=p < width)
    tl.store(to + 1, offset * cool, mask=p < width)
    if h == 0:
        tl.store(P1 + tl.arange(0, HEADER), tl.where(tl.arange(0, HEADER) == 0, tl.abs(tl.load(C).to(tl.float32)), 0.0))
        tl.store(P1 + HEADER + rank, at, mask=k < K)
        tl.store(P1 + HEADER + p, float("inf"), mask=(p >= K) & (p < width - 1))


@triton.jit
def _tables(
    W, B, OUTER, OUTER_B, C, LIMIT, P0, P1, wt, oh, ot, K, width, cool, eps, first, T, queries, H: tl.constexpr,
    K_TILE: tl.constexpr, W_TILE: tl.constexpr, QUERIES_PER_PROGRAM: tl.constexpr,
):  # fmt: skip
    """The first H programs have the pieces of a head each, the others a number for each of so many queries."""
    program = tl.program_id(0)
    if program < H:
        _tables_of_a_head(W, B, OUTER, OUTER_B, C, P0, P1, program, wt, oh, ot, K, width, cool, K_TILE, W_TILE)
    else:
        i = (program - H).to(tl.int64) * QUERIES_PER_PROGRAM + tl.arange(0, QUERIES_PER_PROGRAM)
        within = tl.maximum((first + i % T).to(tl.float32), tl.abs(tl.load(LIMIT).to(tl.float32)))
        psi = tl.log(1.0 + tl.abs(tl.load(C).to(tl.float32)) * within)
        tl.store(P1 + HEADER + width - 1 + i, 1.0 / ((psi + eps) * LOG2E), mask=i < queries)


@triton.jit
def _signed(x):
    return tl.where(x > 0, 1.0, tl.where(x < 0, -1.0, 0.0))


@triton.jit
def _gradients(
    W, B, OUTER, C, LIMIT, G0, G1, BY_QUERY, DW, DB, DOUTER, DOUTER_B, DC, DLIMIT, wt, oh, ot, K, width, cool, eps,
    first, T, H: tl.constexpr, K_TILE: tl.constexpr, W_TILE: tl.constexpr, QUERIES_PER_PROGRAM: tl.constexpr,
):  # fmt: skip
    """Of the tables' gradients G0 and G1, the latter's of queries summed over rows and heads (BY_QUERY): those of the
    network, of c and of the limit. One program."""
    k = tl.arange(0, K_TILE)
    p = tl.arange(0, W_TILE)
    w, b, _, _, active = _units(W, B, wt, K, K_TILE, W_TILE)
    dw = tl.zeros([K_TILE], tl.float32)
    db = tl.zeros([K_TILE], tl.float32)
    for h in range(H):
        to = G0 + (h * width + p) * 2
        slope = tl.load(to, mask=p < width, other=0.0) * cool
        offset = tl.load(to + 1, mask=p < width, other=0.0) * cool
        by_slope = tl.sum(tl.where(active, slope[:, None], 0.0), 0)
        by_offset = tl.sum(tl.where(active, offset[:, None], 0.0), 0)
        out = tl.load(OUTER + h * oh + k * ot, mask=k < K, other=0.0).to(tl.float32)
        dw += out * by_slope
        db += out * by_offset
        tl.store(DOUTER + h * K + k, (w * by_slope + b * by_offset).to(DOUTER.dtype.element_ty), mask=k < K)
        tl.store(DOUTER_B + h, tl.sum(offset).to(DOUTER_B.dtype.element_ty))
    tl.store(DW + k, dw.to(DW.dtype.element_ty), mask=k < K)
    tl.store(DB + k, db.to(DB.dtype.element_ty), mask=k < K)
    c = tl.load(C).to(tl.float32)
    limit = tl.load(LIMIT).to(tl.float32)
    dc = tl.zeros([QUERIES_PER_PROGRAM], tl.float32)
    dlimit = tl.zeros([QUERIES_PER_PROGRAM], tl.float32)
    for start in range(0, T, QUERIES_PER_PROGRAM):
        i = start + tl.arange(0, QUERIES_PER_PROGRAM)
        pos = (first + i).to(tl.float32)
        within = tl.maximum(pos, tl.abs(limit))
        inner = 1.0 + tl.abs(c) * within
        psi = tl.log(inner) + eps
        grad = -tl.load(BY_QUERY + i, mask=i < T, other=0.0) / (psi * psi * inner * LOG2E)
        dc += grad * within
        share = tl.where(pos < tl.abs(limit), 1.0, tl.where(pos == tl.abs(limit), 0.5, 0.0))  # as torch.maximum has it
        dlimit += share * grad * tl.abs(c)
    tl.store(DC, ((tl.sum(dc) + tl.load(G1)) * _signed(c)).to(DC.dtype.element_ty))
    tl.store(DLIMIT, (tl.sum(dlimit) * _signed(limit)).to(DLIMIT.dtype.element_ty))


class PieceTables(torch.autograd.Function):
    """(H, breaks + 1, 2) and the second tensor of ``fused_bias._pieces``, of a network's weights, c and the limit, for
    so many rows and heads of queries from position ``first`` on: one launch there, one and a sum back."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, Tensor]:
        inner, inner_bias, outer, outer_bias, c, limit, (eps, cool, rows, first, T, breaks) = inputs
        (H, K), queries, width = outer.shape, rows * T, breaks + 1
        one = torch.empty(H, width, 2, device=c.device, dtype=torch.float32)
        two = torch.empty(4 + breaks + queries, device=c.device, dtype=torch.float32)
        kernel: Any = _tables
        with on(c):
            kernel[(H + ceil_div(queries, QUERIES_PER_PROGRAM),)](
                inner, inner_bias, outer, outer_bias, c, limit, one, two, inner.stride(0), *outer.stride(), K, width,
                cool, eps, first, T, queries, H=H, QUERIES_PER_PROGRAM=QUERIES_PER_PROGRAM, **_tiles(K, width),
            )  # fmt: skip
        ctx.save_for_backward(inner, inner_bias, outer, outer_bias, c, limit)
        ctx.numbers = inputs[-1]
        return one, two

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride] (as wrapped)
        inner, inner_bias, outer, _, c, limit = ctx.saved_tensors
        eps, cool, rows, first, T, breaks = ctx.numbers
        (H, K), width = outer.shape, breaks + 1
        g0, g1 = (x.contiguous() for x in grads)
        by_query = g1[4 + breaks :].view(rows, T).sum(0)
        gradients = [torch.empty(x.shape, device=x.device, dtype=x.dtype) for x in ctx.saved_tensors]
        kernel: Any = _gradients
        with on(c):
            kernel[(1,)](
                inner, inner_bias, outer, c, limit, g0, g1, by_query, *gradients, inner.stride(0), *outer.stride(), K,
                width, cool, eps, first, T, H=H, QUERIES_PER_PROGRAM=QUERIES_PER_PROGRAM, **_tiles(K, width),
            )  # fmt: skip
        return *gradients, None


def _tiles(K: int, width: int) -> dict[str, int]:
    return {"K_TILE": max(16, next_power_of_2(K)), "W_TILE": next_power_of_2(width)}
