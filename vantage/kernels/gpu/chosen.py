"""Attention to chosen keys in Triton: a program has the heads of one query that share a key head, and reads its keys.

On the way back each program adds to the gradients of the keys it has read, so sums come in any order.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from vantage.kernels.gpu.tiles import LN2, LOG2E

MAX_ROWS = 64  # heads of a program
BLOCK = 64  # keys that it reads at once


@triton.jit
def read_keys(COLUMNS, X, xt, n, keys, cells, x, width, BLOCK: tl.constexpr):
    """Some of the chosen keys, 0 where there is none."""
    j = n + tl.arange(0, BLOCK)
    column = tl.load(COLUMNS + cells + j, mask=j < keys, other=-1).to(tl.int64)
    seen = column >= 0
    column = tl.where(seen, column, 0)
    inside = seen[:, None] & (x < width)[None, :]
    return column, seen, tl.load(X + column[:, None] * xt + x[None, :], mask=inside, other=0.0)


@triton.jit
def attend_chosen(
    Q, K, V, COLUMNS, OUT, LSE, qb, qh, qt, kb, kh, kt, vb, vh, vt, ob, oh, ot, T, keys, scale,
    G: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr, D: tl.constexpr, E: tl.constexpr, D_TILE: tl.constexpr,
    E_TILE: tl.constexpr, BLOCK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    t, b, g = tl.program_id(0).to(tl.int64), (tl.program_id(1) // G).to(tl.int64), tl.program_id(1) % G
    r = tl.program_id(2) * ROWS + tl.arange(0, ROWS)
    d, e, head = tl.arange(0, D_TILE), tl.arange(0, E_TILE), g * GROUP + r
    rows = r < GROUP
    q = tl.load(Q + b * qb + head[:, None] * qh + t * qt + d[None, :], mask=rows[:, None] & (d < D)[None, :], other=0.0)
    top = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, E_TILE], tl.float32)
    for n in range(0, keys, BLOCK):
        column, seen, k = read_keys(COLUMNS, K + b * kb + g * kh, kt, n, keys, (b * T + t) * keys, d, D, BLOCK)
        s = tl.where(seen[None, :], tl.dot(q, k.T, input_precision=PRECISION) * scale, float("-inf"))
        new = tl.maximum(top, tl.max(s, 1))
        pivot = tl.where(new == float("-inf"), 0.0, new)  # a row that has seen nothing yet
        p = tl.math.exp2(s - pivot[:, None])
        shrink = tl.math.exp2(top - pivot)
        total = total * shrink + tl.sum(p, 1)
        v = tl.load(
            V + b * vb + g * vh + column[:, None] * vt + e[None, :], mask=seen[:, None] & (e < E)[None, :], other=0.0
        )
        acc = tl.dot(p.to(v.dtype), v, acc * shrink[:, None], input_precision=PRECISION)
        top = new
    blind = total == 0.0
    out = acc / tl.where(blind, 1.0, total)[:, None]
    inside = rows[:, None] & (e < E)[None, :]
    tl.store(OUT + b * ob + head[:, None] * oh + t * ot + e[None, :], out.to(OUT.dtype.element_ty), mask=inside)
    lse = tl.where(blind, float("-inf"), (top + tl.math.log2(tl.where(blind, 1.0, total))) * LN2)
    tl.store(LSE + (b * G * GROUP + head) * T + t, lse, mask=rows)


@triton.jit
def attend_chosen_back(
    Q, K, V, COLUMNS, LSE, DELTA, GRAD, DQ, DK, DV, qb, qh, qt, kb, kh, kt, vb, vh, vt, ob, oh, ot, T, S, keys, scale,
    own_scale, G: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
    D_TILE: tl.constexpr, E_TILE: tl.constexpr, BLOCK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    t, b, g = tl.program_id(0).to(tl.int64), (tl.program_id(1) // G).to(tl.int64), tl.program_id(1) % G
    r = tl.program_id(2) * ROWS + tl.arange(0, ROWS)
    d, e, head = tl.arange(0, D_TILE), tl.arange(0, E_TILE), g * GROUP + r
    rows = r < GROUP
    at = (b * G * GROUP + head) * T + t
    q_inside, o_inside = rows[:, None] & (d < D)[None, :], rows[:, None] & (e < E)[None, :]
    q = tl.load(Q + b * qb + head[:, None] * qh + t * qt + d[None, :], mask=q_inside, other=0.0)
    grad = tl.load(GRAD + b * ob + head[:, None] * oh + t * ot + e[None, :], mask=o_inside, other=0.0)
    lse = tl.load(LSE + at, mask=rows, other=float("-inf")) * LOG2E
    lse = tl.where(lse == float("-inf"), float("inf"), lse)  # a row that sees nothing has weights of 0
    delta = tl.load(DELTA + at, mask=rows, other=0.0)
    dq = tl.zeros([ROWS, D_TILE], tl.float32)
    for n in range(0, keys, BLOCK):
        column, seen, k = read_keys(COLUMNS, K + b * kb + g * kh, kt, n, keys, (b * T + t) * keys, d, D, BLOCK)
        v_inside = seen[:, None] & (e < E)[None, :]
        v = tl.load(V + b * vb + g * vh + column[:, None] * vt + e[None, :], mask=v_inside, other=0.0)
        s = tl.dot(q, k.T, input_precision=PRECISION) * scale
        p = tl.where(seen[None, :], tl.math.exp2(s - lse[:, None]), 0.0)
        dp = tl.dot(grad, v.T, input_precision=PRECISION)
        ds = (p * (dp - delta[:, None]) * own_scale).to(k.dtype)
        dq = tl.dot(ds, k, dq, input_precision=PRECISION)
        row = (b * G + g) * S + column
        tl.atomic_add(
            DV + row[:, None] * E + e[None, :], tl.dot(p.to(grad.dtype).T, grad, input_precision=PRECISION),
            mask=v_inside, sem="relaxed",
        )  # fmt: skip
        tl.atomic_add(
            DK + row[:, None] * D + d[None, :], tl.dot(ds.T, q, input_precision=PRECISION),
            mask=seen[:, None] & (d < D)[None, :], sem="relaxed",
        )  # fmt: skip
    tl.store(DQ + (at * D)[:, None] + d[None, :], dq.to(DQ.dtype.element_ty), mask=q_inside)


class ChosenAttention(torch.autograd.Function):
    """q (B, H, T, d), k and v (B, G, S, d or e), columns (B, T, K) of int32, -1 where there is none, and the scale."""

    @staticmethod
    def forward(*inputs: Any) -> tuple[Tensor, Tensor]:
        q, k, v, columns, scale = inputs
        (B, H, T, _), E = q.shape, v.shape[-1]
        out, lse = q.new_empty(B, H, T, E), q.new_empty(B, H, T, dtype=torch.float32)
        attend_chosen[_grid(q, k)](
            q, k, v, columns, out, lse, *_steps(q, k, v, out), T, columns.shape[-1], scale * LOG2E.value,
            **_sizes(q, k, v),
        )  # fmt: skip
        return out, lse

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.save_for_backward(*inputs[:4], *output)
        ctx.set_materialize_grads(False)
        ctx.scale = inputs[4]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride] (as wrapped)
        q, k, v, columns, out, lse = ctx.saved_tensors
        grad = torch.zeros_like(out) if grads[0] is None else grads[0].contiguous()
        delta = (out.float() * grad.float()).sum(-1)
        delta = (delta if grads[1] is None else delta - grads[1]).contiguous()
        dq = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        dk, dv = (torch.zeros(x.shape, dtype=torch.float32, device=x.device) for x in (k, v))
        attend_chosen_back[_grid(q, k)](
            q, k, v, columns, lse, delta, grad, dq, dk, dv, *_steps(q, k, v, grad), q.shape[2], k.shape[2],
            columns.shape[-1], ctx.scale * LOG2E.value, ctx.scale, **_sizes(q, k, v),
        )  # fmt: skip
        return dq, dk.to(k.dtype), dv.to(v.dtype), None, None


def attend(q: Tensor, k: Tensor, v: Tensor, columns: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp."""
    q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))
    return ChosenAttention.apply(q, k, v, columns.to(torch.int32).contiguous(), scale)


def _rows(q: Tensor, k: Tensor) -> int:
    return min(MAX_ROWS, max(16, triton.next_power_of_2(q.shape[1] // k.shape[1])))


def _grid(q: Tensor, k: Tensor) -> tuple[int, int, int]:
    group = q.shape[1] // k.shape[1]
    return q.shape[2], q.shape[0] * k.shape[1], triton.cdiv(group, _rows(q, k))


def _steps(*tensors: Tensor) -> list[int]:
    return [step for x in tensors for step in x.stride()[:3]]


def _sizes(q: Tensor, k: Tensor, v: Tensor) -> dict[str, Any]:
    d, e = q.shape[-1], v.shape[-1]
    return {
        "G": k.shape[1], "GROUP": q.shape[1] // k.shape[1], "ROWS": _rows(q, k), "D": d, "E": e,
        "D_TILE": max(16, triton.next_power_of_2(d)), "E_TILE": max(16, triton.next_power_of_2(e)),
        "BLOCK": BLOCK if max(d, e) <= 128 else BLOCK // 2,
        "PRECISION": "tf32x3" if q.dtype == torch.float32 else "tf32",
    }  # fmt: skip
