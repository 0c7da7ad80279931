"""Launching the kernels of a bias that counts keys."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from vantage.kernels.fused_operator import FusedPlan
from vantage.kernels.gpu import backward, count_backward, count_forward
from vantage.kernels.gpu import operators as common
from vantage.spec.rounding import ceil_div, next_power_of_2

Launch = Any
Gradients = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]
KEPT_TILES = 16  # tiles of a block of queries whose sums are kept for the keys' gradients
TILE = 2048  # numbers of a program that has no products
LITTLE = 2**24  # bytes


def attend(
    q: Tensor, k: Tensor, v: Tensor, tensors: list[Tensor | None], p: FusedPlan, factors: list[float]
) -> tuple[Tensor, Tensor]:
    """As ``operators.attend``; ``tensors`` begin with what queries have for each count (B, H, T, P)."""
    out, lse = common.empty_outputs(q, v)
    by_count, _, sinks, _, _, ranges, *_ = common.unpack(tensors, lse)
    q, k, v = (common.aligned(x) for x in (q, k, v))
    B, H, T, _ = q.shape
    blocks = ceil_div(T, p.block)
    strides = (*_strides(q, k, v, by_count, out), *common.sink_strides(tensors[2]))
    kernel: Launch = count_forward.attend_by_count
    with common.on(q):
        kernel[(blocks * B * H,)](
            q, k, v, by_count, out, lse, sinks, ranges, *strides, T, k.shape[2], p.width, blocks, *_arguments(p),
            *_units(factors), **_constants(q, k, v, p, factors), HAS_SINKS=tensors[2] is not None,
            num_warps=common.warps(q, v), num_stages=common.stages(q, v, p, 1),
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
    p: FusedPlan,
    factors: list[float],
) -> Gradients:
    """The gradients of q, k and v, and of what queries have for each count, the last one as if rows added up to
    nothing; and output times gradient, row by row."""
    by_count, _, _, _, _, key_ranges, query_ranges, *_ = common.unpack(tensors, lse)
    dq, dk, dv, d_count, none, delta = empty_gradients(q, k, v, tensors, p)
    q, k, v, grad = (common.aligned(x) for x in (q, k, v, grad))
    (B, H, T, _), (_, G, S, _), P = q.shape, k.shape, p.width
    blocks, key_blocks = ceil_div(T, p.block), ceil_div(S, p.block)
    how = _constants(q, k, v, p, factors) | {"num_warps": common.warps(q, v)}
    numbers, factor, ratio = (*_arguments(p), *_units(factors)), factors[0] * factors[2], factors[3] / factors[0]
    strides, gate = _strides(q, k, v, by_count, grad), _units(factors)[2]
    counted = lse.new_empty(B, H, blocks, dtype=torch.int32)
    sums = lse.new_empty(2, B, H, KEPT_TILES + 1, T)
    ahead = {"num_stages": _stages_back(q, v, p)}
    launch: Launch = backward.dot_rows
    with common.on(q):
        launch[(blocks * B * H,)](
            out, grad, delta, *_strides(out, grad), T, blocks, H=H, E=v.shape[3], E_TILE=how["E_TILE"], BLOCK=p.block
        )
        launch = count_backward.count_tiles
        known = {name: how[name] for name in how if name in launch.arg_names or name == "num_warps"}
        launch[(blocks * B * H,)](
            q, k, counted, key_ranges, *_strides(q, k), T, S, P, blocks, *_arguments(p), gate, **known
        )
        shared = delta if grad_lse is None else delta - grad_lse
        # measured from where the highest count is nothing: then tiles beyond it have no bias
        last = by_count[..., -1].float() * _units(factors)[3]
        line = torch.where(lse == float("-inf"), float("inf"), lse * common.LOG2E - last)
        line = common.whole_blocks(line, p.block, float("inf"))
        inputs = (q, k, v, by_count, grad, line, common.whole_blocks(shared, p.block, 0.0))
        for part in _parts(q, k, P) if p.learned else [_Part(slice(B), slice(H), slice(G))]:
            _sum_counts(inputs, counted, sums, d_count, key_ranges, part, p, numbers, how, factors[2])
        launch = count_backward.query_gradients
        launch[(blocks * B * H,)](
            *inputs, dq, counted, sums, key_ranges, *strides, *_strides(dq), T, S, P, blocks, B * H, *numbers, ratio,
            factor, **how, **ahead,
            KEPT=KEPT_TILES,
        )  # fmt: skip
        launch = count_backward.key_gradients
        launch[(key_blocks * B * G,)](
            *inputs, dk, dv, counted, _ends(counted, key_ranges, key_blocks), sums, key_ranges, query_ranges, *strides,
            *_strides(dk, dv), T, S, P, key_blocks, blocks, B * H, *numbers, ratio, factor, **how, **ahead,
            KEPT=KEPT_TILES, TOGETHER=common.heads_at_once(B * G, S),
        )  # fmt: skip
    return dq, dk, dv, d_count, none, delta


class _Part(NamedTuple):
    """Some rows, or some heads of one row."""

    rows: slice
    heads: slice
    groups: slice  # of heads that share their keys


def _parts(q: Tensor, k: Tensor, counts: int) -> list[_Part]:
    """So much at a time that what ``sum_counts`` hands to ``gradients_by_count`` takes little memory, or no more than
    half of what the queries take."""
    (B, H, T, _), G = q.shape, k.shape[1]
    heads = max(q.numel() * q.element_size() // 2, LITTLE) // (2 * T * counts * 4)
    if heads >= H:
        rows = heads // H
        return [_Part(slice(b, b + rows), slice(H), slice(G)) for b in range(0, B, rows)]
    each = H // G
    groups = max((n for n in range(1, G + 1) if G % n == 0 and n * each <= heads), default=1)
    return [
        _Part(slice(b, b + 1), slice(g * each, (g + groups) * each), slice(g, g + groups))
        for b in range(B)
        for g in range(0, G, groups)
    ]


def _sum_counts(
    inputs: tuple[Tensor, ...], counted: Tensor, sums: Tensor, d_count: Tensor, ranges: Tensor, part: _Part,
    p: FusedPlan, numbers: tuple[Any, ...], how: dict[str, Any], weight: float,
) -> None:  # fmt: skip
    """Fills this part of ``sums`` and, where they are learned, of the gradients of what queries have for each count.
    The heads of a part lie one behind the other: so the kernels need no strides of what is in that order."""
    both, queries, keys = sums.shape[1] * sums.shape[2], part[:2], (part.rows, part.groups)
    q, k, v, by_count, grad, line, shared = (x[keys] if i in (1, 2) else x[queries] for i, x in enumerate(inputs))
    counted, sums, d_count = counted[queries], sums[:, *queries], d_count[queries]
    (B, H, T, _), S, P = q.shape, k.shape[2], p.width
    blocks, learned = counted.shape[2], bool(p.learned)
    totals = line.new_empty(2, both, T)
    newer = [line.new_empty(B, H, T, P if learned else 0) for _ in range(2)]
    launch: Launch = count_backward.sum_counts
    launch[(blocks * B * H,)](
        q, k, v, by_count, grad, line, shared, *newer, totals, counted, sums, ranges,
        *_strides(q, k, v, by_count, grad), T, S, P, blocks, both, *numbers, **(how | {"H": H}), KEPT=KEPT_TILES,
        LEARNED=learned, num_stages=1,
    )  # fmt: skip
    if learned:
        launch = count_backward.gradients_by_count
        wide = next_power_of_2(P)
        rows = max(1, TILE // wide)
        launch[(ceil_div(B * H * T, rows),)](
            *newer, totals, sums, d_count, *_strides(d_count), T, P, B * H * T, both * T, weight, H=H,
            KEPT=KEPT_TILES, ROWS=rows, P_TILE=wide,
        )  # fmt: skip


def _stages_back(q: Tensor, v: Tensor, p: FusedPlan) -> int:
    """Two where the tiles that the keys' kernel has then fit."""
    tiles = 10 if q.dtype == torch.float32 else 8
    return 2 if tiles * p.block * common.row_bytes(q, v) + 4096 <= common.shared_memory(q.device) else 1


def _ends(counted: Tensor, ranges: Tensor, key_blocks: int) -> Tensor:
    """(B, H, blocks of keys): the first block of queries from which on none counts these keys."""
    oldest = (ranges[..., 3].view(1, 1, -1) - counted).clamp(0, key_blocks - 1).long()
    past = torch.arange(1, counted.shape[2] + 1, device=counted.device, dtype=torch.int32)
    past = torch.where(counted > 0, past, 0)
    ends = counted.new_zeros(*counted.shape[:2], key_blocks)
    return ends.scatter_reduce_(2, oldest, past, "amax").cummax(2).values


def empty_gradients(q: Tensor, k: Tensor, v: Tensor, tensors: list[Tensor | None], p: FusedPlan) -> Gradients:
    dq, dk, dv = (x.new_empty(x.shape[0], x.shape[2], x.shape[1], x.shape[3]).transpose(1, 2) for x in (q, k, v))
    delta = q.new_empty(*q.shape[:3], dtype=torch.float32)
    d_count = q.new_empty(q.shape[0], q.shape[2], q.shape[1], p.width if p.learned else 0).transpose(1, 2)
    return dq, dk, dv, d_count, q.new_empty(0), delta


def _strides(*tensors: Tensor) -> tuple[int, ...]:
    return tuple(stride for x in tensors for stride in x.stride()[:3])


def _arguments(p: FusedPlan) -> tuple[int, ...]:
    return p.off, p.origin, p.window, p.chunk


def _units(factors: list[float]) -> tuple[float, float, float, float]:
    """``operators.units``; then the scale of gates, and what the bias is multiplied by, to be in units of log2."""
    return *common.units(factors[:3]), factors[3] * common.LOG2E, factors[2] * common.LOG2E


def _constants(q: Tensor, k: Tensor, v: Tensor, p: FusedPlan, factors: list[float]) -> dict[str, Any]:
    every = common.constants(q, k, v, p, factors[:3])
    names = ("H", "GROUP", "D", "E", "D_TILE", "E_TILE", "BLOCK", "CAUSAL", "WINDOW", "CHUNK", "SOFTCAP", "PRECISION")
    return {name: every[name] for name in (*names, "APPROXIMATE")}
