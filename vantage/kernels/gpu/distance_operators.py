"""Launching the kernels of a bias that is a product of queries and distances."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from vantage.kernels.fused_operator import FusedPlan
from vantage.kernels.gpu import backward, distance_backward, distance_forward, distance_gradients
from vantage.kernels.gpu import operators as common
from vantage.kernels.gpu.row_rotation import SIDE, WARPS, lies_as_expected
from vantage.spec.rounding import ceil_div

Launch = Any
Gradients = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]
# Tiles in shared memory of a pass that fetches the next ones while it works. Backward, two programs at once that wait
# for what they fetch were faster than one that does not: so there must be room for two.
FETCHED_AHEAD = 13
KEPT_SHARE = 2.25  # numbers of the scores' gradient that may be kept, of those that the queries have
FEWEST_PROGRAMS = 400  # blocks of queries that keep a GPU busy


def attend(
    q: Tensor, k: Tensor, v: Tensor, tensors: list[Tensor | None], p: FusedPlan, factors: list[float]
) -> tuple[Tensor, Tensor]:
    """As ``operators.attend``; ``tensors`` begin with queries (B, H, T, f), or an offset (H, f) to the attention's own,
    and vectors of distances (H, W, f)."""
    out, lse = common.empty_outputs(q, v)
    one, r, sinks, _, _, ranges, *_ = common.unpack(tensors, lse)
    q, k, v = (common.aligned(x) for x in (q, k, v))
    qr, c = (q, _beside(tensors[0], r, lse)) if p.own_queries else (common.aligned(one), lse)
    B, H, T, _ = q.shape
    how = _constants(q, k, v, qr, tensors, p, factors) | _shape(q, v, p, forward=True)
    how |= {"HAS_SINKS": tensors[2] is not None, "ROWS": _rows(q, p, how)}
    how["TOGETHER"] = common.heads_at_once(q.shape[0] * k.shape[1], k.shape[2])
    how["num_warps"] *= how["ROWS"] // p.block
    blocks = ceil_div(T, how["ROWS"])
    strides = (*_strides(q, k, v, qr, out), *common.sink_strides(tensors[2]), *r.stride()[:2])
    with common.on(q):
        _launch(
            distance_forward.attend_by_distance, blocks * B * H,
            (q, k, v, qr, r, c, out, lse, sinks, ranges, *strides, T, k.shape[2], r.shape[1], blocks, *_arguments(p),
             *_units(factors)), how,
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
    """The gradients of q, k and v, of the bias's queries and distances; and output times gradient, row by row."""
    one, r, _, _, _, key_ranges, query_ranges, *_ = common.unpack(tensors, lse)
    dq, dk, dv, d_one, dr, delta = empty_gradients(q, k, v, tensors, p)
    q, k, v, grad = (common.aligned(x) for x in (q, k, v, grad))
    qr, c = (q, _beside(tensors[0], r, lse)) if p.own_queries else (common.aligned(one), lse)
    dqr, dc = (dq, torch.empty_like(c)) if p.own_queries else (d_one, delta)
    (B, H, T, _), (_, G, S, _), W = q.shape, k.shape, r.shape[1]
    blocks, key_blocks, distance_blocks = (ceil_div(n, p.block) for n in (T, S, W))
    strides = _strides(q, k, v, qr, grad)
    numbers, factor, share = (*_arguments(p), *_units(factors)), factors[0] * factors[2], factors[3] * factors[2]
    how = _constants(q, k, v, qr, tensors, p, factors) | _shape(q, v, p)
    launch: Launch = backward.dot_rows
    with common.on(q):
        launch[(blocks * B * H,)](
            out, grad, delta, *out.stride()[:3], *grad.stride()[:3], T, blocks,
            H=H, E=v.shape[3], E_TILE=how["E_TILE"], BLOCK=p.block,
        )  # fmt: skip
        inputs = (q, k, v, qr, r, c, grad, lse, delta if grad_lse is None else delta - grad_lse)
        most = _most_tiles(T, S, p)
        kept, heads = _room_to_keep(q, p, B, most)
        for first in range(0, H, heads):
            heads = min(heads, H - first)
            _launch(
                distance_backward.query_gradients, blocks * B * heads,
                (*inputs, dq, dqr, kept, key_ranges, *strides, *_strides(dq, dqr), *r.stride()[:2], T, S, W, blocks,
                 first, heads, most, *numbers, factor, share), how | {"KEEPS": kept.numel() > 0},
            )  # fmt: skip
            if kept.numel():
                launch = distance_gradients.kept_distance_gradients
                launch[(distance_blocks * heads,)](
                    qr, dr, dc, one, kept, key_ranges, *qr.stride()[:3], *dr.stride()[:2], T, S, W, distance_blocks,
                    blocks, first, heads, B, most, p.low, factor if p.own_queries else share, F=how["F"],
                    F_TILE=how["F_TILE"], BLOCK=p.block,
                    BOUNDED=bool(p.window or p.chunk or p.prefix), HAS_C=how["HAS_C"], PRECISION=how["PRECISION"],
                    num_warps=how["num_warps"], num_stages=4,
                )  # fmt: skip
        _launch(
            distance_backward.key_gradients, key_blocks * B * G,
            (*inputs, dk, dv, query_ranges, *strides, *_strides(dk, dv), *r.stride()[:2], T, S, W, key_blocks,
             *numbers, factor), how | {"TOGETHER": common.heads_at_once(B * G, S)},
        )  # fmt: skip
        if p.learned and not kept.numel():
            _launch(
                distance_gradients.distance_gradients, distance_blocks * H,
                (*inputs, dr, dc, one, *strides, *r.stride()[:2], *dr.stride()[:2], B, T, S, W, distance_blocks,
                 *numbers, share), how,
            )  # fmt: skip
    if p.learned and how["HAS_C"]:
        d_one = torch.bmm(dc[:, None].to(r.dtype), r)[:, 0].float()
    return dq, dk, dv, d_one, dr, delta


def _beside(offset: Tensor | None, r: Tensor, other: Tensor) -> Tensor:
    """(H, W), float32: each vector of a distance times the offset; ``other`` where there is none."""
    if offset is None:
        return other
    (H, W, F), block = r.shape, 64
    c = offset.new_empty(H, W)
    launch: Launch = distance_gradients.products_with_offset
    with common.on(r):
        launch[(ceil_div(W, block), H)](
            r, offset, c, *r.stride()[:2], W, F=F, F_TILE=common.tile(F), BLOCK=block, num_warps=4
        )
    return c


def empty_gradients(q: Tensor, k: Tensor, v: Tensor, tensors: list[Tensor | None], p: FusedPlan) -> Gradients:
    def turned(x: Tensor) -> Tensor:
        return x.new_empty(x.shape[0], x.shape[2], x.shape[1], x.shape[3]).transpose(1, 2)

    one, r = tensors[:2]
    assert r is not None
    d_one = r.new_empty(0) if one is None else torch.empty_like(one) if p.own_queries else turned(one)
    H, W, F = r.shape
    dr = r.new_empty(W, H, F).transpose(0, 1)  # as a product that made the vectors wants it: it makes no copy
    return turned(q), turned(k), turned(v), d_one, dr, q.new_empty(*q.shape[:3], dtype=torch.float32)


def _most_tiles(T: int, S: int, p: FusedPlan) -> int:
    """How many blocks of distances the last block of queries meets at most; each earlier one meets one less at most."""
    blocks, key_blocks = ceil_div(T, p.block), ceil_div(S, p.block)
    if not p.causal or p.prefix:
        return key_blocks + blocks
    return max(blocks + 1 + max(ceil_div(p.off, p.block), 0), blocks)


def _room_to_keep(q: Tensor, p: FusedPlan, batch: int, most: int) -> tuple[Tensor, int]:
    """Memory for the scores' gradient of so many heads at once, by distance: then the gradients by distance are one
    product. Nothing, and all heads, where there is none for enough blocks of queries to keep the GPU busy."""
    H, T = q.shape[1], q.shape[2]
    blocks = ceil_div(T, p.block)
    each = batch * ((blocks + 1) // 2) * (2 * most - blocks + 1) * p.block**2
    heads = min(ceil_div(FEWEST_PROGRAMS, batch * blocks), H)
    if not p.learned or heads * batch * blocks < FEWEST_PROGRAMS or heads * each > KEPT_SHARE * q.numel():
        return q.new_empty(0), H
    return q.new_empty(heads * each), heads


def _strides(*tensors: Tensor) -> tuple[int, ...]:
    return tuple(stride for x in tensors for stride in x.stride()[:3])


def _arguments(p: FusedPlan) -> tuple[int, ...]:
    return p.low, p.off, p.origin, p.window, p.chunk, p.prefix


def _units(factors: list[float]) -> tuple[float, float, float]:
    """``operators.units``, and what the bias is multiplied by to be in units of log2."""
    return *common.units(factors[:3]), factors[3] * factors[2] * common.LOG2E


def _constants(
    q: Tensor, k: Tensor, v: Tensor, qr: Tensor, tensors: list[Tensor | None], p: FusedPlan, factors: list[float]
) -> dict[str, Any]:
    every = common.constants(q, k, v, p, factors[:3])
    names = ("H", "GROUP", "D", "E", "D_TILE", "E_TILE", "BLOCK", "CAUSAL", "WINDOW", "CHUNK", "PREFIX", "SOFTCAP")
    names = (*names, "PRECISION", "APPROXIMATE")
    own = bool(p.own_queries)
    more = {"F": qr.shape[3], "F_TILE": common.tile(qr.shape[3]), "OWN": own, "HAS_C": own and tensors[0] is not None}
    return {name: every[name] for name in names} | more


def _shape(q: Tensor, v: Tensor, p: FusedPlan, *, forward: bool = False) -> dict[str, Any]:
    warps = common.warps(q, v)
    programs = 1 if forward else 2
    room = programs * (FETCHED_AHEAD * p.block * common.row_bytes(q, v) + 4096) <= common.shared_memory(q.device)
    shuffled = not _Turned.wrongly and q.is_cuda and q.element_size() == 2 and warps == WARPS and p.block == SIDE
    shuffled = shuffled and torch.cuda.get_device_capability(q.device)[0] == 9
    return {"num_warps": warps, "num_stages": 2 if room else 1, "SHUFFLED": shuffled}


def _rows(q: Tensor, p: FusedPlan, how: dict[str, Any]) -> int:
    """Queries of a program of the forward pass: twice as many as a tile has keys where two groups of warps can share
    what they fetch."""
    twice = q.shape[2] > p.block and (how["SHUFFLED"] or (not q.is_cuda and q.element_size() == 2))
    return 2 * p.block if twice else p.block


class _Turned:
    """What has been learned of the compiler."""

    wrongly = False  # it lays tiles out otherwise than row_rotation.py wants them
    rightly: set[str] = set()  # noqa: RUF012


def _launch(kernel: Launch, programs: int, arguments: tuple[Any, ...], how: dict[str, Any]) -> None:
    compiled = kernel[(programs,)](*arguments, **how)
    if not how["SHUFFLED"] or compiled.hash in _Turned.rightly:
        return
    if lies_as_expected(compiled.asm["ttgir"]):
        _Turned.rightly.add(compiled.hash)
    else:
        _Turned.wrongly = True
        kernel[(programs,)](*arguments, **(how | {"SHUFFLED": False}))
