"""The forward pass for a bias that counts keys: from the newest key back, and without a bias behind the last count."""

from __future__ import annotations

import triton
import triton.language as tl

from vantage.kernels.gpu.count_tiles import by_count, first_column, gates_of, sums_of_later, triangle
from vantage.kernels.gpu.forward import attend_tile
from vantage.kernels.gpu.tiles import LN2, LOG2E, scaled


@triton.jit
def _counted_tile(
    q, k_tiles, v_tiles, ones, n, qi, BY, row, last, carry, S, P, off, origin, window, chunk, scale, cap, gate, weight,
    acc, m, total, BLOCK: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr, CHUNK: tl.constexpr,
    SOFTCAP: tl.constexpr, PRECISION: tl.constexpr, APPROXIMATE: tl.constexpr,
):  # fmt: skip
    """One tile of keys, with their counts."""
    kj = n + tl.arange(0, BLOCK)
    s = tl.dot(q, k_tiles.load([n, 0]).T, input_precision=PRECISION)
    gates, see = gates_of(s, qi, kj, S, off, origin, window, chunk, gate, CAUSAL, WINDOW, CHUNK)
    count = carry[:, None] + sums_of_later(gates, ones, PRECISION)
    bias, _, _, _ = by_count(count, BY, row[:, None], P, APPROXIMATE)
    s, _ = scaled(s, scale, cap, SOFTCAP, APPROXIMATE)
    s = tl.where(see, s + (bias - last[:, None]) * weight, float("-inf"))
    top = tl.maximum(m, tl.max(s, 1))
    pivot = tl.where(top == float("-inf"), 0.0, top)  # a row that has seen nothing yet
    p = tl.math.exp2(s - pivot[:, None])
    shrink = tl.math.exp2(m - pivot)
    v = v_tiles.load([n, 0])
    acc = tl.dot(p.to(v.dtype), v, acc * shrink[:, None], input_precision=PRECISION)
    return acc, top, total * shrink + tl.sum(p, 1), first_column(count, BLOCK)


@triton.jit
def attend_by_count(
    Q, K, V, BY, OUT, LSE, SINKS, BOUNDS, qb, qh, qt, kb, kh, kt, vb, vh, vt, cb, ch, ct, ob, oh, ot, sb, sh, st, T, S,
    P, blocks, off, origin, window, chunk, scale, cap, gate, weight, H: tl.constexpr, GROUP: tl.constexpr,
    D: tl.constexpr, E: tl.constexpr, D_TILE: tl.constexpr, E_TILE: tl.constexpr, BLOCK: tl.constexpr,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, CHUNK: tl.constexpr, SOFTCAP: tl.constexpr, HAS_SINKS: tl.constexpr,
    PRECISION: tl.constexpr, APPROXIMATE: tl.constexpr,
):  # fmt: skip
    """One block of queries of one head. BY (B, H, T, P): what each query has for each count."""
    block = blocks - 1 - tl.program_id(0) % blocks  # the longest rows first
    at = (tl.program_id(0) // blocks).to(tl.int64)
    b = at // H
    h = (at % H).to(tl.int32)
    g = (h // GROUP).to(tl.int64)
    m0 = block * BLOCK
    q_tile = tl.make_tensor_descriptor(Q + b * qb + h.to(tl.int64) * qh, [T, D], [qt, 1], [BLOCK, D_TILE])
    k_tiles = tl.make_tensor_descriptor(K + b * kb + g * kh, [S, D], [kt, 1], [BLOCK, D_TILE])
    v_tiles = tl.make_tensor_descriptor(V + b * vb + g * vh, [S, E], [vt, 1], [BLOCK, E_TILE])
    q = q_tile.load([m0, 0])
    qi = m0 + tl.arange(0, BLOCK)
    inside = qi < T
    bounds = BOUNDS + block * 4
    lo, full_lo, full_hi, hi = tl.load(bounds), tl.load(bounds + 1), tl.load(bounds + 2), tl.load(bounds + 3)
    BY += b * cb + h.to(tl.int64) * ch + (at * 0 + m0) * ct
    row = (tl.minimum(qi, T - 1) - m0) * ct
    last = tl.load(BY + row + P - 1).to(tl.float32)
    ones = triangle(Q, BLOCK, True)
    acc = tl.zeros([BLOCK, E_TILE], tl.float32)
    m = tl.full([BLOCK], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    carry = tl.where(inside, 0.0, P + 0.0)
    while (hi > lo) & (tl.min(carry) < P - 1):
        hi -= 1
        acc, m, total, carry = _counted_tile(
            q, k_tiles, v_tiles, ones, hi * BLOCK, qi, BY, row, last, carry, S, P, off, origin, window, chunk, scale,
            cap, gate, weight, acc, m, total, BLOCK, CAUSAL, WINDOW, CHUNK, SOFTCAP, PRECISION, APPROXIMATE,
        )  # fmt: skip
    full_lo = tl.minimum(full_lo, hi)
    full_hi = tl.minimum(full_hi, hi)
    qo = qi + off
    for n in tl.range(lo * BLOCK, full_lo * BLOCK, BLOCK):
        acc, m, total = attend_tile(
            q, k_tiles, v_tiles, qi, n, m0, qi, qo, qo, qi * 0, 0, last, BOUNDS, 0, 1, at, h, BY, BY, T, S, off, 0, 0,
            0, origin, window, chunk, 0, scale, cap, acc, m, total, BLOCK, 0, False, True, False, CAUSAL, WINDOW, CHUNK,
            False, False, False, False, SOFTCAP, PRECISION, APPROXIMATE, False, False, False,
        )  # fmt: skip
    for n in tl.range(full_lo * BLOCK, full_hi * BLOCK, BLOCK):
        acc, m, total = attend_tile(
            q, k_tiles, v_tiles, qi, n, m0, qi, qo, qo, qi * 0, 0, last, BOUNDS, 0, 1, at, h, BY, BY, T, S, off, 0, 0,
            0, origin, window, chunk, 0, scale, cap, acc, m, total, BLOCK, 0, False, True, False, CAUSAL, WINDOW, CHUNK,
            False, False, False, False, SOFTCAP, PRECISION, APPROXIMATE, True, False, True,
        )  # fmt: skip
    for n in tl.range(full_hi * BLOCK, hi * BLOCK, BLOCK):
        acc, m, total = attend_tile(
            q, k_tiles, v_tiles, qi, n, m0, qi, qo, qo, qi * 0, 0, last, BOUNDS, 0, 1, at, h, BY, BY, T, S, off, 0, 0,
            0, origin, window, chunk, 0, scale, cap, acc, m, total, BLOCK, 0, False, True, False, CAUSAL, WINDOW, CHUNK,
            False, False, False, False, SOFTCAP, PRECISION, APPROXIMATE, False, False, False,
        )  # fmt: skip
    m = m + last * weight
    if HAS_SINKS:
        sink = tl.load(SINKS + b * sb + h * sh + qi.to(tl.int64) * st, mask=inside, other=0.0).to(tl.float32) * LOG2E
        top = tl.maximum(m, sink)
        shrink = tl.math.exp2(m - top)
        total = total * shrink + tl.math.exp2(sink - top)
        acc = acc * shrink[:, None]
        m = top
    lse = tl.where(total > 0, (m + tl.math.log2(tl.where(total > 0, total, 1.0))) * LN2, float("-inf"))
    acc = acc / tl.where(total > 0, total, 1.0)[:, None]
    tl.store(LSE + at * T + qi, lse, mask=inside)
    c = tl.arange(0, E_TILE)
    out = OUT + b * ob + h.to(tl.int64) * oh + qi.to(tl.int64)[:, None] * ot + c[None, :]
    tl.store(out, acc.to(OUT.dtype.element_ty), mask=inside[:, None] & (c < E)[None, :])
