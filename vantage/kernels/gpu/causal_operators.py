"""Launching the kernels of causal_rows.py."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from vantage.kernels.fused_operator import BACKWARD, FORWARD, SLOPE, TABLES, FusedPlan
from vantage.kernels.gpu import causal_rows, operators
from vantage.kernels.gpu.table_gradient import shares_tiles
from vantage.spec.rounding import ceil_div

NONE, LOG, TABLE = 0, 2, TABLES[0]
NARROW, WIDE = 64, 128  # heads that were measured
WARPS, STAGES = 4, 3
TILES = 2 * STAGES + 2  # that are in shared memory at once
FAR = 4  # blocks from which on a logarithm is a cubic in each tile
NUMBERS = 128  # of a table's line that a program writes


def passes(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, softcap: float | None, p: FusedPlan) -> int:
    """Which passes of a call these kernels run: whole rows that look back at themselves, in whole blocks."""
    others = p.off or p.window or p.chunk or p.prefix or p.segments or p.empty or sinks is not None or softcap
    if others or not (p.run and p.causal) or q.shape[2] != k.shape[2] or q.shape[2] % p.block:
        return 0
    width = q.shape[3]
    if (p.form != NONE and not p.one_sided) or v.shape[3] != width or width & (width - 1):
        return 0
    if not (p.form in (NONE, LOG) or (p.form == SLOPE and not p.learned) or (p.form == TABLE and p.banks > 0)):
        return 0
    if q.device.type == "cpu":  # Triton's interpreter
        return FORWARD | BACKWARD
    room = (TILES + (4 if operators.turns_tiles_in_memory(q.device) else 1)) * p.block * width * q.element_size()
    if q.element_size() != 2 or p.block != 64 or room > operators.shared_memory(q.device):
        return 0
    # of heads of 128 two programs do not fit at once, which only a logarithm forward makes up for
    return {NARROW: FORWARD | BACKWARD, WIDE: FORWARD if p.form == LOG else 0}.get(width, 0)


def attend(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, tensors: list[Tensor | None], p: FusedPlan,
    factors: list[float],
) -> None:  # fmt: skip
    B, H, T, _ = q.shape
    launch: Any = causal_rows.attend
    with operators.on(q):
        bias, sizes = bias_of(lse, tensors, p, T)
        launch[(T // p.block * B * H,)](
            q, k, v, out, lse, *bias, *strides(q, k, v, out), *sizes, operators.units(factors)[0],
            **constants(q, k, p), SPLIT=p.form == LOG,
        )  # fmt: skip


def attend_back(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, grad: Tensor, grad_lse: Tensor | None,
    gradients: tuple[Tensor, ...], tensors: list[Tensor | None], p: FusedPlan, factors: list[float],
) -> None:  # fmt: skip
    """Fills ``gradients``, which are those of ``operators.empty_gradients``."""
    (B, H, T, _), G = q.shape, k.shape[1]
    dq, dk, dv, one_sum, two_sum, delta = gradients
    how, scale, factor = constants(q, k, p), operators.units(factors), factors[0] * factors[2]
    blocks = T // p.block
    shared, grad_lse = (delta, None) if grad_lse is None else (torch.empty_like(delta), grad_lse.contiguous())
    with operators.on(q):
        bias, sizes = bias_of(lse, tensors, p, T)
        launch: Any = causal_rows.query_gradients
        launch[(blocks * B * H,)](
            q, k, v, out, grad, lse, lse if grad_lse is None else grad_lse, delta, shared, dq, *bias, one_sum, two_sum,
            *strides(q, k, v, out, grad, dq), *sizes, scale[0], factor, **how, SPLIT=p.form == LOG,
            LEARNED=bool(p.learned), HAS_GRAD_LSE=grad_lse is not None,
        )  # fmt: skip
        launch = causal_rows.key_gradients
        launch[(blocks * B * G,)](
            q, k, v, grad, lse, shared, dk, dv, *bias, *strides(q, k, v, grad, dk, dv), *sizes, scale[0], factor, **how
        )
        if shares_tiles(p):
            operators.table_of_rows(q, k, v, grad, lse, shared, tensors, one_sum, p, factors)


def bias_of(
    lse: Tensor, tensors: list[Tensor | None], p: FusedPlan, T: int
) -> tuple[tuple[Tensor, Tensor, Tensor], tuple[int, int, int, int, int]]:
    """Two tensors of the bias and lines of a table; T, blocks, the distance from which on tiles are far, and how long
    lines and a table's rows are."""
    one, two, *_ = operators.unpack(tensors, lse)
    blocks = T // p.block
    if p.form != TABLE:
        return (one, two, lse), (T, blocks, FAR * p.block if p.form == LOG else 1, 0, 0)
    beyond = max(p.low + p.width - 1, 1)
    length = beyond + 3 * p.block  # a tile that is not far has distances below beyond + 2 blocks
    lines = lse.new_empty(one.shape[0], length)
    launch: Any = causal_rows.table_lines
    launch[(one.shape[0], ceil_div(length, NUMBERS))](
        one, lines, p.low, p.width, length, BLOCK=p.block, NUMBERS=NUMBERS
    )
    return (one, two, lines), (T, blocks, beyond, length, p.width)


def constants(q: Tensor, k: Tensor, p: FusedPlan) -> dict[str, Any]:
    return {
        "H": q.shape[1], "GROUP": q.shape[1] // k.shape[1], "D": q.shape[3], "BLOCK": p.block, "FORM": p.form,
        "PTX": q.is_cuda and not torch.version.hip, "num_warps": WARPS, "num_stages": STAGES,
    }  # fmt: skip


def strides(*tensors: Tensor) -> list[int]:
    return [step for x in tensors for step in x.stride()[:3]]
