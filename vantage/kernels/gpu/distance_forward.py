"""The forward pass for a bias that is a product of its own: a vector of the query with one of the distance.

Where places run on, a tile of queries and keys meets two blocks of distances, and the next tile meets the second of
them again: one more product for each tile, whose rows are then turned into place (skew.py).
"""

from __future__ import annotations

import triton
import triton.language as tl

from vantage.kernels.gpu.skew import by_key, product_with_distances
from vantage.kernels.gpu.tiles import LN2, LOG2E, block_and_heads, scaled, sees


@triton.jit
def _step(
    q, qr, far, farther, k_tiles, v_tiles, r_tiles, C, n, t, qi, S, W, off, origin, window, chunk, prefix, scale, cap,
    weight, acc, m, total, ROWS: tl.constexpr, BLOCK: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr,
    CHUNK: tl.constexpr, PREFIX: tl.constexpr, SOFTCAP: tl.constexpr, HAS_C: tl.constexpr, PRECISION: tl.constexpr,
    APPROXIMATE: tl.constexpr, SHUFFLED: tl.constexpr, FULL: tl.constexpr,
):  # fmt: skip
    """One tile of keys. The product with the nearer block of distances goes out: the next tile's farther one."""
    near = product_with_distances(qr, r_tiles, C, t, W, PRECISION, BLOCK, HAS_C)
    s = tl.dot(q, k_tiles.load([n, 0]).T, input_precision=PRECISION)
    s, _ = scaled(s, scale, cap, SOFTCAP, APPROXIMATE)
    s = s + by_key(near, far, farther, ROWS, BLOCK, SHUFFLED) * weight
    if not FULL:
        kj = n + tl.arange(0, BLOCK)
        see = sees(
            (qi + off)[:, None], kj[None, :], 0, 0, (kj < S)[None, :], origin, window, chunk, prefix,
            CAUSAL, WINDOW, CHUNK, PREFIX, False, False,
        )  # fmt: skip
        s = tl.where(see, s, float("-inf"))
    top = tl.maximum(m, tl.max(s, 1))
    pivot = top if FULL else tl.where(top == float("-inf"), 0.0, top)  # a row that has seen nothing yet
    p = tl.math.exp2(s - pivot[:, None])
    shrink = tl.math.exp2(m - pivot)
    total = total * shrink + tl.sum(p, 1)
    v = v_tiles.load([n, 0])
    acc = tl.dot(p.to(v.dtype), v, acc * shrink[:, None], input_precision=PRECISION)
    if ROWS > BLOCK:  # not as it came: a value that only goes round is not fetched for ahead of time
        farther = tl.where((tl.arange(0, ROWS) >= BLOCK)[:, None], far, 0.0)
    return near, farther, acc, top, total


@triton.jit
def _ranges(BOUNDS, m0, T, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Which tiles of keys to visit: what BOUNDS has for blocks as large as tiles, for all blocks of these rows."""
    bounds = BOUNDS + m0 // BLOCK * 4
    lo, full_lo, full_hi, hi = tl.load(bounds), tl.load(bounds + 1), tl.load(bounds + 2), tl.load(bounds + 3)
    if ROWS > BLOCK:
        bounds += tl.where(m0 + BLOCK < T, 4, 0)
        lo = tl.minimum(lo, tl.load(bounds))
        full_lo = tl.maximum(full_lo, tl.load(bounds + 1))
        full_hi = tl.minimum(full_hi, tl.load(bounds + 2))
        hi = tl.maximum(hi, tl.load(bounds + 3))
        none = full_hi <= full_lo
        full_lo = tl.where(none, lo, full_lo)
        full_hi = tl.where(none, lo, full_hi)
    return lo, full_lo, full_hi, hi


@triton.jit
def attend_by_distance(
    Q, K, V, QR, R, C, OUT, LSE, SINKS, BOUNDS, qb, qh, qt, kb, kh, kt, vb, vh, vt, rb, rh, rt, ob, oh, ot, sb, sh, st,
    wh, wt, T, S, W, blocks, lift, off, origin, window, chunk, prefix, scale, cap, weight, H: tl.constexpr,
    GROUP: tl.constexpr, D: tl.constexpr, E: tl.constexpr, F: tl.constexpr, D_TILE: tl.constexpr, E_TILE: tl.constexpr,
    F_TILE: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr,
    CHUNK: tl.constexpr, PREFIX: tl.constexpr, SOFTCAP: tl.constexpr, OWN: tl.constexpr, HAS_C: tl.constexpr,
    HAS_SINKS: tl.constexpr, PRECISION: tl.constexpr, APPROXIMATE: tl.constexpr, SHUFFLED: tl.constexpr,
    TOGETHER: tl.constexpr,
):  # fmt: skip
    """One block of queries of one head. R (H, W, F): vectors of falling distances; ``lift``: the row of the distance
    off. ``OWN``: the bias has the attention's queries, and C (H, W) beside the product; else queries of its own, QR."""
    block, at = block_and_heads(blocks, TOGETHER)
    block = blocks - 1 - block  # the longest rows first
    b = at // H
    h = at % H
    g = h // GROUP
    m0 = block * ROWS
    q_tile = tl.make_tensor_descriptor(Q + b * qb + h * qh, [T, D], [qt, 1], [ROWS, D_TILE])
    C += h * W
    qr_tile = tl.make_tensor_descriptor(QR + b * rb + h * rh, [T, F], [rt, 1], [ROWS, F_TILE])
    k_tiles = tl.make_tensor_descriptor(K + b * kb + g * kh, [S, D], [kt, 1], [BLOCK, D_TILE])
    v_tiles = tl.make_tensor_descriptor(V + b * vb + g * vh, [S, E], [vt, 1], [BLOCK, E_TILE])
    r_tiles = tl.make_tensor_descriptor(R + h * wh, [W, F], [wt, 1], [BLOCK, F_TILE])
    q = q_tile.load([m0, 0])
    qr = q if OWN else qr_tile.load([m0, 0])
    qi = m0 + tl.arange(0, ROWS)
    lo, full_lo, full_hi, hi = _ranges(BOUNDS, m0, T, ROWS, BLOCK)
    acc = tl.zeros([ROWS, E_TILE], tl.float32)
    m = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    shift = lift - m0
    before = lo * BLOCK + shift - BLOCK
    far = product_with_distances(qr, r_tiles, C, before, W, PRECISION, BLOCK, HAS_C)
    farther = far
    if ROWS > BLOCK:
        farther = product_with_distances(qr, r_tiles, C, before - BLOCK, W, PRECISION, BLOCK, HAS_C)
    for n in tl.range(lo * BLOCK, full_lo * BLOCK, BLOCK):
        far, farther, acc, m, total = _step(
            q, qr, far, farther, k_tiles, v_tiles, r_tiles, C, n, n + shift, qi, S, W, off, origin, window, chunk,
            prefix, scale, cap, weight, acc, m, total, ROWS, BLOCK, CAUSAL, WINDOW, CHUNK, PREFIX, SOFTCAP, HAS_C,
            PRECISION, APPROXIMATE, SHUFFLED, False,
        )  # fmt: skip
    for n in tl.range(full_lo * BLOCK, full_hi * BLOCK, BLOCK):
        far, farther, acc, m, total = _step(
            q, qr, far, farther, k_tiles, v_tiles, r_tiles, C, n, n + shift, qi, S, W, off, origin, window, chunk,
            prefix, scale, cap, weight, acc, m, total, ROWS, BLOCK, CAUSAL, WINDOW, CHUNK, PREFIX, SOFTCAP, HAS_C,
            PRECISION, APPROXIMATE, SHUFFLED, True,
        )  # fmt: skip
    for n in tl.range(full_hi * BLOCK, hi * BLOCK, BLOCK):
        far, farther, acc, m, total = _step(
            q, qr, far, farther, k_tiles, v_tiles, r_tiles, C, n, n + shift, qi, S, W, off, origin, window, chunk,
            prefix, scale, cap, weight, acc, m, total, ROWS, BLOCK, CAUSAL, WINDOW, CHUNK, PREFIX, SOFTCAP, HAS_C,
            PRECISION, APPROXIMATE, SHUFFLED, False,
        )  # fmt: skip
    inside = qi < T
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
    out = OUT + b * ob + h * oh + qi.to(tl.int64)[:, None] * ot + c[None, :]
    tl.store(out, acc.to(OUT.dtype.element_ty), mask=inside[:, None] & (c < E)[None, :])
