"""Queries, keys and values of new tokens: as they are projected, normed, turned, and kept."""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor

NO_TURN, HALVES, ADJACENT = 0, 1, 2
KEYS_APART = 4  # more, where keys are turned by tables of their own


@dataclass(frozen=True)
class RopeTables:
    """RoPE by tables (positions, turned) of cosines and signed sines; ``keys_apart``: (positions, 2, turned), those of
    queries and behind them those of keys."""

    cos: Tensor
    sin: Tensor
    turned: int
    pairing: int
    keys_apart: bool = False

    @property
    def turn(self) -> int:
        """What a kernel is compiled for."""
        return self.pairing + KEYS_APART * self.keys_apart


@dataclass(frozen=True)
class HeadNorm:
    """A norm of every head's query or key."""

    gain: Tensor | None
    eps: float
    offset: float


@triton.jit
def rotated(x, at, d, inside, cos, sin, gain, size, offset, D, turned, NORM: tl.constexpr, GAIN: tl.constexpr,
            TURN: tl.constexpr):  # fmt: skip
    """x (…, DIM) at ``at``, normed by ``size`` and turned. ``d``: which dimension each is."""
    v = tl.load(x + at + d, mask=inside, other=0.0).to(tl.float32)
    if NORM:
        v *= size
        if GAIN:
            v *= offset + tl.load(gain + d, mask=d < D, other=0.0).to(tl.float32)
    if TURN:
        if TURN == 1:
            partner = tl.where(d < turned // 2, d + turned // 2, d - turned // 2)
        else:
            partner = d ^ 1
        partner = tl.where(d < turned, partner, d)
        c = tl.load(cos + d, mask=d < turned, other=1.0)
        s = tl.load(sin + d, mask=d < turned, other=0.0)
        w = tl.load(x + at + partner, mask=inside, other=0.0).to(tl.float32)
        if NORM:
            w *= size
            if GAIN:
                w *= offset + tl.load(gain + partner, mask=d < D, other=0.0).to(tl.float32)
        v = v * c + w * s
    return v


@triton.jit
def in_8_bits(x, axis: tl.constexpr):
    """Whole numbers from -127 to 127 and their scale, the largest magnitude along the axis over 127. To the nearest,
    halves to the even one, as torch rounds: adding 1.5 · 2^23 leaves no bits for anything else."""
    scale = tl.max(tl.abs(x), axis, keep_dims=True) / 127.0
    whole = tl.div_rn(x, tl.broadcast_to(tl.maximum(scale, 1.1754943508222875e-38), x.shape))
    return (whole + 12582912.0) - 12582912.0, scale


@triton.jit
def new_key(
    qkv, at, d, cos, sin, gain, eps, offset, turned, D: tl.constexpr, NORM: tl.constexpr, GAIN: tl.constexpr,
    TURN: tl.constexpr, TYPE: tl.constexpr, INT8: tl.constexpr,
):  # fmt: skip
    """A new token's key as it is seen, which is how it is kept; and, in 8 bits, its whole numbers and their scale."""
    size = 0.0
    if NORM:
        raw = tl.load(qkv + at + d, mask=d < D, other=0.0).to(tl.float32)
        size = tl.rsqrt(tl.sum(raw * raw, 0) / D + eps)
    k = rotated(qkv, at, d, d < D, cos, sin, gain, size, offset, D, turned, NORM, GAIN, TURN).to(TYPE)
    codes = 0.0
    scale = 0.0
    if INT8:
        codes, scale = in_8_bits(k.to(tl.float32), 0)
        k = (codes * scale).to(TYPE)
    return k, codes, scale


@triton.jit
def kept_vector(base, scales, slot, d, D: tl.constexpr, TYPE: tl.constexpr, INT8: tl.constexpr):
    """A token's key or value as it is seen, from the cache."""
    x = tl.load(base + slot * D + d, mask=d < D, other=0.0)
    if INT8:
        x = x.to(tl.float32) * tl.load(scales + slot)
    return x.to(TYPE)


@triton.jit
def keep_new(
    new_k, new_codes, new_k_scale, new_v, new_slot, k_base, v_base, k_scales, v_scales, d, e, D: tl.constexpr,
    E: tl.constexpr, TYPE: tl.constexpr, INT8: tl.constexpr,
):  # fmt: skip
    """Writes a new token's key and value to the cache. The value comes back as it is seen."""
    if INT8:  # what is seen is what is kept
        tl.store(k_base + new_slot * D + d, new_codes.to(tl.int8), mask=d < D)
        tl.store(k_scales + new_slot + tl.arange(0, 1), new_k_scale)
        codes, v_scale = in_8_bits(new_v.to(tl.float32), 0)
        tl.store(v_base + new_slot * E + e, codes.to(tl.int8), mask=e < E)
        tl.store(v_scales + new_slot + tl.arange(0, 1), v_scale)
        new_v = (codes * v_scale).to(TYPE)
    else:
        tl.store(k_base + new_slot * D + d, new_k, mask=d < D)
        tl.store(v_base + new_slot * E + e, new_v, mask=e < E)
    return new_v
