"""Attention of several new tokens of each row over a cache that stays where it is: chunks of prompts, or drafts.

First keys and values of the new tokens are written to the cache (``chunk_place``), and queries turned. Then a program
takes a few tokens, with all heads that share a key, over everything that they see. How many tokens are held, how many
are new and where they stand is read from the device, so that one CUDA graph serves every cache and length.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from vantage.kernels.gpu.chunk_place import ChunkPlace, chunk_constants, chunk_slots, place_chunk
from vantage.kernels.gpu.gate_sums import keep_chunk, kept_sums, with_group_sums
from vantage.kernels.gpu.head_vectors import HeadNorm, RopeTables
from vantage.kernels.gpu.row_shares import blocks_of, kept_at
from vantage.kernels.gpu.score_bias import DeviceBias, bias_row, form_constants, head_numbers, scored
from vantage.kernels.gpu.tiles import QUERY_AND_KEY
from vantage.kernels.gpu.value_bias import DeviceValues, far_values, with_band_of_values

Launch = Any  # triton's kernels: indexed by their grid, then called
FEWEST_PROGRAMS = 128  # fewer leave processors of an H200 without work, so that tiles are made smaller
MOST_SPLITS, LEAST = 8, 512  # programs that share what a tile sees, and the keys that one has at least


@triton.jit
def _over_keys(
    q, m, total, acc, k_base, v_base, k_scales, v_scales, blocks, start, end, last, seen, h, mine, bias_a, bias_b,
    bias_one, bias_two, bias_width, scale, cap, window, origin, values, value_width,
    D: tl.constexpr, E: tl.constexpr, D_TILE: tl.constexpr, E_TILE: tl.constexpr, KEYS: tl.constexpr,
    BLOCK: tl.constexpr, MASKED: tl.constexpr, SOFTCAP: tl.constexpr, BIAS: tl.constexpr, BREAKS: tl.constexpr,
    WINDOW: tl.constexpr, PRECISION: tl.constexpr, TYPE: tl.constexpr, INT8: tl.constexpr, STAGES: tl.constexpr,
    GROUP: tl.constexpr, VALUES: tl.constexpr,
):  # fmt: skip
    """What the queries make of the keys from start to end. ``seen``: the last that each of them sees; ``last``: the
    end of what is written. Not MASKED: all of them see all of these, and none is near."""
    d = tl.arange(0, D_TILE)[None, :]
    e = tl.arange(0, E_TILE)[None, :]
    first_seen = tl.min(seen)
    for begin in tl.range(start, end, KEYS, num_stages=STAGES):
        j = begin + tl.arange(0, KEYS)
        slot = chunk_slots(blocks, j, j < last, BLOCK)[:, None]
        k_mask = d < D
        v_mask = e < E
        if MASKED:
            k_mask = k_mask & (j < last)[:, None]
            v_mask = v_mask & (j < last)[:, None]
        k = tl.load(k_base + slot * D + d, mask=k_mask, other=0.0)
        v = tl.load(v_base + slot * E + e, mask=v_mask, other=0.0)
        s = tl.dot(q, tl.trans(k.to(TYPE)), input_precision=PRECISION)
        if INT8:
            s *= tl.trans(tl.load(k_scales + slot, mask=(j < last)[:, None], other=0.0))
        s = scored(
            s, seen[:, None] - j[None, :], first_seen - begin - (KEYS - 1), h, mine, bias_a, bias_b, bias_one, bias_two,
            bias_width, scale, cap, SOFTCAP, BIAS, BREAKS,
        )  # fmt: skip
        if BIAS == QUERY_AND_KEY:
            known = (j < last)[None, :]
            s = with_group_sums(s, bias_a, origin, bias_b, tl.trans(slot), h % GROUP, known, PRECISION, GROUP)
        if MASKED:
            sees = j[None, :] <= seen[:, None]
            if WINDOW:
                sees = sees & (j[None, :] > seen[:, None] - window)
            s = tl.where(sees, s, float("-inf"))
        higher = tl.maximum(m, tl.max(s, 1))
        safe = higher
        if MASKED:  # a query may see nothing of a tile, and of those before it
            safe = tl.where(higher == float("-inf"), 0.0, higher)
        p = tl.exp2(s - safe[:, None])
        fade = tl.exp2(m - safe)
        total = total * fade + tl.sum(p, 1)
        acc = acc * fade[:, None]
        if MASKED and VALUES:
            acc = with_band_of_values(
                acc, p, seen[:, None] - j[None, :], first_seen - begin - (KEYS - 1), tl.max(seen) - begin, e, values,
                value_width, E,
            )  # fmt: skip
        if INT8:
            p *= tl.trans(tl.load(v_scales + slot, mask=(j < last)[:, None], other=0.0))
        acc = tl.dot(p.to(TYPE), v.to(TYPE), acc, input_precision=PRECISION)
        m = higher
    return m, total, acc


@triton.jit
def _joined(sums, highest, totals, at, e, mine, m, total, acc, active, step, E: tl.constexpr):
    """What the shares of a tile's keys make together, in their order, which other programs have written."""
    m = tl.full(m.shape, float("-inf"), tl.float32)
    for i in range(active):
        m = tl.maximum(m, tl.load(highest + at + i * step, mask=mine, other=float("-inf"), cache_modifier=".cg"))
    safe = tl.where(m == float("-inf"), 0.0, m)
    total = total * 0.0
    acc = acc * 0.0
    for i in range(active):
        high = tl.load(highest + at + i * step, mask=mine, other=float("-inf"), cache_modifier=".cg")
        weight = tl.exp2(high - safe)
        total += weight * tl.load(totals + at + i * step, mask=mine, other=0.0, cache_modifier=".cg")
        from_ = sums + (at + i * step).to(tl.int64)[:, None] * E + e
        acc += weight[:, None] * tl.load(from_, mask=mine[:, None] & (e < E), other=0.0, cache_modifier=".cg")
    return m, total, acc


@triton.jit(do_not_specialize=["layer", "tokens", "table_width", "splits"])
def attend(
    queries, out, stores, held, count, pos, gone, table, bias_one, bias_two, sinks, sums, highest, totals, arrived,
    layer, tokens, table_width, splits, scale, cap, window, bias_width, values, value_width,
    H: tl.constexpr, G: tl.constexpr, D: tl.constexpr,
    E: tl.constexpr, D_TILE: tl.constexpr, E_TILE: tl.constexpr, HEADS: tl.constexpr, ROWS: tl.constexpr,
    KEYS: tl.constexpr, LEAST: tl.constexpr, BLOCK: tl.constexpr, SOFTCAP: tl.constexpr, BIAS: tl.constexpr,
    BREAKS: tl.constexpr, SINKS: tl.constexpr, WINDOW: tl.constexpr, PRECISION: tl.constexpr, TYPE: tl.constexpr,
    INT8: tl.constexpr, STAGES: tl.constexpr, VALUES: tl.constexpr,
):  # fmt: skip
    """out (B · T, H · E). A row of a tile is a head of a token; HEADS: a power of two, at least those of a group. At
    most ``splits`` programs share what a tile sees, if that is more than LEAST keys each, and the last of them joins
    it. ``tokens``: T, those of a row."""
    g = tl.program_id(0)
    tile = tl.num_programs(1) - 1 - tl.program_id(1)  # of all rows; those with the most keys first
    split = tl.program_id(2)
    GROUP: tl.constexpr = H // G
    TOKENS: tl.constexpr = ROWS // HEADS
    tiles = tl.cdiv(tokens, TOKENS)
    b = tile // tiles
    new, n = tl.load(count + b), tl.load(held + b)
    first = tile % tiles * TOKENS
    if first >= new:
        return
    last = n + tl.minimum(first + TOKENS, new)
    begin = 0
    if WINDOW:
        begin = tl.maximum(0, n + first + 1 - window)
    share = tl.maximum(tl.cdiv(tl.cdiv(last - begin, splits), KEYS) * KEYS, LEAST)
    active = tl.cdiv(last - begin, share)
    if split >= active:
        return
    start = begin + split * share
    end = tl.minimum(start + share, last)
    r = tl.arange(0, ROWS)
    i = first + r // HEADS
    h = g * GROUP + r % HEADS
    mine = (r % HEADS < GROUP) & (i < new)
    k_base, v_base, k_scales, v_scales = kept_at(stores + layer * 8, b, g, D, E, TYPE, INT8)
    blocks = blocks_of(table, gone, b, table_width, BLOCK > 0)
    d = tl.arange(0, D_TILE)[None, :]
    e = tl.arange(0, E_TILE)[None, :]
    token = b * tokens + i
    q_at = queries + token.to(tl.int64)[:, None] * (H * D) + h[:, None] * D + d
    q = tl.load(q_at, mask=mine[:, None] & (d < D), other=0.0)
    at = (tl.load(pos + b) + i)[:, None]
    bias_h = bias_row(token, h, H, BIAS)[:, None]
    bias_a, bias_b = head_numbers(bias_one, bias_two, bias_width, bias_h, at, mine[:, None], BIAS)
    seen = n + i
    origin = 0.0
    if BIAS == QUERY_AND_KEY:  # the sums of the new tokens are kept already
        bias_b = kept_sums(bias_two, b, g, GROUP)
        begun = chunk_slots(blocks, n + first, first < new, BLOCK) * GROUP
        own = chunk_slots(blocks, seen, i < new, BLOCK) * GROUP + r % HEADS
        bias_a = tl.load(bias_b + own, mask=mine, other=0.0) - tl.load(bias_b + begun + r % HEADS, mask=mine, other=0.0)
        bias_a = bias_a[:, None]
        head = tl.arange(0, HEADS if HEADS > 16 else 16)  # the matrix units take no fewer
        origin = tl.load(bias_b + begun + head, mask=head < GROUP, other=0.0)[:, None]
    m = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    acc = tl.zeros((ROWS, E_TILE), tl.float32)
    whole = start
    if not WINDOW:  # up to the first token's own key everybody sees everything
        near = 0
        if VALUES:
            near = value_width - 1
        whole = start + tl.maximum(tl.minimum(end, n + first + 1 - near) - start, 0) // KEYS * KEYS
        m, total, acc = _over_keys(
            q, m, total, acc, k_base, v_base, k_scales, v_scales, blocks, start, whole, last, seen, bias_h,
            mine[:, None], bias_a, bias_b, bias_one, bias_two, bias_width, scale, cap, window, origin, values,
            value_width, D, E, D_TILE, E_TILE, KEYS, BLOCK, False, SOFTCAP, BIAS, BREAKS, WINDOW, PRECISION, TYPE,
            INT8, STAGES, GROUP, VALUES,
        )  # fmt: skip
    m, total, acc = _over_keys(
        q, m, total, acc, k_base, v_base, k_scales, v_scales, blocks, whole, end, end, seen, bias_h, mine[:, None],
        bias_a, bias_b, bias_one, bias_two, bias_width, scale, cap, window, origin, values, value_width, D, E, D_TILE,
        E_TILE, KEYS, BLOCK, True, SOFTCAP, BIAS, BREAKS, WINDOW, PRECISION, TYPE, INT8, STAGES, GROUP, VALUES,
    )  # fmt: skip
    if active > 1:
        first_at = token * H + h
        step = tl.num_programs(1) // tiles * tokens * H
        mine_at = first_at + split * step
        tl.store(sums + mine_at.to(tl.int64)[:, None] * E + e, acc, mask=mine[:, None] & (e < E))
        tl.store(highest + mine_at, m, mask=mine)
        tl.store(totals + mine_at, total, mask=mine)
        tl.debug_barrier()
        before = tl.atomic_add(arrived + tile * G + g, 1, sem="acq_rel")
        if before < active - 1:
            return
        tl.store(arrived + tile * G + g, 0)
        m, total, acc = _joined(sums, highest, totals, first_at, e, mine, m, total, acc, active, step, E)
    if VALUES:
        acc += total[:, None] * far_values(values, value_width, e, E)
    if SINKS:
        total += tl.exp2(tl.load(sinks + h, mask=mine, other=0.0).to(tl.float32) * 1.4426950408889634 - m)
    to = out + token.to(tl.int64)[:, None] * (H * E) + h[:, None] * E + e
    total = tl.where(mine, total, 1.0)
    tl.store(to, (acc / total[:, None]).to(out.dtype.element_ty), mask=mine[:, None] & (e < E))


class ChunkTile(NamedTuple):
    """How the queries of a chunk are cut up, and the keys that each tile sees."""

    rows: int  # heads of tokens
    keys: int
    warps: int
    stages: int
    splits: int = 1


def tile_for(
    tokens: int, heads: int, kv_heads: int, width: int, dtype: torch.dtype, chunks: int = 1
) -> ChunkTile:  # fmt: skip
    """As measured on an H200 for one chunk; by the bucket and the model's shape alone, so that a chunk's sums depend on
    nothing else. ``tokens`` of each of so many chunks."""
    group = triton.next_power_of_2(heads // kv_heads)
    kv_heads *= chunks  # what shares nothing
    rows = 128 if tokens * group * kv_heads >= 128 * FEWEST_PROGRAMS else 64
    if kv_heads * triton.cdiv(tokens * group, rows) * MOST_SPLITS < 2 * FEWEST_PROGRAMS:
        rows = 16  # 32 at a time are slower than either
    rows = max(16, min(rows, triton.next_power_of_2(tokens * group)))
    wide = dtype is torch.float32 or width > 128
    rows = max(min(rows, 64) if wide else rows, group)
    programs = kv_heads * triton.cdiv(tokens * group, rows)
    splits = min(MOST_SPLITS, 1 << max(4 * FEWEST_PROGRAMS // programs, 1).bit_length() - 1)
    if wide:
        return ChunkTile(rows, 32, 4, 2, splits)
    warps = 8 if rows >= 128 and width <= 64 else 4
    many = width <= 64 and (rows == 16 or splits == MOST_SPLITS)
    return ChunkTile(rows, 128 if many else 64, warps, 3, splits)


class ChunkWorkspace(NamedTuple):
    """Room for what programs that share the keys of a tile leave for the last of them; all layers use it in turn."""

    sums: Tensor
    highest: Tensor
    totals: Tensor
    arrived: Tensor  # 0 between passes

    @staticmethod
    def make(tiles: Iterable[tuple[int, ChunkTile]], heads: int, width: int, device: torch.device) -> ChunkWorkspace:
        """For these numbers of tokens, each with its tile."""
        most = max(tokens * tile.splits for tokens, tile in tiles) * heads
        return ChunkWorkspace(
            torch.empty(most * width, device=device),
            torch.empty(most, device=device),
            torch.empty(most, device=device),
            torch.zeros(most, dtype=torch.int32, device=device),
        )


def attend_chunk(
    qkv: Tensor,
    queries: Tensor,
    out: Tensor,
    stores: Tensor,
    layer: int,
    at: ChunkPlace,
    work: ChunkWorkspace,
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
    tile: ChunkTile | None = None,
    least: int = LEAST,
    int8: bool = False,
    values: DeviceValues | None = None,
) -> None:
    """out (B · T, heads · value_dim) from qkv (B · T, queries | keys | values), both contiguous, with T tokens for each
    row; ``queries``: room for as many, turned. ``stores``: (layers, ADDRESS) int64, as ``decode`` has them."""
    chunks, nothing = len(at.held), at.held
    tokens = len(qkv) // chunks
    sizes: dict[str, Any] = {"heads": heads, "kv_heads": kv_heads, "key_dim": key_dim, "value_dim": value_dim}
    sizes["int8"] = int8
    place_chunk(qkv, queries, stores, layer, at, **sizes, rotation=rotation, q_norm=q_norm, k_norm=k_norm)
    if bias is not None and bias.form == QUERY_AND_KEY.value:
        keep_chunk(bias, at, tokens, heads, kv_heads)
    tile = tile or tile_for(tokens, heads, kv_heads, max(key_dim, value_dim), qkv.dtype, chunks)
    group = triton.next_power_of_2(heads // kv_heads)
    kernel: Launch = attend
    kernel[(kv_heads, chunks * triton.cdiv(tokens, tile.rows // group), tile.splits)](
        queries, out, stores, at.held, at.count, at.pos, at.gone, at.table, nothing if bias is None else bias.one,
        nothing if bias is None else bias.two, nothing if sinks is None else sinks, *work, layer, tokens,
        at.table.shape[1], tile.splits, scale, softcap or 1.0, window, 0 if bias is None else bias.width,
        nothing if values is None else values.table, 0 if values is None else values.width, VALUES=values is not None,
        HEADS=group, ROWS=tile.rows, KEYS=tile.keys, LEAST=max(least, tile.keys), SOFTCAP=softcap is not None,
        **form_constants(bias), SINKS=sinks is not None, WINDOW=window > 0,
        PRECISION="ieee" if qkv.dtype is torch.float32 else "tf32", STAGES=tile.stages, num_warps=tile.warps,
        **chunk_constants(at, qkv.dtype, **sizes),
    )  # fmt: skip
