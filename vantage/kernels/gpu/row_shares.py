"""How programs share the keys that a row holds, and where these are."""

from __future__ import annotations

import triton
import triton.language as tl

from vantage.kernels.gpu.value_bias import far_values

FEWEST_SPLITS = 4  # of up to 64 rows


def splits_for(rows: int, kv_heads: int, processors: int) -> int:
    """Into how many shares a row's keys are cut: enough for every processor, a power of two; several for few rows,
    since the longest would hold all others up (64 rows of 1k to 128k: 0.64 of the bandwidth with one share, 0.90 with
    four; 256 rows of up to 2k lose a tenth with four).

    It depends on the bucket of rows alone, so that a row's sums do not depend on its neighbours within one bucket.
    """
    fewest = min(FEWEST_SPLITS, max(1, 256 // rows))
    wanted = max(fewest, 2 * processors // (rows * kv_heads))
    return min(64, 1 << (wanted.bit_length() - 1))


@triton.jit
def ask(pointer):
    """Bring what is there nearer, without waiting for it."""
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [pointer.to(tl.int64)], dtype=tl.int32, is_pure=False, pack=1
    )


@triton.jit
def blocks_of(table, gone, b, table_width, PAGED: tl.constexpr):
    """The blocks of a row, from the first token that it ever had."""
    missing = 0
    if PAGED:
        missing = tl.load(gone + b)
    return table + b.to(tl.int64) * table_width - missing


@triton.jit
def slots_of(blocks, j, valid, block, PAGED: tl.constexpr):
    """Where the tokens j of a row are kept."""
    slot = j.to(tl.int64)
    if PAGED:
        slot = tl.load(blocks + j // block, mask=valid, other=0).to(tl.int64) * block + j % block
    return slot


@triton.jit
def shares_of(n, window, WINDOW: tl.constexpr, SPLITS: tl.constexpr, KEYS: tl.constexpr, LEAST: tl.constexpr):
    """The first of n tokens that are held that is seen, the tokens of a share, and how many shares there are, at least
    one."""
    first = 0
    if WINDOW:
        first = tl.maximum(0, n + 1 - window)
    count = n - first
    share = tl.maximum(tl.cdiv(tl.cdiv(count, SPLITS), KEYS) * KEYS, LEAST)
    return first, share, tl.maximum(1, tl.cdiv(count, share))


@triton.jit
def kept_at(numbers, b, g, D: tl.constexpr, E: tl.constexpr, TYPE: tl.constexpr, INT8: tl.constexpr):
    """Where the keys and values of a head of a row are, and their scales, if they are kept in 8 bits. ``numbers``: as
    ``decode.store_numbers`` has them."""
    KEPT: tl.constexpr = tl.int8 if INT8 else TYPE
    k_from = b * tl.load(numbers + 2) + g * tl.load(numbers + 3)
    v_from = b * tl.load(numbers + 4) + g * tl.load(numbers + 5)
    k_base = tl.multiple_of(tl.load(numbers).to(tl.pointer_type(KEPT)) + k_from, 16)
    v_base = tl.multiple_of(tl.load(numbers + 1).to(tl.pointer_type(KEPT)) + v_from, 16)
    k_scales = tl.load(numbers + 6).to(tl.pointer_type(tl.float32)) + k_from // D  # one for each token of a head
    v_scales = tl.load(numbers + 7).to(tl.pointer_type(tl.float32)) + v_from // E
    return k_base, v_base, k_scales, v_scales


@triton.jit
def joined_shares(
    out, sums, highest, totals, sinks, b, g, active, H: tl.constexpr, GROUP: tl.constexpr, HEADS: tl.constexpr,
    E: tl.constexpr, E_TILE: tl.constexpr, SPLITS: tl.constexpr, AT_ONCE: tl.constexpr, SINKS: tl.constexpr,
    values, value_width, VALUES: tl.constexpr,
):  # fmt: skip
    """The output of a group of heads from all shares of its keys, which other programs have written: so many shares at
    once, since every load waits for the memory. HEADS: a power of two, at least GROUP."""
    r = tl.arange(0, HEADS)
    e = tl.arange(0, E_TILE)
    h = g * GROUP + r
    i = tl.arange(0, SPLITS)
    at = (b * SPLITS + i)[:, None] * H + h[None, :]
    valid = (i < active)[:, None] & (r < GROUP)[None, :]
    high = tl.load(highest + at, mask=valid, other=float("-inf"), cache_modifier=".cg")
    part_totals = tl.load(totals + at, mask=valid, other=0.0, cache_modifier=".cg")
    m = tl.where(r < GROUP, tl.max(high, 0), 0.0)
    total = tl.sum(part_totals * tl.where(valid, tl.exp2(high - m[None, :]), 0.0), 0)
    of_keys = total
    if SINKS:
        total += tl.exp2(tl.load(sinks + h, mask=r < GROUP, other=0.0).to(tl.float32) * 1.4426950408889634 - m)
    y = tl.zeros((HEADS, E_TILE), tl.float32)
    for first in range(0, active, AT_ONCE):
        some = first + tl.arange(0, AT_ONCE)
        some_at = (b * SPLITS + some)[:, None] * H + h[None, :]
        some_there = (some < active)[:, None] & (r < GROUP)[None, :]
        parts = tl.load(
            sums + some_at[:, :, None].to(tl.int64) * E + e[None, None, :],
            mask=some_there[:, :, None] & (e < E)[None, None, :], other=0.0, cache_modifier=".cg",
        )  # fmt: skip
        some_high = tl.load(highest + some_at, mask=some_there, other=float("-inf"), cache_modifier=".cg")
        weight = tl.where(some_there, tl.exp2(some_high - m[None, :]), 0.0)
        y += tl.sum(parts * weight[:, :, None], 0)
    if VALUES:
        y += of_keys[:, None] * far_values(values, value_width, e, E)[None, :]
    y = y / tl.where(r < GROUP, total, 1.0)[:, None]
    to = out + b.to(tl.int64) * (H * E) + h[:, None] * E + e[None, :]
    tl.store(to, y.to(out.dtype.element_ty), mask=(r < GROUP)[:, None] & (e < E)[None, :])
