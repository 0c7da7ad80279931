"""The gradient of a table of distances that all queries share (T5), where places run on and attention looks back.

A tile of scores has the same distances wherever it lies on its diagonal of tiles. So the scores' gradients of all rows
and blocks are added up tile on tile, in registers, and summed along their diagonals once at the end. Nothing is added
atomically, and nothing is kept for each query.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from vantage.kernels.fused_operator import TABLES, FusedPlan
from vantage.kernels.gpu.tiles import LENGTHS, LOG2E, floor_div, scaled, sees
from vantage.spec.rounding import ceil_div

PROGRAMS = 1_024  # of a launch, about: several for each multiprocessor
SHORT_ROW = 128  # bytes of a head up to which tiles are fetched ahead; with longer ones a second program has no room
ROWS_AT_ONCE = 32  # entries of the table that a program sums up


def shares_tiles(p: FusedPlan) -> bool:
    """Whether the gradient of the bias is this one."""
    return bool(p.learned) and p.form == TABLES[0] and p.banks > 0


def diagonals(p: FusedPlan, T: int, S: int) -> tuple[int, int]:
    """The first diagonal of tiles on which distances below the table's last may be seen, and how many there are."""
    first = max(ceil_div(1 - p.block - p.off, p.block), 1 - ceil_div(S, p.block))
    last = min(ceil_div(p.low + p.width - 2 - p.off, p.block), ceil_div(T, p.block) - 1)
    return first, max(1, last - first + 1)


def empty_table(q: Tensor, p: FusedPlan) -> Tensor:
    """(H, width), float32: what each distance gets but the last, which gets what is left."""
    return q.new_empty(q.shape[1], p.width, dtype=torch.float32)


@triton.jit
def _tile(X, b, h, xb, xh, xt, i, n, W: tl.constexpr, W_TILE: tl.constexpr):
    c = tl.arange(0, W_TILE)
    at = X + b * xb + h.to(tl.int64) * xh + i.to(tl.int64)[:, None] * xt + c[None, :]
    return tl.load(at, mask=(i < n)[:, None] & (c < W)[None, :], other=0.0)


@triton.jit(do_not_specialize=(*LENGTHS, "first", "count", "parts", "batch"))
def tile_sums(
    Q, K, V, DO, LINE, DELTA, P0, P1, SUMS, qb, qh, qt, kb, kh, kt, vb, vh, vt, gb, gh, gt, T, S, blocks, first, count,
    parts, batch, off, origin, low, width, banks, window, chunk, prefix, scale, cap, H: tl.constexpr,
    GROUP: tl.constexpr, D: tl.constexpr, E: tl.constexpr, D_TILE: tl.constexpr, E_TILE: tl.constexpr,
    BLOCK: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr, CHUNK: tl.constexpr, SOFTCAP: tl.constexpr,
    KEYS_END: tl.constexpr, PRECISION: tl.constexpr, APPROXIMATE: tl.constexpr,
):  # fmt: skip
    """SUMS, (parts, count, H, BLOCK, BLOCK): the scores' gradients on one diagonal of tiles, of one of the ``parts`` of
    its tiles in all rows. ``KEYS_END``: some query could see keys behind the last one."""
    h = tl.program_id(0) % H
    diagonal = first + tl.program_id(0) // H % count
    part = tl.program_id(0) // (H * count)
    g = h // GROUP
    along = tl.arange(0, BLOCK)
    bank = tl.minimum(diagonal + floor_div(off, BLOCK) + 1, banks - 1)
    bias = tl.load(P1 + ((h * banks + bank) * BLOCK + along[:, None]) * BLOCK + along[None, :])
    # all tiles of a diagonal have the same distances, and so the same pairs that causal masks and windows leave out
    distance = diagonal * BLOCK + off + along[:, None] - along[None, :]
    near = sees(
        distance, 0, 0, 0, distance == distance, origin, window, 0, 0, CAUSAL, WINDOW, False, False, False, False
    )
    bias = tl.where(near, bias, float("-inf"))
    far = tl.load(P0 + h * width + width - 1) * LOG2E  # which the ready-made biases leave out
    before = tl.maximum(diagonal, 0)  # blocks of queries whose tile would lie before the first key
    within = tl.maximum(tl.minimum(blocks, tl.cdiv(S, BLOCK) + diagonal) - before, 0)
    each = tl.cdiv(batch * within, parts)
    total = tl.zeros([BLOCK, BLOCK], tl.float32)
    for tile in tl.range(part * each, tl.minimum((part + 1) * each, batch * within)):
        b = (tile // within).to(tl.int64)
        qi = (before + tile % within) * BLOCK + along
        kj = qi - diagonal * BLOCK
        q = _tile(Q, b, h, qb, qh, qt, qi, T, D, D_TILE)
        k = _tile(K, b, g, kb, kh, kt, kj, S, D, D_TILE)
        x, _ = scaled(tl.dot(q, k.T, input_precision=PRECISION), scale, cap, SOFTCAP, APPROXIMATE)
        rows = (b * H + h) * (blocks * BLOCK) + qi
        p = tl.math.exp2(x + bias - (tl.load(LINE + rows) - far)[:, None])  # 0 in rows behind the last
        if CHUNK or KEYS_END:
            see = sees(
                (qi + off)[:, None], kj[None, :], 0, 0, (kj < S)[None, :], origin, 0, chunk, 0, False, False, CHUNK,
                False, False, False,
            )  # fmt: skip
            p = tl.where(see, p, 0.0)
        do = _tile(DO, b, h, gb, gh, gt, qi, T, E, E_TILE)
        v = _tile(V, b, g, vb, vh, vt, kj, S, E, E_TILE)
        dp = tl.dot(do, v.T, input_precision=PRECISION)
        total += p * (dp - tl.load(DELTA + rows)[:, None])
    out = SUMS + tl.program_id(0).to(tl.int64) * BLOCK * BLOCK
    tl.store(out + along[:, None] * BLOCK + along[None, :], total)


@triton.jit(do_not_specialize=("first", "count", "off", "low", "width"))
def diagonal_sums(
    SUMS, TABLE, first, count, off, low, width, H: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr
):  # fmt: skip
    """TABLE, (H, width): what some distances get of SUMS, (count, H, BLOCK, BLOCK). The first of the table has all
    before it, too."""
    h = tl.program_id(0) % H
    w = tl.program_id(0) // H * ROWS + tl.arange(0, ROWS)
    i = tl.arange(0, BLOCK)
    total = tl.zeros([ROWS, BLOCK], tl.float32)
    before = tl.zeros([BLOCK, BLOCK], tl.float32)
    for t in range(count):
        tile = SUMS + (t * H + h) * BLOCK * BLOCK
        nearest = (first + t) * BLOCK + off - low  # of the first query and key, from the table's first on
        j = nearest + i[None, :] - w[:, None]
        total += tl.load(tile + i[None, :] * BLOCK + j, mask=(j >= 0) & (j < BLOCK), other=0.0)
        if tl.program_id(0) < H:
            whole = tl.load(tile + i[:, None] * BLOCK + i[None, :])
            before += tl.where(nearest + i[:, None] - i[None, :] < 0, whole, 0.0)
    sums = tl.sum(total, 1) + tl.where(w == 0, tl.sum(before), 0.0)
    tl.store(TABLE + h * width + w, sums, mask=w < width)


def table_gradient(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    grad: Tensor,
    rows: tuple[Tensor, Tensor],
    bias: tuple[Tensor, Tensor],
    table: Tensor,
    p: FusedPlan,
    scale: tuple[float, float],
    how: dict[str, Any],
) -> None:
    """Fills ``table`` (H, width). ``rows``: what scores are measured from and what their gradients are less; ``bias``:
    the table and its ready-made tiles; ``how``: the constants of the kernels."""
    B, H, T, _ = q.shape
    blocks = ceil_div(T, p.block)
    first, count = diagonals(p, T, k.shape[2])
    parts = min(B * blocks, max(1, PROGRAMS // (H * count)))
    sums = q.new_empty(parts, count, H, p.block, p.block, dtype=torch.float32)
    known = {name: how[name] for name in tile_sums.arg_names if name in how}
    strides = (*q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *grad.stride()[:3])
    launch: Any = tile_sums
    launch[(parts * count * H,)](
        q, k, v, grad, *rows, *bias, sums, *strides, T, k.shape[2], blocks, first, count, parts, B, p.off, p.origin,
        p.low, p.width, p.banks, p.window, p.chunk, p.prefix, *scale, **known,
        KEYS_END=k.shape[2] < T + p.off, num_warps=how["num_warps"],
        num_stages=2 if how["D_TILE"] * q.element_size() <= SHORT_ROW else 1,
    )  # fmt: skip
    launch = diagonal_sums
    launch[(ceil_div(p.width, ROWS_AT_ONCE) * H,)](
        sums[0] if parts == 1 else sums.sum(0), table, first, count, p.off, p.low, p.width, H=H, BLOCK=p.block,
        ROWS=ROWS_AT_ONCE,
    )  # fmt: skip
