"""Launching the kernels of a bias that is a product of queries and distances."""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from vantage.kernels.fused_operator import FusedPlan
from vantage.kernels.gpu import backward, distance_backward, distance_forward
from vantage.kernels.gpu import operators as common

Launch = Any
Gradients = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


def attend(
    q: Tensor, k: Tensor, v: Tensor, tensors: list[Tensor | None], plan: list[int], factors: list[float]
) -> tuple[Tensor, Tensor]:
    """As ``operators.attend``; ``tensors`` begin with queries (B, H, T, f) and vectors of distances (H, W, f)."""
    out, lse = common.empty_outputs(q, v)
    p = FusedPlan(*plan)
    qr, r, sinks, _, _, ranges, _ = common.unpack(tensors, lse)
    q, k, v, qr = (common.aligned(x) for x in (q, k, v, qr))
    B, H, T, _ = q.shape
    blocks = triton.cdiv(T, p.block)
    strides = (*_strides(q, k, v, qr), *out.stride()[:3], *common.sink_strides(sinks))
    kernel: Launch = distance_forward.attend_by_distance
    with common.on(q):
        kernel[(blocks * B * H,)](
            q, k, v, qr, r, out, lse, sinks, ranges, *strides, T, k.shape[2], r.shape[1], blocks, *_arguments(p),
            *_units(factors), **_constants(q, k, v, qr, p, factors), HAS_SINKS=tensors[2] is not None, **_shape(q, v, 1),
        )  # fmt: skip
    return out, lse


def attend_back(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    grad: Tensor,
    grad_lse: Tensor | None,
    tensors: list[Tensor | None],
    plan: list[int],
    factors: list[float],
) -> Gradients:
    """The gradients of q, k and v, of the bias's queries and distances; and output times gradient, row by row."""
    p = FusedPlan(*plan)
    qr, r, _, _, _, key_ranges, query_ranges = common.unpack(tensors, lse)
    dq, dk, dv, dqr, dr, delta = empty_gradients(q, k, v, qr, r)
    q, k, v, qr, grad = (common.aligned(x) for x in (q, k, v, qr, grad))
    (B, H, T, _), (_, G, S, _) = q.shape, k.shape
    blocks, key_blocks = triton.cdiv(T, p.block), triton.cdiv(S, p.block)
    distance_blocks = triton.cdiv(r.shape[1], p.block)
    strides = (*_strides(q, k, v, qr), *grad.stride()[:3])
    numbers, factor, share = (*_arguments(p), *_units(factors)), factors[0] * factors[2], factors[3] * factors[2]
    how = _constants(q, k, v, qr, p, factors)
    launch: Launch = backward.dot_rows
    with common.on(q):
        launch[(blocks * B * H,)](
            out, grad, delta, *out.stride()[:3], *grad.stride()[:3], T, blocks,
            H=H, E=v.shape[3], E_TILE=how["E_TILE"], BLOCK=p.block,
        )  # fmt: skip
        shared = delta if grad_lse is None else delta - grad_lse
        inputs = (q, k, v, qr, r, grad, lse, shared)
        launch = distance_backward.query_gradients
        launch[(blocks * B * H,)](
            *inputs, dq, dqr, key_ranges, *strides, *dq.stride()[:3], *dqr.stride()[:3], T, S, r.shape[1], blocks,
            *numbers, factor, share, **how, **_shape(q, v, 2),
        )  # fmt: skip
        launch = distance_backward.key_gradients
        launch[(key_blocks * B * G,)](
            *inputs, dk, dv, query_ranges, *strides, *dk.stride()[:3], *dv.stride()[:3], T, S, r.shape[1], key_blocks,
            *numbers, factor, **how, **_shape(q, v, 3),
        )  # fmt: skip
        launch = distance_backward.distance_gradients
        launch[(distance_blocks * H,)](
            *inputs, dr, *strides, B, T, S, r.shape[1], distance_blocks, *numbers, share, **how, **_shape(q, v, 4),
        )  # fmt: skip
    return dq, dk, dv, dqr, dr, delta


def empty_gradients(q: Tensor, k: Tensor, v: Tensor, qr: Tensor, r: Tensor) -> Gradients:
    dq, dk, dv, dqr = (
        x.new_empty(x.shape[0], x.shape[2], x.shape[1], x.shape[3]).transpose(1, 2) for x in (q, k, v, qr)
    )
    delta = q.new_empty(*q.shape[:3], dtype=torch.float32)
    return dq, dk, dv, dqr, torch.empty_like(r), delta


def _strides(*tensors: Tensor) -> tuple[int, ...]:
    return tuple(stride for x in tensors for stride in x.stride()[:3])


def _arguments(p: FusedPlan) -> tuple[int, ...]:
    return p.low, p.off, p.origin, p.window, p.chunk, p.prefix


def _units(factors: list[float]) -> tuple[float, float, float]:
    """``operators.units``, and what the bias is multiplied by to be in units of log2."""
    return *common.units(factors[:3]), factors[3] * factors[2] * common.LOG2E


def _constants(q: Tensor, k: Tensor, v: Tensor, qr: Tensor, p: FusedPlan, factors: list[float]) -> dict[str, Any]:
    every = common.constants(q, k, v, p, factors[:3])
    names = ("H", "GROUP", "D", "E", "D_TILE", "E_TILE", "BLOCK", "CAUSAL", "WINDOW", "CHUNK", "PREFIX", "SOFTCAP")
    names = (*names, "PRECISION", "APPROXIMATE")
    return {name: every[name] for name in names} | {"F": qr.shape[3], "F_TILE": common.tile(qr.shape[3]), "SHUFFLED": SHUFFLED}


SHUFFLED = False
SHAPES: dict[int, tuple[int, int]] = {1: (4, 2), 2: (4, 1), 3: (4, 1), 4: (4, 1)}  # warps and stages of each kernel


def _shape(q: Tensor, v: Tensor, which: int) -> dict[str, int]:
    warps, stages = SHAPES[which]
    return {"num_warps": warps if common.row_bytes(q, v) <= 256 else 8, "num_stages": stages}
