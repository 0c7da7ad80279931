"""Latent attention (MLA) in its absorbed form, of one new token a row over a cache that stays where it is; or of a few,
each of which is a row of its own: the second pass begins when all of them are kept.

All heads share what is kept of a token: the latent, which is key and value at once, and a rotary key beside it. Three
passes: queries are carried into the latent's space while the new token is normed, turned and kept; a program reads a
share of a row's latents for many heads; and the shares are put together and carried to the heads' values.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from vantage.kernels.gpu.decode import TYPES, RowState
from vantage.kernels.gpu.head_vectors import NO_TURN, HeadNorm, RopeTables, rotated
from vantage.kernels.gpu.row_shares import FEWEST_SPLITS, blocks_of
from vantage.kernels.gpu.score_bias import (
    PIECES_AS_PRODUCT,
    DeviceBias,
    first_line,
    form_constants,
    head_numbers,
    scored,
    with_line,
)
from vantage.spec.native import LatentDims

Launch = Any  # triton's kernels: indexed by their grid, then called
ROWS = 16  # of a tile of queries: the matrix units take no fewer
MOST_HEADS, LEAST_TILE = 32, 16  # heads of a program, each of which reads all latents of its share; and of its tile
KEYS, STAGES, WARPS = (64, 32, 16), 2, 8  # keys at a time: the most for which a processor has memory
HOPPER_SHARED = 227 * 1024  # bytes
MAX_SPLITS = 256
COLUMNS = 128  # of the latent, carried at once


def splits_for(rows: int, heads: int, processors: int) -> int:
    """Into how many shares a row's latents are cut: enough for every processor, a power of two, by the bucket of rows
    alone; several for few rows, since the longest would hold all others up."""
    programs = rows * (heads // heads_at_once(heads))
    wanted = max(min(FEWEST_SPLITS, max(1, 256 // rows)), 2 * processors // programs)
    return min(MAX_SPLITS, 1 << (wanted.bit_length() - 1))


def heads_at_once(heads: int) -> int:
    """Of a program: a power of two that divides them."""
    return min(MOST_HEADS, heads & -heads)


def keys_for(heads: int, width: int, dtype: torch.dtype, shared: int) -> tuple[int, int]:
    """Keys that a program reads at a time, and how many such tiles it has under way. ``width``: of a token's latent and
    rotary key; ``shared``: bytes that a program may have for these tiles and its queries."""
    if dtype is torch.float32:
        return KEYS[-1], 1
    token = width * dtype.itemsize
    fits = (keys for keys in KEYS if (STAGES * keys + heads) * token <= shared)
    return next(fits, KEYS[-1]), STAGES


@functools.cache
def _shared_memory(device: torch.device) -> int:
    if device.type != "cuda":
        return HOPPER_SHARED
    return torch.cuda.get_device_properties(device).shared_memory_per_block_optin


@dataclass(frozen=True)
class LatentWorkspace:
    """Room for queries in the latent's space and for the shares of a row, which all layers use in turn."""

    queries: Tensor  # (B, H, rank + rope)
    sums: Tensor  # (B, splits, H, rank) float32
    highest: Tensor  # (B, splits, H)
    totals: Tensor  # (B, splits, H)

    @staticmethod
    def make(rows: int, splits: int, sizes: LatentDims, dtype: torch.dtype, device: torch.device) -> LatentWorkspace:
        shares = (rows, splits, sizes.heads)
        return LatentWorkspace(
            torch.empty((rows, sizes.heads, sizes.rank + sizes.rope), dtype=dtype, device=device),
            torch.empty((*shares, sizes.rank), device=device),
            torch.empty(shares, device=device),
            torch.empty(shares, device=device),
        )


@triton.jit
def _slot(table, gone, b, held, table_width, block, mask, PAGED: tl.constexpr):
    """Where the token number ``held`` of each row is."""
    slot = held.to(tl.int64)
    if PAGED:
        missing = tl.load(gone + b, mask=mask, other=0)
        at = table + b.to(tl.int64) * table_width + held // block - missing
        slot = tl.load(at, mask=mask, other=0).to(tl.int64) * block + held % block
    return slot


@triton.jit(do_not_specialize=["layer"])
def prepare(
    q, kv, queries, k_up, gain, stores, held, pos, gone, table, cos, sin, layer, rows, table_width, block, eps, offset,
    turned, tokens, H: tl.constexpr, R: tl.constexpr, NOPE: tl.constexpr, ROPE: tl.constexpr, TILE: tl.constexpr,
    R_TILE: tl.constexpr, NOPE_TILE: tl.constexpr, ROPE_TILE: tl.constexpr, COLUMNS: tl.constexpr,
    PAGED: tl.constexpr, TURN: tl.constexpr, GAIN: tl.constexpr, PRECISION: tl.constexpr, TYPE: tl.constexpr,
):  # fmt: skip
    """queries (B, H, R + ROPE) from q (B, H · (NOPE + ROPE)); and kv (B, R + ROPE), normed and turned, to the cache.
    ``tokens``: how many rows share one of the cache."""
    h = tl.program_id(0)
    b = tl.program_id(1) * TILE + tl.arange(0, TILE)
    used = b < rows
    n = tl.load(held + b, mask=used, other=-1)
    used = used & (n >= 0)
    angle = tl.where(used, tl.load(pos + b, mask=used, other=0), 0).to(tl.int64)[:, None]
    angle *= turned * (1 + TURN // 4)
    d = tl.arange(0, ROPE_TILE)[None, :]
    inside = used[:, None] & (d < ROPE)
    nothing = tl.zeros((TILE, 1), tl.float32)
    if h < H:
        row = b.to(tl.int64)[:, None] * (H * (NOPE + ROPE)) + h * (NOPE + ROPE)
        k = tl.arange(0, NOPE_TILE)
        content = tl.load(q + row + k[None, :], mask=used[:, None] & (k < NOPE)[None, :], other=0.0)
        to = queries + (b.to(tl.int64)[:, None] * H + h) * (R + ROPE)
        for first in range(0, R, COLUMNS):
            r = first + tl.arange(0, COLUMNS)
            at = k_up + (h * NOPE + k)[:, None] * R + r[None, :]
            up = tl.load(at, mask=(k < NOPE)[:, None] & (r < R)[None, :], other=0.0)
            y = tl.dot(content, up, input_precision=PRECISION)
            tl.store(to + r[None, :], y.to(TYPE), mask=used[:, None] & (r < R)[None, :])
        if ROPE:
            turned_q = rotated(
                q, row + NOPE, d, inside, cos + angle, sin + angle, gain, nothing, 0.0, ROPE, turned, False, False,
                TURN % 4,
            )  # fmt: skip
            tl.store(to + R + d, turned_q.to(TYPE), mask=inside)
    else:
        numbers = stores + layer * 8
        base = tl.load(numbers).to(tl.pointer_type(TYPE)) + (b // tokens).to(tl.int64) * tl.load(numbers + 2)
        slot = _slot(table, gone, b // tokens, tl.maximum(n, 0), table_width, block, used, PAGED)
        to = (base + slot * (R + ROPE))[:, None]
        r = tl.arange(0, R_TILE)[None, :]
        kept = used[:, None] & (r < R)
        row = b.to(tl.int64)[:, None] * (R + ROPE)
        latent = tl.load(kv + row + r, mask=kept, other=0.0).to(tl.float32)
        latent *= tl.rsqrt(tl.sum(latent * latent, 1) / R + eps)[:, None]
        if GAIN:
            latent *= offset + tl.load(gain + r, mask=r < R, other=0.0).to(tl.float32)
        tl.store(to + r, latent.to(TYPE), mask=kept)
        if ROPE:
            angle += turned * (TURN // 4)
            key = rotated(
                kv, row + R, d, inside, cos + angle, sin + angle, gain, nothing, 0.0, ROPE, turned, False, False,
                TURN % 4,
            )  # fmt: skip
            tl.store(to + R + d, key.to(TYPE), mask=inside)


@triton.jit
def _shares(n, window, WINDOW: tl.constexpr, SPLITS: tl.constexpr, KEYS: tl.constexpr):
    """The first token that is seen, how many each share has, and how many shares. n: tokens held, the new one too."""
    first = 0
    if WINDOW:
        first = tl.maximum(0, n - window)
    share = tl.cdiv(tl.cdiv(n - first, SPLITS), KEYS) * KEYS
    return first, share, tl.cdiv(n - first, share)


@triton.jit(do_not_specialize=["layer"])
def attend(
    queries, stores, held, pos, gone, table, bias_one, bias_two, sums, highest, totals, layer, table_width, block,
    scale, cap, window, bias_width, tokens,
    H: tl.constexpr, R: tl.constexpr, ROPE: tl.constexpr, HEADS: tl.constexpr, HEADS_TILE: tl.constexpr,
    R_TILE: tl.constexpr, ROPE_TILE: tl.constexpr, SPLITS: tl.constexpr, KEYS: tl.constexpr, STAGES: tl.constexpr,
    PAGED: tl.constexpr, SOFTCAP: tl.constexpr, BIAS: tl.constexpr, BREAKS: tl.constexpr, WINDOW: tl.constexpr,
    PRECISION: tl.constexpr, TYPE: tl.constexpr,
):  # fmt: skip
    """What a share of a row's latents gives to HEADS of its heads."""
    b, tile, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    n = tl.load(held + b) + 1
    if n < 1:
        return
    first, share, active = _shares(n, window, WINDOW, SPLITS, KEYS)
    if split >= active:
        return
    start = first + split * share
    end = tl.minimum(start + share, n)
    numbers = stores + layer * 8
    base = tl.load(numbers).to(tl.pointer_type(TYPE)) + (b // tokens) * tl.load(numbers + 2)
    base = tl.multiple_of(base, 16)
    blocks = blocks_of(table, gone, b // tokens, table_width, PAGED)
    i = tl.arange(0, HEADS_TILE)
    h = tile * HEADS + i
    r = tl.arange(0, R_TILE)[None, :]
    d = tl.arange(0, ROPE_TILE)[None, :]
    mine = i < HEADS
    row = queries + (b.to(tl.int64) * H + h)[:, None] * (R + ROPE)
    content = tl.load(row + r, mask=mine[:, None] & (r < R), other=0.0)
    place = tl.load(row + R + d, mask=mine[:, None] & (d < ROPE), other=0.0)
    bias_a, bias_b = head_numbers(bias_one, bias_two, bias_width, h[:, None], tl.load(pos + b), mine[:, None], BIAS)
    BY_SCORE: tl.constexpr = 0 if BIAS == PIECES_AS_PRODUCT else BIAS
    slope, level, bends, change = first_line(
        bias_one, bias_two, bias_width, tile * HEADS, HEADS, HEADS_TILE, BIAS, BREAKS
    )  # fmt: skip
    m = tl.full((HEADS_TILE,), float("-inf"), tl.float32)
    total = tl.zeros((HEADS_TILE,), tl.float32)
    acc = tl.zeros((HEADS_TILE, R_TILE), tl.float32)
    for begin in tl.range(start, end, KEYS, num_stages=STAGES):
        j = begin + tl.arange(0, KEYS)
        valid = j < end
        slot = j.to(tl.int64)
        if PAGED:
            slot = tl.load(blocks + j // block, mask=valid, other=0).to(tl.int64) * block + j % block
        at = base + slot[:, None] * (R + ROPE)
        latent = tl.load(at + r, mask=valid[:, None] & (r < R), other=0.0)
        s = tl.dot(content, tl.trans(latent), input_precision=PRECISION)
        if ROPE:
            key = tl.load(at + R + d, mask=valid[:, None] & (d < ROPE), other=0.0)
            s = tl.dot(place, tl.trans(key), s, input_precision=PRECISION)
        s = scored(
            s, (n - 1 - j)[None, :], n - begin - KEYS, h[:, None], mine[:, None], bias_a, bias_b, bias_one, bias_two,
            bias_width, scale, cap, SOFTCAP, BY_SCORE, BREAKS,
        )  # fmt: skip
        if BIAS == PIECES_AS_PRODUCT:
            s = with_line(s, (n - 1 - j)[None, :], bias_a, bias_b, slope, level, bends, change, PRECISION)
        s = tl.where(valid[None, :], s, float("-inf"))
        higher = tl.maximum(m, tl.max(s, 1))
        p = tl.exp2(s - higher[:, None])
        fade = tl.exp2(m - higher)
        total = total * fade + tl.sum(p, 1)
        acc = acc * fade[:, None]
        acc = tl.dot(p.to(TYPE), latent, acc, input_precision=PRECISION)
        m = higher
    at_share = (b * SPLITS + split) * H + h
    tl.store(sums + at_share[:, None].to(tl.int64) * R + r, acc, mask=mine[:, None] & (r < R))
    tl.store(highest + at_share, m, mask=mine)
    tl.store(totals + at_share, total, mask=mine)


@triton.jit
def expand(
    out, v_up, held, sums, highest, totals, sinks, window, H: tl.constexpr, R: tl.constexpr, E: tl.constexpr,
    R_TILE: tl.constexpr, E_TILE: tl.constexpr, SPLITS: tl.constexpr, AT_ONCE: tl.constexpr, KEYS: tl.constexpr,
    WINDOW: tl.constexpr, SINKS: tl.constexpr,
):  # fmt: skip
    """out (B, H · E): the shares of a head in their order, carried from the latent to its values."""
    h, b = tl.program_id(0), tl.program_id(1)
    n = tl.load(held + b) + 1
    e = tl.arange(0, E_TILE)
    r = tl.arange(0, R_TILE)
    if n < 1:
        return
    _, _, active = _shares(n, window, WINDOW, SPLITS, KEYS)
    i = tl.arange(0, SPLITS)
    at = (b * SPLITS + i) * H + h
    high = tl.load(highest + at, mask=i < active, other=float("-inf"))
    m = tl.max(high, 0)
    total = tl.sum(tl.load(totals + at, mask=i < active, other=0.0) * tl.exp2(high - m), 0)
    if SINKS:
        total += tl.exp2(tl.load(sinks + h).to(tl.float32) * 1.4426950408889634 - m)
    y = tl.zeros((R_TILE,), tl.float32)
    for begin in range(0, active, AT_ONCE):
        some = begin + tl.arange(0, AT_ONCE)
        at_some = (b * SPLITS + some) * H + h
        used = some < active
        parts = tl.load(
            sums + at_some[:, None].to(tl.int64) * R + r[None, :], mask=used[:, None] & (r < R)[None, :], other=0.0
        )
        weight = tl.exp2(tl.load(highest + at_some, mask=used, other=float("-inf")) - m)
        y += tl.sum(parts * weight[:, None], 0)
    y = (y / total).to(v_up.dtype.element_ty).to(tl.float32)
    up = tl.load(v_up + (h * E + e)[:, None] * R + r[None, :], mask=(e < E)[:, None] & (r < R)[None, :], other=0.0)
    value = tl.sum(up.to(tl.float32) * y[None, :], 1)
    tl.store(out + (b.to(tl.int64) * H + h) * E + e, value.to(out.dtype.element_ty), mask=e < E)


def decode_latent(
    q: Tensor,
    kv: Tensor,
    out: Tensor,
    k_up: Tensor,
    v_up: Tensor,
    stores: Tensor,
    layer: int,
    rows: RowState,
    work: LatentWorkspace,
    *,
    sizes: LatentDims,
    norm: HeadNorm,
    scale: float,
    softcap: float | None = None,
    window: int = 0,
    bias: DeviceBias | None = None,
    sinks: Tensor | None = None,
    rotation: RopeTables | None = None,
) -> None:
    """out (B, heads · values) from q (B, heads · (nope + rope)) and kv (B, rank + rope). ``k_up`` (heads, nope, rank)
    and ``v_up`` (heads, values, rank). ``stores``: (layers, ADDRESS) int64, one stream a layer."""
    B, nothing, splits, dtype = len(q), rows.held, work.sums.shape[1], TYPES[q.dtype]
    cos, sin, turned = (nothing, nothing, 0) if rotation is None else (rotation.cos, rotation.sin, rotation.turned)
    tile = {"R_TILE": max(16, triton.next_power_of_2(sizes.rank))}
    roped = {"ROPE": sizes.rope, "ROPE_TILE": max(16, triton.next_power_of_2(sizes.rope))}
    precision = {"PRECISION": "ieee" if q.dtype is torch.float32 else "tf32", "TYPE": dtype, "PAGED": rows.block > 0}
    places = (rows.table.shape[1], max(rows.block, 1))
    first: Launch = prepare
    first[(sizes.heads + 1, triton.cdiv(B, ROWS))](
        q, kv, work.queries, k_up, nothing if norm.gain is None else norm.gain, stores, rows.held, rows.pos, rows.gone,
        rows.table, cos, sin, layer, B, *places, norm.eps, norm.offset, turned, rows.tokens, H=sizes.heads,
        R=sizes.rank, NOPE=sizes.nope, TILE=ROWS, NOPE_TILE=max(16, triton.next_power_of_2(sizes.nope)),
        COLUMNS=COLUMNS, TURN=NO_TURN if rotation is None else rotation.turn, GAIN=norm.gain is not None, num_warps=4,
        **tile, **roped, **precision,
    )  # fmt: skip
    heads = heads_at_once(sizes.heads)
    keys, stages = keys_for(
        max(LEAST_TILE, heads), tile["R_TILE"] + roped["ROPE_TILE"], q.dtype, _shared_memory(q.device)
    )
    second: Launch = attend
    second[(B, sizes.heads // heads, splits)](
        work.queries, stores, rows.held, rows.pos, rows.gone, rows.table, nothing if bias is None else bias.one,
        nothing if bias is None else bias.two, work.sums, work.highest, work.totals, layer, *places, scale,
        softcap or 1.0, window, 0 if bias is None else bias.width, rows.tokens, H=sizes.heads, R=sizes.rank,
        HEADS=heads, HEADS_TILE=max(LEAST_TILE, heads), SPLITS=splits, KEYS=keys, STAGES=stages,
        SOFTCAP=softcap is not None, **form_constants(bias), WINDOW=window > 0, num_warps=WARPS, **tile,
        **roped, **precision,
    )  # fmt: skip
    third: Launch = expand
    third[(sizes.heads, B)](
        out, v_up, rows.held, work.sums, work.highest, work.totals, nothing if sinks is None else sinks, window,
        H=sizes.heads, R=sizes.rank, E=sizes.values, E_TILE=max(16, triton.next_power_of_2(sizes.values)),
        SPLITS=splits, AT_ONCE=min(splits, 8), KEYS=keys, WINDOW=window > 0, SINKS=sinks is not None, num_warps=4,
        **tile,
    )  # fmt: skip
