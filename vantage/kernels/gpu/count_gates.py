"""The first of the two kernels of a bias that counts keys: see ``count_bias``."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from vantage.kernels.gpu.count_bias import CountBias
from vantage.kernels.gpu.decode import TYPES, HeadNorm, RowState, in_8_bits, keys_at_once, rotated
from vantage.kernels.gpu.row_shares import ask, blocks_of, shares_of, slots_of

Launch = Any  # triton's kernels: indexed by their grid, then called
OPTIONS = ("heads", "kv_heads", "key_dim", "scale", "window", "q_norm", "k_norm")  # of an attention, that count


@triton.jit
def sum_gates(
    qkv, stores, held, gone, table, q_gain, k_gain, vectors, tables, gates, layer, qkv_stride, table_width, block,
    scale, window, q_eps, q_offset, k_eps, k_offset, width,
    H: tl.constexpr, G: tl.constexpr, D: tl.constexpr, GROUP_TILE: tl.constexpr, D_TILE: tl.constexpr,
    SPLITS: tl.constexpr, KEYS: tl.constexpr, LEAST: tl.constexpr, STAGES: tl.constexpr, SOME: tl.constexpr,
    PAGED: tl.constexpr, Q_NORM: tl.constexpr, K_NORM: tl.constexpr, Q_GAIN: tl.constexpr, K_GAIN: tl.constexpr,
    WINDOW: tl.constexpr, PRECISION: tl.constexpr, TYPE: tl.constexpr, INT8: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """gates (B, SPLITS + 1, H) of the shares of ``decode.attend`` and, last, of the new token; tables (B, H, width) of
    the queries as they are projected. The first share's sum is nobody's beginning: its program makes the tables."""
    b, g, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    GROUP: tl.constexpr = H // G
    n = tl.load(held + b)
    numbers = stores + layer * 8
    KEPT: tl.constexpr = tl.int8 if INT8 else TYPE
    k_from = b * tl.load(numbers + 2) + g * tl.load(numbers + 3)
    k_base = tl.multiple_of(tl.load(numbers).to(tl.pointer_type(KEPT)) + k_from, 16)
    k_scales = tl.load(numbers + 6).to(tl.pointer_type(tl.float32)) + k_from // D
    blocks = blocks_of(table, gone, b, table_width, PAGED)
    first, share, active = shares_of(n, window, WINDOW, SPLITS, KEYS, LEAST)
    if n < 0 or split >= active:
        return
    start = first + split * share
    end = tl.minimum(start + share, n)
    if split == 0:
        end = start
    if DEPENDENT:  # what was kept before this step can be asked for while the kernel before still runs
        if split > 0:
            asked = tl.minimum(start + tl.arange(0, LEAST), end - 1)
            ask(k_base + slots_of(blocks, asked, asked >= 0, block, PAGED) * D)
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()

    r = tl.arange(0, GROUP_TILE)
    h = g * GROUP + r
    d = tl.arange(0, D_TILE)
    mine = r < GROUP
    row = b.to(tl.int64) * qkv_stride
    inside = mine[:, None] & (d < D)[None, :]
    q_at = row + h[:, None] * D
    raw = tl.load(qkv + q_at + d[None, :], mask=inside, other=0.0)
    if split == 0:
        to = tables + (b.to(tl.int64) * H + h)[:, None] * width
        for begin in range(0, width, SOME):
            w = begin + tl.arange(0, SOME)
            vector = tl.load(
                vectors + w[:, None] * D + d[None, :], mask=(w < width)[:, None] & (d < D)[None, :], other=0.0
            )
            by = tl.dot(raw.to(TYPE), tl.trans(vector), input_precision=PRECISION)
            tl.store(to + w[None, :], by, mask=mine[:, None] & (w < width)[None, :])
    size = tl.zeros((GROUP_TILE, 1), tl.float32)
    if Q_NORM:
        size = tl.rsqrt(tl.sum(raw.to(tl.float32) * raw.to(tl.float32), 1) / D + q_eps)[:, None]
    q = rotated(qkv, q_at, d[None, :], inside, qkv, qkv, q_gain, size, q_offset, D, 0, Q_NORM, Q_GAIN, 0).to(TYPE)
    total = tl.zeros((GROUP_TILE,), tl.float32)
    for begin in tl.range(start, end, KEYS, num_stages=STAGES):
        j = begin + tl.arange(0, KEYS)
        valid = j < end
        slot = slots_of(blocks, j, valid, block, PAGED)
        k = tl.load(k_base + slot[:, None] * D + d[None, :], mask=valid[:, None] & (d < D)[None, :], other=0.0)
        s = tl.dot(q, tl.trans(k.to(TYPE)), input_precision=PRECISION)
        if INT8:
            s *= tl.load(k_scales + slot, mask=valid, other=0.0)[None, :]
        total += tl.sum(tl.where(valid[None, :], tl.sigmoid(s * scale), 0.0), 1)
    to_gates = gates + b.to(tl.int64) * ((SPLITS + 1) * H) + h
    tl.store(to_gates + split * H, total, mask=mine)
    if split == active - 1:  # the new token
        k_at = row + H * D + g * D
        new_size = 0.0
        if K_NORM:
            new_raw = tl.load(qkv + k_at + d, mask=d < D, other=0.0).to(tl.float32)
            new_size = tl.rsqrt(tl.sum(new_raw * new_raw, 0) / D + k_eps)
        new_k = rotated(qkv, k_at, d, d < D, qkv, qkv, k_gain, new_size, k_offset, D, 0, K_NORM, K_GAIN, 0).to(TYPE)
        if INT8:  # what is seen is what is kept
            codes, k_scale = in_8_bits(new_k.to(tl.float32), 0)
            new_k = (codes * k_scale).to(TYPE)
        new_s = tl.sum(q.to(tl.float32) * new_k.to(tl.float32)[None, :], 1)
        tl.store(to_gates + SPLITS * H, tl.sigmoid(new_s * scale), mask=mine)


def prepare_counts(
    qkv: Tensor,
    stores: Tensor,
    layer: int,
    rows: RowState,
    bias: CountBias,
    *,
    heads: int,
    kv_heads: int,
    key_dim: int,
    scale: float,
    window: int = 0,
    q_norm: HeadNorm | None = None,
    k_norm: HeadNorm | None = None,
    keys: int = 128,
    least: int = 128,
    int8: bool = False,
    dependent: bool = False,
) -> None:
    """Fills the tables and gates of a bias, before ``decode`` with the same numbers. Nothing is turned."""
    assert bias.vectors is not None
    nothing, splits = rows.held, bias.two.shape[1] - 1
    q_gain, q_eps, q_offset = (None, 0.0, 0.0) if q_norm is None else (q_norm.gain, q_norm.eps, q_norm.offset)
    k_gain, k_eps, k_offset = (None, 0.0, 0.0) if k_norm is None else (k_norm.gain, k_norm.eps, k_norm.offset)
    keys = keys_at_once(keys, qkv.dtype, key_dim)
    extra = {"launch_pdl": True} if dependent else {}
    kernel: Launch = sum_gates
    kernel[(len(qkv), kv_heads, splits)](
        qkv, stores, rows.held, rows.gone, rows.table, nothing if q_gain is None else q_gain,
        nothing if k_gain is None else k_gain, bias.vectors, bias.one, bias.two, layer, qkv.stride(0),
        rows.table.shape[1], max(rows.block, 1), scale, window, q_eps, q_offset, k_eps, k_offset, bias.width,
        H=heads, G=kv_heads, D=key_dim, GROUP_TILE=max(16, triton.next_power_of_2(heads // kv_heads)),
        D_TILE=max(16, triton.next_power_of_2(key_dim)), SPLITS=splits, KEYS=keys, LEAST=max(least, keys), STAGES=3,
        SOME=64, PAGED=rows.block > 0, Q_NORM=q_norm is not None, K_NORM=k_norm is not None,
        Q_GAIN=q_gain is not None, K_GAIN=k_gain is not None, WINDOW=window > 0,
        PRECISION="ieee" if qkv.dtype is torch.float32 else "tf32", TYPE=TYPES[qkv.dtype], INT8=int8,
        DEPENDENT=dependent, num_warps=4, **extra,
    )  # fmt: skip
