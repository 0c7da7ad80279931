"""Attention of one new token a row over a cache that stays where it is, in one pass.

A program takes one group of heads of one row and a share of its keys; the program that finishes last puts the shares
together, in their order. The new token's key and value are turned, written to the cache and seen by the program of the
last share. Where keys and values stand is read from the device, so that one CUDA graph serves every cache and length.

Several new tokens of a row may each be a row of their own, which holds one more than the last. Each sees the keys of
those before it, so that all of them must be in the cache before the first program begins (``chunk_place``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from vantage.kernels.gpu.count_bias import (
    CountBias,
    ask_recent,
    begun_as,
    count_table,
    counted,
    counted_before,
    forget_counts,
    highest_number,
)
from vantage.kernels.gpu.count_tiles import by_count as number_by_count
from vantage.kernels.gpu.gate_sums import kept_sums, log_sigmoid, sum_before, with_sums
from vantage.kernels.gpu.head_vectors import NO_TURN, HeadNorm, RopeTables, keep_new, kept_vector, new_key, rotated
from vantage.kernels.gpu.row_shares import ask, blocks_of, joined_shares, kept_at, shares_of, slots_of
from vantage.kernels.gpu.score_bias import (
    COUNTS,
    PIECES_AS_PRODUCT,
    DeviceBias,
    bias_row,
    first_line,
    form_constants,
    head_numbers,
    scored,
    with_line,
)
from vantage.kernels.gpu.tiles import QUERY_AND_KEY
from vantage.kernels.gpu.value_bias import DeviceValues, far_values, with_near_values

Launch = Any  # triton's kernels: indexed by their grid, then called
LOG2E = 1.4426950408889634
ADDRESS = 8  # numbers that say where a layer's keys and values are: see ``store_numbers``


@dataclass(frozen=True)
class RowState:
    """Where the rows of a step stand, all on the device and int32. A row that is not in use holds -1. B: rows of a
    cache."""

    held: Tensor  # (B · tokens,): tokens before this one
    pos: Tensor  # (B · tokens,): the position of this one
    gone: Tensor  # (B,): blocks at the front that were given back
    table: Tensor  # (B, blocks)
    block: int  # tokens in a block; 0: rows own their places
    tokens: int = 1  # of each row of the cache


@dataclass(frozen=True)
class Workspace:
    """Room for the shares of a row's keys, which all layers use in turn."""

    sums: Tensor  # (B, splits, H, e) float32
    highest: Tensor  # (B, splits, H)
    totals: Tensor  # (B, splits, H)
    arrived: Tensor  # (B, G) int32, 0 between passes
    begun: Tensor  # (B, G) int32: programs of counted keys, over all passes

    @staticmethod
    def make(rows: int, splits: int, heads: int, kv_heads: int, width: int, device: torch.device) -> Workspace:
        sizes = (rows, splits, heads)
        return Workspace(
            torch.empty((*sizes, width), device=device),
            torch.empty(sizes, device=device),
            torch.empty(sizes, device=device),
            *torch.zeros((2, rows, kv_heads), dtype=torch.int32, device=device),
        )


@triton.jit
def _over_keys(
    q, m, total, acc, carry, start, end, n, k_base, v_base, k_scales, v_scales, blocks, block, r, mine, d, e,
    bias_h, bias_a, bias_b, bias_one, bias_two, bias_width, slope, level, bends, change, sum_now, kept_to, scale, cap,
    values, value_width, D: tl.constexpr, E: tl.constexpr, GROUP: tl.constexpr, KEYS: tl.constexpr,
    STAGES: tl.constexpr, PAGED: tl.constexpr, SOFTCAP: tl.constexpr, BIAS: tl.constexpr, BREAKS: tl.constexpr,
    PRECISION: tl.constexpr, TYPE: tl.constexpr, INT8: tl.constexpr, VALUES: tl.constexpr,
):  # fmt: skip
    """What heads make of the keys from ``start`` to ``end``, which are kept. ``carry``: what they counted before."""
    BY_SCORE: tl.constexpr = 0 if BIAS == PIECES_AS_PRODUCT else BIAS  # what needs no more than a score's own numbers
    for at in tl.range(start, end, KEYS, num_stages=STAGES):
        begin = at
        if BIAS == COUNTS:  # from the newest on
            begin = start + tl.cdiv(end - start, KEYS) * KEYS - KEYS - (at - start)
        j = begin + tl.arange(0, KEYS)
        valid = j < end
        slot = slots_of(blocks, j, valid, block, PAGED)
        k = tl.load(k_base + slot[:, None] * D + d[None, :], mask=valid[:, None] & (d < D)[None, :], other=0.0)
        v = tl.load(v_base + slot[:, None] * E + e[None, :], mask=valid[:, None] & (e < E)[None, :], other=0.0)
        s = tl.dot(q, tl.trans(k.to(TYPE)), input_precision=PRECISION)
        if INT8:
            s *= tl.load(k_scales + slot, mask=valid, other=0.0)[None, :]
        by_count = 0.0
        if BIAS == COUNTS:
            by_count, carry = counted(s, valid, carry, bias_a, bias_h, mine, bias_one, bias_width, scale)
        s = scored(
            s, (n - j)[None, :], n - begin - (KEYS - 1), bias_h, mine[:, None], bias_a, bias_b, bias_one, bias_two,
            bias_width, scale, cap, SOFTCAP, BY_SCORE, BREAKS,
        )  # fmt: skip
        if BIAS == COUNTS:
            s += by_count * 1.4426950408889634
        if BIAS == PIECES_AS_PRODUCT:
            s = with_line(s, (n - j)[None, :], bias_a, bias_b, slope, level, bends, change, PRECISION)
        if BIAS == QUERY_AND_KEY:
            known = mine[:, None] & valid[None, :]
            s = with_sums(s, sum_now[:, None], kept_to, slot[None, :], r[:, None], known, GROUP)
        s = tl.where(valid[None, :], s, float("-inf"))
        higher = tl.maximum(m, tl.max(s, 1))
        p = tl.exp2(s - higher[:, None])
        fade = tl.exp2(m - higher)
        total = total * fade + tl.sum(p, 1)
        acc = acc * fade[:, None]
        if VALUES:
            acc = with_near_values(
                acc, p, n - j, n - begin - (KEYS - 1), e, values, value_width, E, PRECISION, TYPE
            )  # fmt: skip
        if INT8:
            p *= tl.load(v_scales + slot, mask=valid, other=0.0)[None, :]
        acc += tl.dot(p.to(TYPE), v.to(TYPE), input_precision=PRECISION)
        m = higher
    return m, total, acc


@triton.jit
def _with_new(
    q, new_k, new_v, new_count, m, total, acc, mine, e, bias_h, bias_a, bias_b, bias_one, bias_two, bias_width, level,
    scale, cap, values, value_width, E: tl.constexpr, SOFTCAP: tl.constexpr, BIAS: tl.constexpr, BREAKS: tl.constexpr,
    TYPE: tl.constexpr, VALUES: tl.constexpr,
):  # fmt: skip
    """What heads make of the new token beside all others. ``new_count``: what they count for it."""
    BY_SCORE: tl.constexpr = 0 if BIAS == PIECES_AS_PRODUCT else BIAS
    new_s = tl.sum(q.to(tl.float32) * new_k.to(tl.float32)[None, :], 1)[:, None]
    new_s = scored(
        new_s, tl.zeros((1, 1), tl.int32), 0, bias_h, mine[:, None], bias_a, bias_b, bias_one, bias_two,
        bias_width, scale, cap, SOFTCAP, BY_SCORE, BREAKS,
    )  # fmt: skip
    if BIAS == PIECES_AS_PRODUCT:
        new_s += level
    new_s = tl.sum(new_s, 1)
    if BIAS == COUNTS:
        new_bias, _, _, _ = number_by_count(new_count, bias_one, tl.where(mine, tl.sum(bias_h, 1), 0) * bias_width,
                                            bias_width, False)  # fmt: skip
        new_s += new_bias * 1.4426950408889634
    new_m = tl.maximum(m, new_s)
    new_p = tl.exp2(new_s - new_m)
    new_fade = tl.exp2(m - new_m)
    total = total * new_fade + new_p
    seen_v = new_v
    if VALUES:
        seen_v = new_v.to(tl.float32) + tl.load(values + e, mask=(e < E) & (value_width > 1), other=0.0)
    acc = acc * new_fade[:, None] + new_p.to(TYPE).to(tl.float32)[:, None] * seen_v.to(tl.float32)[None, :]
    return new_m, total, acc


@triton.jit
def attend(
    qkv, out, stores, held, pos, gone, table, cos, sin, q_gain, k_gain, bias_one, bias_two, sinks, sums, highest,
    totals, arrived, begun, layer, qkv_stride, table_width, block, scale, cap, window, q_eps, q_offset, k_eps, k_offset,
    turned, bias_width, values, value_width, vectors, tokens,
    H: tl.constexpr, G: tl.constexpr, D: tl.constexpr, E: tl.constexpr, GROUP_TILE: tl.constexpr, D_TILE: tl.constexpr,
    E_TILE: tl.constexpr, SPLITS: tl.constexpr, HEADS: tl.constexpr, AT_ONCE: tl.constexpr, KEYS: tl.constexpr,
    LEAST: tl.constexpr, STAGES: tl.constexpr, PAGED: tl.constexpr, TURN: tl.constexpr,
    Q_NORM: tl.constexpr, K_NORM: tl.constexpr, Q_GAIN: tl.constexpr, K_GAIN: tl.constexpr, SOFTCAP: tl.constexpr,
    BIAS: tl.constexpr, BREAKS: tl.constexpr, SINKS: tl.constexpr, WINDOW: tl.constexpr, PRECISION: tl.constexpr,
    TYPE: tl.constexpr, INT8: tl.constexpr, DEPENDENT: tl.constexpr, VALUES: tl.constexpr, RECENT: tl.constexpr,
    KEPT: tl.constexpr,
):  # fmt: skip
    """``tokens``: how many rows share one of the cache. KEPT: the new tokens are in it already."""
    b, g, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    if BIAS == COUNTS:
        split = begun_as(begun + b * G + g, SPLITS)
    GROUP: tl.constexpr = H // G
    n = tl.load(held + b)
    place = tl.load(pos + b).to(tl.int64) * (turned * (1 + TURN // 4))
    key_place = place + turned * (TURN // 4)
    k_base, v_base, k_scales, v_scales = kept_at(stores + layer * 8, b // tokens, g, D, E, TYPE, INT8)
    blocks = blocks_of(table, gone, b // tokens, table_width, PAGED)
    first, share, active = shares_of(n, window, WINDOW, SPLITS, KEYS, LEAST)
    if n < 0 or split >= active:
        return
    if BIAS == COUNTS:  # who begins first takes the newest keys: others may wait for what it counts
        split = active - 1 - split
    start = first + split * share
    end = tl.minimum(start + share, n)
    slope, level, bends, change = first_line(
        bias_one, bias_two, bias_width, g * GROUP, GROUP, GROUP_TILE, BIAS, BREAKS
    )  # fmt: skip
    if DEPENDENT:  # what was kept before this step can be asked for while the kernel before still runs
        asked = tl.minimum(start + tl.arange(0, LEAST), tl.maximum(end - 1, start)).to(tl.int64)
        if PAGED:
            asked = tl.load(blocks + asked // block).to(tl.int64) * block + asked % block
        ask(k_base + asked * D)
        ask(v_base + asked * E)
        if BIAS == COUNTS:
            newest = split == active - 1
            ask_recent(k_base, blocks, first, n, block, vectors, bias_width, newest, D, RECENT, PAGED)
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()

    r = tl.arange(0, GROUP_TILE)
    h = g * GROUP + r
    d = tl.arange(0, D_TILE)
    e = tl.arange(0, E_TILE)
    mine = r < GROUP
    row = b.to(tl.int64) * qkv_stride
    inside = mine[:, None] & (d < D)[None, :]
    q_at = row + h[:, None] * D
    size = tl.zeros((GROUP_TILE, 1), tl.float32)
    if Q_NORM:
        raw = tl.load(qkv + q_at + d[None, :], mask=inside, other=0.0).to(tl.float32)
        size = tl.rsqrt(tl.sum(raw * raw, 1) / D + q_eps)[:, None]
    q = rotated(
        qkv, q_at, d[None, :], inside, cos + place, sin + place, q_gain, size, q_offset, D, turned, Q_NORM, Q_GAIN,
        TURN % 4,
    ).to(TYPE)  # fmt: skip
    bias_h = bias_row(b, h[:, None], H, BIAS)
    bias_a, bias_b = head_numbers(bias_one, bias_two, bias_width, bias_h, tl.load(pos + b), mine[:, None], BIAS)
    kept_to = 0
    sum_now = tl.zeros((GROUP_TILE,), tl.float32)
    if BIAS == QUERY_AND_KEY:
        kept_to = kept_sums(bias_two, b, g, GROUP)
        sum_now = sum_before(kept_to, blocks, gone + b, n, block, r, mine, PAGED, GROUP)
        sum_now += log_sigmoid(tl.load(bias_one + b.to(tl.int64) * H + h, mask=mine, other=0.0).to(tl.float32))

    m = tl.full((GROUP_TILE,), float("-inf"), tl.float32)
    total = tl.zeros((GROUP_TILE,), tl.float32)
    acc = tl.zeros((GROUP_TILE, E_TILE), tl.float32)
    new_count = tl.zeros((GROUP_TILE,), tl.float32)
    carry = new_count
    if BIAS == COUNTS:
        if KEPT:
            own_k = kept_vector(k_base, k_scales, slots_of(blocks, n, n >= 0, block, PAGED), d, D, TYPE, INT8)
        else:
            own_k, _, _ = new_key(
                qkv, row + H * D + g * D, d, cos + key_place, sin + key_place, k_gain, k_eps, k_offset, turned, D,
                K_NORM, K_GAIN, TURN % 4, TYPE, INT8,
            )  # fmt: skip
        new_count = tl.sigmoid(tl.sum(q.to(tl.float32) * own_k.to(tl.float32)[None, :], 1) * scale)
        carry = counted_before(
            new_count, q, first, start, end, n, share, split, active, k_base, k_scales, blocks, block, d, scale,
            bias_two + b.to(tl.int64) * (SPLITS * H), h, mine, bias_width, H, D, SPLITS, KEYS, STAGES, RECENT, PAGED,
            PRECISION, TYPE, INT8,
        )  # fmt: skip
        raw = tl.load(qkv + q_at + d[None, :], mask=inside, other=0.0)
        bias_a = highest_number(raw, vectors, bias_width, d, D)
        if (split == active - 1) | (tl.min(tl.where(mine, carry, bias_width)) < bias_width - 1):
            count_table(raw, vectors, bias_one + bias_h * bias_width, mine, bias_width, d, D, PRECISION, TYPE)
    m, total, acc = _over_keys(
        q, m, total, acc, carry, start, end, n, k_base, v_base, k_scales, v_scales, blocks, block, r, mine, d, e,
        bias_h, bias_a, bias_b, bias_one, bias_two, bias_width, slope, level, bends, change, sum_now, kept_to, scale,
        cap, values, value_width, D, E, GROUP, KEYS, STAGES, PAGED, SOFTCAP, BIAS, BREAKS, PRECISION, TYPE, INT8,
        VALUES,
    )  # fmt: skip
    if split == active - 1:  # the new token
        new_slot = slots_of(blocks, n, n >= 0, block, PAGED)
        if KEPT:
            new_k = kept_vector(k_base, k_scales, new_slot, d, D, TYPE, INT8)
            new_v = kept_vector(v_base, v_scales, new_slot, e, E, TYPE, INT8)
        else:
            new_k, new_codes, new_k_scale = new_key(
                qkv, row + H * D + g * D, d, cos + key_place, sin + key_place, k_gain, k_eps, k_offset, turned, D,
                K_NORM, K_GAIN, TURN % 4, TYPE, INT8,
            )  # fmt: skip
            new_v = tl.load(qkv + row + H * D + G * D + g * E + e, mask=e < E, other=0.0).to(TYPE)
            new_v = keep_new(new_k, new_codes, new_k_scale, new_v, new_slot, k_base, v_base, k_scales, v_scales, d, e,
                             D, E, TYPE, INT8)  # fmt: skip
        if BIAS == QUERY_AND_KEY:
            tl.store(kept_to + new_slot * GROUP + r, sum_now, mask=mine)
        m, total, acc = _with_new(
            q, new_k, new_v, new_count, m, total, acc, mine, e, bias_h, bias_a, bias_b, bias_one, bias_two, bias_width,
            level, scale, cap, values, value_width, E, SOFTCAP, BIAS, BREAKS, TYPE, VALUES,
        )  # fmt: skip

    to = out + b.to(tl.int64) * (H * E) + h[:, None] * E + e[None, :]
    kept = mine[:, None] & (e < E)[None, :]
    if active > 1:
        mine_at = (b * SPLITS + split) * H + h
        tl.store(sums + mine_at[:, None].to(tl.int64) * E + e[None, :], acc, mask=kept)
        tl.store(highest + mine_at, m, mask=mine)
        tl.store(totals + mine_at, total, mask=mine)
        tl.debug_barrier()
        before = tl.atomic_add(arrived + b * G + g, 1, sem="acq_rel")
        if before < active - 1:
            return
        tl.store(arrived + b * G + g, 0)
        if BIAS == COUNTS:
            forget_counts(bias_two + b.to(tl.int64) * (SPLITS * H), h, mine, H, SPLITS)
        joined_shares(out, sums, highest, totals, sinks, b, g, active, H, GROUP, HEADS, E, E_TILE, SPLITS, AT_ONCE,
                      SINKS, values, value_width, VALUES)  # fmt: skip
        return
    if VALUES:
        acc += total[:, None] * far_values(values, value_width, e, E)[None, :]
    if SINKS:
        total += tl.exp2(tl.load(sinks + h, mask=mine, other=0.0).to(tl.float32) * 1.4426950408889634 - m)
    tl.store(to, (acc / total[:, None]).to(out.dtype.element_ty), mask=kept)


def store_numbers(tensors: Sequence[Tensor]) -> list[int]:
    """Where a layer's keys and values are: addresses, strides of rows (0 in a pool) and heads, and the addresses of
    scales, of which there is one where a token of a head has its numbers in 8 bits. One tensor: values are the front of
    the keys. Four: keys, their scales, values and theirs."""
    kept = tensors[::2] if len(tensors) == 4 else tensors
    k, v = kept[0], kept[-1]
    scales = [t.data_ptr() for t in tensors[1::2]] if len(tensors) == 4 else [0, 0]
    strides = [(t.stride(0) if t.dim() == 4 else 0, t.stride(-3)) for t in (k, v)]
    return [k.data_ptr(), v.data_ptr(), *strides[0], *strides[1], *scales]


def keys_at_once(keys: int, dtype: torch.dtype, key_dim: int, values: int = 0) -> int:
    """Fewer where what a block may share is used up sooner. ``values``: the width of vectors that are added to values
    by distance, which go through it as well; 0: there are none."""
    keys = keys // 2 if dtype is torch.float32 or key_dim > 128 else keys
    if not values:
        return keys
    width = max(key_dim, values)
    most = (16_384 if width <= 64 else 8192) // (width * dtype.itemsize)
    return max(16, min(keys, 1 << (most.bit_length() - 1)))


TYPES = {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}


def decode(
    qkv: Tensor,
    out: Tensor,
    stores: Tensor,
    layer: int,
    rows: RowState,
    work: Workspace,
    *,
    heads: int,
    kv_heads: int,
    key_dim: int,
    value_dim: int,
    scale: float,
    softcap: float | None = None,
    window: int = 0,
    bias: DeviceBias | None = None,
    sinks: Tensor | None = None,
    rotation: RopeTables | None = None,
    q_norm: HeadNorm | None = None,
    k_norm: HeadNorm | None = None,
    keys: int = 128,
    least: int = 128,
    warps: int = 4,
    int8: bool = False,
    dependent: bool = False,
    values: DeviceValues | None = None,
) -> None:
    """out (B, heads · value_dim) from qkv (B, queries | keys | values). ``stores``: (layers, ADDRESS) int64. ``int8``:
    keys and values are kept in 8 bits with scales. ``values``: what is added to values by their distance. Of several
    tokens of a row keys and values are in the cache."""
    B, splits, kept = len(qkv), work.sums.shape[1], rows.tokens > 1
    assert not (kept and dependent), "what is read ahead may be what the kernel before writes"
    assert not (kept and bias is not None and bias.form == QUERY_AND_KEY.value), "sums of several tokens are a chunk's"
    nothing = rows.held
    q_gain, q_eps, q_offset = (None, 0.0, 0.0) if q_norm is None else (q_norm.gain, q_norm.eps, q_norm.offset)
    k_gain, k_eps, k_offset = (None, 0.0, 0.0) if k_norm is None else (k_norm.gain, k_norm.eps, k_norm.offset)
    cos, sin = (nothing, nothing) if rotation is None else (rotation.cos, rotation.sin)
    one, two = (None, None) if bias is None else (bias.one, bias.two)
    optional = (cos, sin, q_gain, k_gain, one, two, sinks)
    extra = {"launch_pdl": True} if dependent else {}
    group, value_tile = triton.next_power_of_2(heads // kv_heads), max(16, triton.next_power_of_2(value_dim))
    keys = keys_at_once(keys, qkv.dtype, key_dim, 0 if values is None else value_dim)
    kernel: Launch = attend
    kernel[(B, kv_heads, splits)](
        qkv, out, stores, rows.held, rows.pos, rows.gone, rows.table,
        *(nothing if t is None else t for t in optional), work.sums, work.highest, work.totals, work.arrived,
        work.begun, layer, qkv.stride(0), rows.table.shape[1], max(rows.block, 1), scale, softcap or 1.0, window,
        q_eps, q_offset, k_eps, k_offset, 0 if rotation is None else rotation.turned, 0 if bias is None else bias.width,
        nothing if values is None else values.table, 0 if values is None else values.width,
        bias.vectors if isinstance(bias, CountBias) else nothing, rows.tokens,
        H=heads, G=kv_heads, D=key_dim, E=value_dim, GROUP_TILE=max(16, group), HEADS=group,
        D_TILE=max(16, triton.next_power_of_2(key_dim)), E_TILE=value_tile, SPLITS=splits,
        AT_ONCE=max(1, min(splits, 4096 // (group * value_tile))), KEYS=keys, LEAST=max(least, keys), STAGES=3,
        PAGED=rows.block > 0, TURN=NO_TURN if rotation is None else rotation.turn,
        Q_NORM=q_norm is not None, K_NORM=k_norm is not None, Q_GAIN=q_gain is not None, K_GAIN=k_gain is not None,
        SOFTCAP=softcap is not None, **form_constants(bias), SINKS=sinks is not None, WINDOW=window > 0,
        PRECISION="ieee" if qkv.dtype is torch.float32 else "tf32", TYPE=TYPES[qkv.dtype], INT8=int8,
        DEPENDENT=dependent, VALUES=values is not None, RECENT=bias.recent if isinstance(bias, CountBias) else 0,
        KEPT=kept, num_warps=warps, **extra,
    )  # fmt: skip
