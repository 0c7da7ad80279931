"""The backward pass for a bias that is a product of queries and distances, without atomics: queries and keys.

One kernel owns blocks of queries (the gradients of both kinds of queries), one blocks of keys. A third owns blocks of
distances: ``distance_gradients.py``.
"""

from __future__ import annotations

import triton
import triton.language as tl

from vantage.kernels.gpu.distance_tiles import kept_slot, kept_tiles_of, line_and_delta
from vantage.kernels.gpu.skew import by_distance, by_key, product_with_distances
from vantage.kernels.gpu.tiles import block_and_heads, scaled, sees


@triton.jit
def _query_step(
    q, qr, do, far, held, k_tiles, v_tiles, r_tiles, C, kept_tiles, slot, n, t, qi, line, delta, S, W, off, origin,
    window, chunk, prefix, scale, cap, weight, ratio, dq, dqr, BLOCK: tl.constexpr, CAUSAL: tl.constexpr,
    WINDOW: tl.constexpr, CHUNK: tl.constexpr, PREFIX: tl.constexpr, SOFTCAP: tl.constexpr, OWN: tl.constexpr,
    HAS_C: tl.constexpr, KEEPS: tl.constexpr, PRECISION: tl.constexpr, APPROXIMATE: tl.constexpr,
    SHUFFLED: tl.constexpr, FULL: tl.constexpr,
):  # fmt: skip
    """One tile of keys. ``held``: what the last tile gave to its nearer block of distances; this one has the rest."""
    near = product_with_distances(qr, r_tiles, C, t, W, PRECISION, BLOCK, HAS_C)
    k = k_tiles.load([n, 0])
    x, slope = scaled(tl.dot(q, k.T, input_precision=PRECISION), scale, cap, SOFTCAP, APPROXIMATE)
    x = x + by_key(near, far, far, BLOCK, BLOCK, SHUFFLED) * weight
    p = tl.math.exp2(x - line[:, None])
    if not FULL:
        kj = n + tl.arange(0, BLOCK)
        see = sees(
            (qi + off)[:, None], kj[None, :], 0, 0, (kj < S)[None, :], origin, window, chunk, prefix,
            CAUSAL, WINDOW, CHUNK, PREFIX, False, False,
        )  # fmt: skip
        p = tl.where(see, p, 0.0)
    v = v_tiles.load([n, 0])
    ds = p * (tl.dot(do, v.T, input_precision=PRECISION) - delta[:, None])
    to_near, to_far = by_distance(ds * ratio, BLOCK, SHUFFLED)
    both = held + to_far.to(qr.dtype)  # no place has something of both
    if KEEPS:
        kept_tiles.store([slot * BLOCK, 0], both)
    if SOFTCAP:
        ds = ds * slope
    dq = tl.dot(ds.to(k.dtype), k, dq, input_precision=PRECISION)
    r = r_tiles.load([t - BLOCK, 0])
    if OWN:
        dq = tl.dot(both, r, dq, input_precision=PRECISION)
    else:
        dqr = tl.dot(both, r, dqr, input_precision=PRECISION)
    return near, to_near.to(qr.dtype), dq, dqr


@triton.jit(do_not_specialize=["first_head"])
def query_gradients(
    Q, K, V, QR, R, C, DO, LSE, DELTA, DQ, DQR, KEPT, BOUNDS, qb, qh, qt, kb, kh, kt, vb, vh, vt, rb, rh, rt, gb, gh,
    gt, db, dh, dt, eb, eh, et, wh, wt, T, S, W, blocks, first_head, heads, most, lift, off, origin, window, chunk,
    prefix, scale, cap, weight, factor, share, H: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
    F: tl.constexpr, D_TILE: tl.constexpr, E_TILE: tl.constexpr, F_TILE: tl.constexpr, BLOCK: tl.constexpr,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, CHUNK: tl.constexpr, PREFIX: tl.constexpr, SOFTCAP: tl.constexpr,
    OWN: tl.constexpr, HAS_C: tl.constexpr, KEEPS: tl.constexpr, PRECISION: tl.constexpr, APPROXIMATE: tl.constexpr,
    SHUFFLED: tl.constexpr,
):  # fmt: skip
    """DQ of one block of queries of one head, of so many ``heads`` from ``first_head`` on; DQR where the bias has
    queries of its own. ``KEEPS``: KEPT gets the scores' gradient by distance, in tiles (``_slot``)."""
    program = tl.program_id(0)
    block = blocks - 1 - program % blocks
    pair = (program // blocks).to(tl.int64)
    if KEEPS:  # of few heads: the longest of all first, or they would be waited for
        pairs = tl.num_programs(0) // blocks
        block = blocks - 1 - program // pairs
        pair = (program % pairs).to(tl.int64)
    b = pair // heads
    h = first_head + pair % heads
    at = b * H + h
    g = h // GROUP
    m0 = block * BLOCK
    q_tile = tl.make_tensor_descriptor(Q + b * qb + h * qh, [T, D], [qt, 1], [BLOCK, D_TILE])
    qr_tile = tl.make_tensor_descriptor(QR + b * rb + h * rh, [T, F], [rt, 1], [BLOCK, F_TILE])
    g_tile = tl.make_tensor_descriptor(DO + b * gb + h * gh, [T, E], [gt, 1], [BLOCK, E_TILE])
    k_tiles = tl.make_tensor_descriptor(K + b * kb + g * kh, [S, D], [kt, 1], [BLOCK, D_TILE])
    v_tiles = tl.make_tensor_descriptor(V + b * vb + g * vh, [S, E], [vt, 1], [BLOCK, E_TILE])
    r_tiles = tl.make_tensor_descriptor(R + h * wh, [W, F], [wt, 1], [BLOCK, F_TILE])
    q = q_tile.load([m0, 0])
    qr = q if OWN else qr_tile.load([m0, 0])
    do = g_tile.load([m0, 0])
    qi = m0 + tl.arange(0, BLOCK)
    line, delta = line_and_delta(LSE, DELTA, at, qi, T)
    bounds = BOUNDS + block * 4
    lo, full_lo, full_hi, hi = tl.load(bounds), tl.load(bounds + 1), tl.load(bounds + 2), tl.load(bounds + 3)
    dq = tl.zeros([BLOCK, D_TILE], tl.float32)
    dqr = dq if OWN else tl.zeros([BLOCK, F_TILE], tl.float32)
    ratio = share / factor if OWN else 1.0
    C += h * W
    held = tl.zeros([BLOCK, BLOCK], QR.dtype.element_ty)
    kept_tiles = kept_tiles_of(KEPT, pair, blocks, most, BLOCK) if KEEPS else k_tiles
    shift = lift - m0
    far = product_with_distances(qr, r_tiles, C, lo * BLOCK + shift - BLOCK, W, PRECISION, BLOCK, HAS_C)
    for n in tl.range(lo * BLOCK, full_lo * BLOCK, BLOCK):
        far, held, dq, dqr = _query_step(
            q, qr, do, far, held, k_tiles, v_tiles, r_tiles, C, kept_tiles, kept_slot(block, blocks, most, n // BLOCK),
            n, n + shift, qi, line, delta, S, W, off, origin, window, chunk, prefix, scale, cap, weight, ratio, dq, dqr,
            BLOCK, CAUSAL, WINDOW, CHUNK, PREFIX, SOFTCAP, OWN, HAS_C, KEEPS, PRECISION, APPROXIMATE, SHUFFLED, False,
        )  # fmt: skip
    for n in tl.range(full_lo * BLOCK, full_hi * BLOCK, BLOCK):
        far, held, dq, dqr = _query_step(
            q, qr, do, far, held, k_tiles, v_tiles, r_tiles, C, kept_tiles, kept_slot(block, blocks, most, n // BLOCK),
            n, n + shift, qi, line, delta, S, W, off, origin, window, chunk, prefix, scale, cap, weight, ratio, dq, dqr,
            BLOCK, CAUSAL, WINDOW, CHUNK, PREFIX, SOFTCAP, OWN, HAS_C, KEEPS, PRECISION, APPROXIMATE, SHUFFLED, True,
        )  # fmt: skip
    for n in tl.range(full_hi * BLOCK, hi * BLOCK, BLOCK):
        far, held, dq, dqr = _query_step(
            q, qr, do, far, held, k_tiles, v_tiles, r_tiles, C, kept_tiles, kept_slot(block, blocks, most, n // BLOCK),
            n, n + shift, qi, line, delta, S, W, off, origin, window, chunk, prefix, scale, cap, weight, ratio, dq, dqr,
            BLOCK, CAUSAL, WINDOW, CHUNK, PREFIX, SOFTCAP, OWN, HAS_C, KEEPS, PRECISION, APPROXIMATE, SHUFFLED, False,
        )  # fmt: skip
    last = r_tiles.load([hi * BLOCK + shift - BLOCK, 0])
    if KEEPS:
        kept_tiles.store([kept_slot(block, blocks, most, hi) * BLOCK, 0], held)
    if OWN:
        dq = tl.dot(held, last, dq, input_precision=PRECISION)
    else:
        dqr = tl.dot(held, last, dqr, input_precision=PRECISION)
    inside = (qi < T)[:, None]
    row = qi.to(tl.int64)[:, None]
    c = tl.arange(0, D_TILE)[None, :]
    tl.store(DQ + b * db + h * dh + row * dt + c, (dq * factor).to(DQ.dtype.element_ty), mask=inside & (c < D))
    if not OWN:
        c = tl.arange(0, F_TILE)[None, :]
        tl.store(DQR + b * eb + h * eh + row * et + c, (dqr * share).to(DQR.dtype.element_ty), mask=inside & (c < F))


@triton.jit
def _key_step(
    k, v, q_tiles, g_tiles, qr_tiles, r_tiles, C, m0, t, kj, LSE, DELTA, at, T, S, W, off, origin, window, chunk,
    prefix, scale, cap, weight, dk, dv, BLOCK: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr,
    CHUNK: tl.constexpr, PREFIX: tl.constexpr, SOFTCAP: tl.constexpr, OWN: tl.constexpr, HAS_C: tl.constexpr,
    PRECISION: tl.constexpr, APPROXIMATE: tl.constexpr, SHUFFLED: tl.constexpr, FULL: tl.constexpr,
):  # fmt: skip
    """One tile of queries, for the gradients of keys and values."""
    qi = m0 + tl.arange(0, BLOCK)
    line, delta = line_and_delta(LSE, DELTA, at, qi, T)
    q = q_tiles.load([m0, 0])
    qr = q if OWN else qr_tiles.load([m0, 0])
    near = product_with_distances(qr, r_tiles, C, t, W, PRECISION, BLOCK, HAS_C)
    far = product_with_distances(qr, r_tiles, C, t - BLOCK, W, PRECISION, BLOCK, HAS_C)
    x, slope = scaled(tl.dot(q, k.T, input_precision=PRECISION), scale, cap, SOFTCAP, APPROXIMATE)
    x = x + by_key(near, far, far, BLOCK, BLOCK, SHUFFLED) * weight
    p = tl.math.exp2(x - line[:, None])
    if not FULL:
        see = sees(
            (qi + off)[:, None], kj[None, :], 0, 0, (kj < S)[None, :], origin, window, chunk, prefix,
            CAUSAL, WINDOW, CHUNK, PREFIX, False, False,
        )  # fmt: skip
        p = tl.where(see, p, 0.0)
    do = g_tiles.load([m0, 0])
    dv = tl.dot(p.to(do.dtype).T, do, dv, input_precision=PRECISION)
    ds = p * (tl.dot(do, v.T, input_precision=PRECISION) - delta[:, None])
    if SOFTCAP:
        ds = ds * slope
    dk = tl.dot(ds.to(q.dtype).T, q, dk, input_precision=PRECISION)
    return dk, dv


@triton.jit
def key_gradients(
    Q, K, V, QR, R, C, DO, LSE, DELTA, DK, DV, BOUNDS, qb, qh, qt, kb, kh, kt, vb, vh, vt, rb, rh, rt, gb, gh, gt, xb,
    xh, xt, yb, yh, yt, wh, wt, T, S, W, blocks, lift, off, origin, window, chunk, prefix, scale, cap, weight, factor,
    H: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, E: tl.constexpr, F: tl.constexpr, D_TILE: tl.constexpr,
    E_TILE: tl.constexpr, F_TILE: tl.constexpr, BLOCK: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr,
    CHUNK: tl.constexpr, PREFIX: tl.constexpr, SOFTCAP: tl.constexpr, OWN: tl.constexpr, HAS_C: tl.constexpr,
    PRECISION: tl.constexpr, APPROXIMATE: tl.constexpr, SHUFFLED: tl.constexpr, TOGETHER: tl.constexpr,
):  # fmt: skip
    """DK and DV of one block of keys, summed over the heads that share them."""
    G: tl.constexpr = H // GROUP
    block, pair = block_and_heads(blocks, TOGETHER)
    b = pair // G
    g = pair % G
    n0 = block * BLOCK
    kj = n0 + tl.arange(0, BLOCK)
    k_tile = tl.make_tensor_descriptor(K + b * kb + g * kh, [S, D], [kt, 1], [BLOCK, D_TILE])
    v_tile = tl.make_tensor_descriptor(V + b * vb + g * vh, [S, E], [vt, 1], [BLOCK, E_TILE])
    k = k_tile.load([n0, 0])
    v = v_tile.load([n0, 0])
    bounds = BOUNDS + block * 4
    lo, full_lo, full_hi, hi = tl.load(bounds), tl.load(bounds + 1), tl.load(bounds + 2), tl.load(bounds + 3)
    dk = tl.zeros([BLOCK, D_TILE], tl.float32)
    dv = tl.zeros([BLOCK, E_TILE], tl.float32)
    shift = lift + n0
    for i in range(GROUP):
        h = g * GROUP + i
        at = b * H + h
        q_tiles = tl.make_tensor_descriptor(Q + b * qb + h * qh, [T, D], [qt, 1], [BLOCK, D_TILE])
        qr_tiles = tl.make_tensor_descriptor(QR + b * rb + h * rh, [T, F], [rt, 1], [BLOCK, F_TILE])
        g_tiles = tl.make_tensor_descriptor(DO + b * gb + h * gh, [T, E], [gt, 1], [BLOCK, E_TILE])
        r_tiles = tl.make_tensor_descriptor(R + h * wh, [W, F], [wt, 1], [BLOCK, F_TILE])
        for m0 in tl.range(lo * BLOCK, full_lo * BLOCK, BLOCK):
            dk, dv = _key_step(
                k, v, q_tiles, g_tiles, qr_tiles, r_tiles, C + h * W, m0, shift - m0, kj, LSE, DELTA, at, T, S, W, off,
                origin, window, chunk, prefix, scale, cap, weight, dk, dv, BLOCK, CAUSAL, WINDOW, CHUNK, PREFIX,
                SOFTCAP, OWN, HAS_C, PRECISION, APPROXIMATE, SHUFFLED, False,
            )  # fmt: skip
        for m0 in tl.range(full_lo * BLOCK, full_hi * BLOCK, BLOCK):
            dk, dv = _key_step(
                k, v, q_tiles, g_tiles, qr_tiles, r_tiles, C + h * W, m0, shift - m0, kj, LSE, DELTA, at, T, S, W, off,
                origin, window, chunk, prefix, scale, cap, weight, dk, dv, BLOCK, CAUSAL, WINDOW, CHUNK, PREFIX,
                SOFTCAP, OWN, HAS_C, PRECISION, APPROXIMATE, SHUFFLED, True,
            )  # fmt: skip
        for m0 in tl.range(full_hi * BLOCK, hi * BLOCK, BLOCK):
            dk, dv = _key_step(
                k, v, q_tiles, g_tiles, qr_tiles, r_tiles, C + h * W, m0, shift - m0, kj, LSE, DELTA, at, T, S, W, off,
                origin, window, chunk, prefix, scale, cap, weight, dk, dv, BLOCK, CAUSAL, WINDOW, CHUNK, PREFIX,
                SOFTCAP, OWN, HAS_C, PRECISION, APPROXIMATE, SHUFFLED, False,
            )  # fmt: skip
    inside = (kj < S)[:, None]
    row = kj.to(tl.int64)[:, None]
    c = tl.arange(0, D_TILE)[None, :]
    tl.store(DK + b * xb + g * xh + row * xt + c, (dk * factor).to(DK.dtype.element_ty), mask=inside & (c < D))
    c = tl.arange(0, E_TILE)[None, :]
    tl.store(DV + b * yb + g * yh + row * yt + c, dv.to(DV.dtype.element_ty), mask=inside & (c < E))
