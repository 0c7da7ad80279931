"""Keys and values of several new tokens of each row, turned and written to the cache before anything reads them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from vantage.kernels.gpu.decode import TYPES
from vantage.kernels.gpu.head_vectors import NO_TURN, HeadNorm, RopeTables, in_8_bits, rotated
from vantage.kernels.gpu.row_shares import blocks_of, kept_at

Launch = Any  # triton's kernels: indexed by their grid, then called
PLACED = 16  # tokens whose keys a program writes


@dataclass(frozen=True)
class ChunkPlace:
    """Where the new tokens of each row stand, all on the device and int32."""

    held: Tensor  # (B,): tokens of a row before them
    count: Tensor  # (B,): how many are new; the others of a bucket are nothing
    pos: Tensor  # (B,): the position of the first
    gone: Tensor  # (B,): blocks at the front that were given back
    table: Tensor  # (B, blocks)
    block: int  # tokens in a block; 0: rows own their places


@triton.jit
def chunk_slots(blocks, j, mask, BLOCK: tl.constexpr):
    """Where the tokens j of the row are. BLOCK 0: at j."""
    slot = j.to(tl.int64)
    if BLOCK:
        slot = tl.load(blocks + j // BLOCK, mask=mask, other=0).to(tl.int64) * BLOCK + j % BLOCK
    return slot


@triton.jit(do_not_specialize=["layer", "tokens", "table_width"])
def place(
    qkv, queries, stores, held, count, pos, gone, table, cos, sin, q_gain, k_gain, layer, tokens, table_width, q_eps,
    q_offset, k_eps, k_offset, turned, H: tl.constexpr, G: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
    TOKENS: tl.constexpr, D_TILE: tl.constexpr, E_TILE: tl.constexpr, BLOCK: tl.constexpr, TURN: tl.constexpr,
    Q_NORM: tl.constexpr, K_NORM: tl.constexpr, Q_GAIN: tl.constexpr, K_GAIN: tl.constexpr, TYPE: tl.constexpr,
    INT8: tl.constexpr,
):  # fmt: skip
    """queries (B · T, H · D) turned, from qkv (B · T, queries | keys | values); keys turned and values, into the cache.
    ``tokens``: T, those of a row."""
    head, b = tl.program_id(1), tl.program_id(2)
    i = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    new = tl.load(count + b)
    if tl.program_id(0) * TOKENS >= new:
        return
    d = tl.arange(0, D_TILE)[None, :]
    inside = (i < new)[:, None] & (d < D)
    token = (b * tokens + i).to(tl.int64)[:, None]
    row = token * ((H + G) * D + G * E)
    angle = (tl.load(pos + b) + i).to(tl.int64)[:, None] * (turned * (1 + TURN // 4))
    angle = tl.where((i < new)[:, None], angle, 0)  # the tables may end before the bucket does
    size = tl.zeros((TOKENS, 1), tl.float32)
    if head < H:
        at = row + head * D
        if Q_NORM:
            raw = tl.load(qkv + at + d, mask=inside, other=0.0).to(tl.float32)
            size = tl.rsqrt(tl.sum(raw * raw, 1) / D + q_eps)[:, None]
        q = rotated(qkv, at, d, inside, cos + angle, sin + angle, q_gain, size, q_offset, D, turned, Q_NORM, Q_GAIN,
                    TURN % 4)  # fmt: skip
        tl.store(queries + token * (H * D) + head * D + d, q.to(TYPE), mask=inside)
    else:
        g = head - H
        angle += turned * (TURN // 4)
        e = tl.arange(0, E_TILE)[None, :]
        k_base, v_base, k_scales, v_scales = kept_at(stores + layer * 8, b, g, D, E, TYPE, INT8)
        blocks = blocks_of(table, gone, b, table_width, BLOCK > 0)
        slot = chunk_slots(blocks, tl.load(held + b) + i, i < new, BLOCK)[:, None]
        at = row + head * D
        if K_NORM:
            raw = tl.load(qkv + at + d, mask=inside, other=0.0).to(tl.float32)
            size = tl.rsqrt(tl.sum(raw * raw, 1) / D + k_eps)[:, None]
        k = rotated(qkv, at, d, inside, cos + angle, sin + angle, k_gain, size, k_offset, D, turned, K_NORM, K_GAIN,
                    TURN % 4).to(TYPE)  # fmt: skip
        kept = (i < new)[:, None] & (e < E)
        v = tl.load(qkv + row + (H + G) * D + g * E + e, mask=kept, other=0.0).to(TYPE)
        if INT8:
            k, k_scale = in_8_bits(k.to(tl.float32), 1)
            v, v_scale = in_8_bits(v.to(tl.float32), 1)
            tl.store(k_scales + slot, k_scale, mask=(i < new)[:, None])
            tl.store(v_scales + slot, v_scale, mask=(i < new)[:, None])
        tl.store(k_base + slot * D + d, k.to(k_base.dtype.element_ty), mask=inside)
        tl.store(v_base + slot * E + e, v.to(v_base.dtype.element_ty), mask=kept)


def chunk_constants(
    at: ChunkPlace, dtype: torch.dtype, *, heads: int, kv_heads: int, key_dim: int, value_dim: int, int8: bool
) -> dict[str, Any]:
    """What the kernels of a chunk are compiled for."""
    return {
        "H": heads, "G": kv_heads, "D": key_dim, "E": value_dim, "BLOCK": at.block, "TYPE": TYPES[dtype], "INT8": int8,
        "D_TILE": max(16, triton.next_power_of_2(key_dim)), "E_TILE": max(16, triton.next_power_of_2(value_dim)),
    }  # fmt: skip


def place_chunk(
    qkv: Tensor,
    queries: Tensor,
    stores: Tensor,
    layer: int,
    at: ChunkPlace,
    *,
    heads: int,
    kv_heads: int,
    key_dim: int,
    value_dim: int,
    int8: bool = False,
    rotation: RopeTables | None = None,
    q_norm: HeadNorm | None = None,
    k_norm: HeadNorm | None = None,
) -> None:
    """Keys and values of qkv (B · T, queries | keys | values) into the cache, and ``queries`` (B · T, heads · key_dim)
    turned. ``stores``: (layers, ADDRESS) int64, as ``decode`` has them."""
    constants = chunk_constants(
        at, qkv.dtype, heads=heads, kv_heads=kv_heads, key_dim=key_dim, value_dim=value_dim, int8=int8
    )
    chunks, nothing = len(at.held), at.held
    tokens = len(qkv) // chunks
    q_gain, q_eps, q_offset = (None, 0.0, 0.0) if q_norm is None else (q_norm.gain, q_norm.eps, q_norm.offset)
    k_gain, k_eps, k_offset = (None, 0.0, 0.0) if k_norm is None else (k_norm.gain, k_norm.eps, k_norm.offset)
    cos, sin, turned = (nothing, nothing, 0) if rotation is None else (rotation.cos, rotation.sin, rotation.turned)
    kernel: Launch = place
    kernel[(triton.cdiv(tokens, PLACED), heads + kv_heads, chunks)](
        qkv, queries, stores, at.held, at.count, at.pos, at.gone, at.table, cos, sin,
        nothing if q_gain is None else q_gain, nothing if k_gain is None else k_gain, layer, tokens,
        at.table.shape[1], q_eps, q_offset, k_eps, k_offset, turned, TOKENS=PLACED,
        TURN=NO_TURN if rotation is None else rotation.turn, Q_NORM=q_norm is not None,
        K_NORM=k_norm is not None, Q_GAIN=q_gain is not None, K_GAIN=k_gain is not None, num_warps=4, **constants,
    )  # fmt: skip
