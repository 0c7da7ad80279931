"""The backward pass for a bias that is a product of queries and distances, without atomics, in three kernels.

One owns blocks of queries (the gradients of both kinds of queries), one blocks of keys, one blocks of distances.
"""

from __future__ import annotations

import triton
import triton.language as tl

from vantage.kernels.gpu.skew import by_distance, by_key, by_one_distance_block, on_diagonal, product_with_distances
from vantage.kernels.gpu.tiles import LOG2E, scaled, sees


@triton.jit
def _line(LSE, DELTA, at, qi, T):
    """What rows' scores are measured from, and output times gradient."""
    line = tl.load(LSE + at * T + qi, mask=qi < T, other=float("inf"))
    delta = tl.load(DELTA + at * T + qi, mask=qi < T, other=0.0)
    return tl.where(line == float("-inf"), float("inf"), line) * LOG2E, delta


@triton.jit
def _slot(block, blocks, most, n):
    """Where a block of queries keeps what its tile of keys n gives to the farther of its two blocks of distances. Later
    blocks have one tile more each, up to ``most``; a block and the one that is as far from the other end share a row of
    memory, and begin at its two ends."""
    row = tl.minimum(block, blocks - 1 - block)
    length = 2 * most - blocks + 1
    return row * length + tl.where(block >= blocks - 1 - block, n, length - 1 - n)


@triton.jit
def _kept_tiles(KEPT, pair, blocks, most, BLOCK: tl.constexpr):
    """Those of one row and head."""
    tiles = (blocks + 1) // 2 * (2 * most - blocks + 1)
    first = KEPT + pair * tiles * (BLOCK * BLOCK)
    return tl.make_tensor_descriptor(first, [tiles * BLOCK, BLOCK], [BLOCK, 1], [BLOCK, BLOCK])


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
    line, delta = _line(LSE, DELTA, at, qi, T)
    bounds = BOUNDS + block * 4
    lo, full_lo, full_hi, hi = tl.load(bounds), tl.load(bounds + 1), tl.load(bounds + 2), tl.load(bounds + 3)
    dq = tl.zeros([BLOCK, D_TILE], tl.float32)
    dqr = dq if OWN else tl.zeros([BLOCK, F_TILE], tl.float32)
    ratio = share / factor if OWN else 1.0
    C += h * W
    held = tl.zeros([BLOCK, BLOCK], QR.dtype.element_ty)
    kept_tiles = _kept_tiles(KEPT, pair, blocks, most, BLOCK) if KEEPS else k_tiles
    shift = lift - m0
    far = product_with_distances(qr, r_tiles, C, lo * BLOCK + shift - BLOCK, W, PRECISION, BLOCK, HAS_C)
    for n in tl.range(lo * BLOCK, full_lo * BLOCK, BLOCK):
        far, held, dq, dqr = _query_step(
            q, qr, do, far, held, k_tiles, v_tiles, r_tiles, C, kept_tiles, _slot(block, blocks, most, n // BLOCK),
            n, n + shift, qi, line, delta, S, W, off, origin, window, chunk, prefix, scale, cap, weight, ratio, dq, dqr,
            BLOCK, CAUSAL, WINDOW, CHUNK, PREFIX, SOFTCAP, OWN, HAS_C, KEEPS, PRECISION, APPROXIMATE, SHUFFLED, False,
        )  # fmt: skip
    for n in tl.range(full_lo * BLOCK, full_hi * BLOCK, BLOCK):
        far, held, dq, dqr = _query_step(
            q, qr, do, far, held, k_tiles, v_tiles, r_tiles, C, kept_tiles, _slot(block, blocks, most, n // BLOCK),
            n, n + shift, qi, line, delta, S, W, off, origin, window, chunk, prefix, scale, cap, weight, ratio, dq, dqr,
            BLOCK, CAUSAL, WINDOW, CHUNK, PREFIX, SOFTCAP, OWN, HAS_C, KEEPS, PRECISION, APPROXIMATE, SHUFFLED, True,
        )  # fmt: skip
    for n in tl.range(full_hi * BLOCK, hi * BLOCK, BLOCK):
        far, held, dq, dqr = _query_step(
            q, qr, do, far, held, k_tiles, v_tiles, r_tiles, C, kept_tiles, _slot(block, blocks, most, n // BLOCK),
            n, n + shift, qi, line, delta, S, W, off, origin, window, chunk, prefix, scale, cap, weight, ratio, dq, dqr,
            BLOCK, CAUSAL, WINDOW, CHUNK, PREFIX, SOFTCAP, OWN, HAS_C, KEEPS, PRECISION, APPROXIMATE, SHUFFLED, False,
        )  # fmt: skip
    last = r_tiles.load([hi * BLOCK + shift - BLOCK, 0])
    if KEEPS:
        kept_tiles.store([_slot(block, blocks, most, hi) * BLOCK, 0], held)
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
    line, delta = _line(LSE, DELTA, at, qi, T)
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
    PRECISION: tl.constexpr,
    APPROXIMATE: tl.constexpr, SHUFFLED: tl.constexpr,
):  # fmt: skip
    """DK and DV of one block of keys, summed over the heads that share them."""
    G: tl.constexpr = H // GROUP
    block = tl.program_id(0) % blocks
    pair = (tl.program_id(0) // blocks).to(tl.int64)
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


@triton.jit
def _distance_step(
    r, beside, q_tiles, qr_tiles, g_tiles, k_tiles, v_tiles, m0, n, LSE, DELTA, at, T, S, off, origin, window, chunk,
    prefix, scale, cap, weight, dr, dc, BLOCK: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr,
    CHUNK: tl.constexpr, PREFIX: tl.constexpr, SOFTCAP: tl.constexpr, OWN: tl.constexpr, HAS_C: tl.constexpr,
    PRECISION: tl.constexpr, APPROXIMATE: tl.constexpr, SHUFFLED: tl.constexpr, FULL: tl.constexpr,
):  # fmt: skip
    """One block of queries. The later keys of tile n and the earlier ones of the next stand at these distances."""
    qi = m0 + tl.arange(0, BLOCK)
    line, delta = _line(LSE, DELTA, at, qi, T)
    q = q_tiles.load([m0, 0])
    qr = q if OWN else qr_tiles.load([m0, 0])
    do = g_tiles.load([m0, 0])
    both = tl.dot(qr, r.T, input_precision=PRECISION)
    if HAS_C:
        both = both + beside[None, :]
    here = tl.dot(q, k_tiles.load([n, 0]).T, input_precision=PRECISION)
    later = tl.dot(q, k_tiles.load([n + BLOCK, 0]).T, input_precision=PRECISION)
    x, _ = scaled(on_diagonal(here, later, BLOCK, SHUFFLED), scale, cap, SOFTCAP, APPROXIMATE)
    x = x + by_key(both, both, both, BLOCK, BLOCK, SHUFFLED) * weight
    p = tl.math.exp2(x - line[:, None])
    if not FULL:
        a = tl.arange(0, BLOCK)[:, None]
        c = tl.arange(0, BLOCK)[None, :]
        kj = n + c + tl.where(c >= a, 0, BLOCK)
        see = sees(
            (qi + off)[:, None], kj, 0, 0, (kj >= 0) & (kj < S), origin, window, chunk, prefix,
            CAUSAL, WINDOW, CHUNK, PREFIX, False, False,
        )  # fmt: skip
        p = tl.where(see, p, 0.0)
    here = tl.dot(do, v_tiles.load([n, 0]).T, input_precision=PRECISION)
    later = tl.dot(do, v_tiles.load([n + BLOCK, 0]).T, input_precision=PRECISION)
    ds = p * (on_diagonal(here, later, BLOCK, SHUFFLED) - delta[:, None])
    turned = by_one_distance_block(ds, BLOCK, SHUFFLED)
    if HAS_C:
        dc += turned  # added up over queries at the end: between threads and warps that takes as long as a product
    dr = tl.dot(turned.to(qr.dtype).T, qr, dr, input_precision=PRECISION)
    return dr, dc


@triton.jit
def _store_distances(
    DR, DC, OFFSET, dr, dc, h, t, xh, xt, W, F: tl.constexpr, F_TILE: tl.constexpr, HAS_C: tl.constexpr
):
    """A block of DR and, where queries have an offset, of DC (H, W): what each distance gets beside its product, added
    up over queries. The offset's part of DR goes in here, so that no second tensor as large is ever made."""
    f = tl.arange(0, F_TILE)
    if HAS_C:
        beside = tl.sum(dc, 0)
        tl.store(DC + h * W + t, beside, mask=t < W)
        dr += beside[:, None] * tl.load(OFFSET + h * F + f, mask=f < F, other=0.0)[None, :]
    where = DR + h * xh + t.to(tl.int64)[:, None] * xt + f[None, :]
    tl.store(where, dr.to(DR.dtype.element_ty), mask=(t < W)[:, None] & (f < F)[None, :])


@triton.jit
def products_with_offset(R, OFFSET, C, wh, wt, W, F: tl.constexpr, F_TILE: tl.constexpr, BLOCK: tl.constexpr):
    """C (H, W): each vector of a distance times its head's offset."""
    h = tl.program_id(1).to(tl.int64)
    t = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    f = tl.arange(0, F_TILE)
    inside = (t < W)[:, None] & (f < F)[None, :]
    r = tl.load(R + h * wh + t.to(tl.int64)[:, None] * wt + f[None, :], mask=inside, other=0.0).to(tl.float32)
    offset = tl.load(OFFSET + h * F + f, mask=f < F, other=0.0)
    tl.store(C + h * W + t, tl.sum(r * offset[None, :], 1), mask=t < W)


@triton.jit
def distance_gradients(
    Q, K, V, QR, R, C, DO, LSE, DELTA, DR, DC, OFFSET, qb, qh, qt, kb, kh, kt, vb, vh, vt, rb, rh, rt, gb, gh, gt, wh,
    wt, xh, xt, batch, T, S, W, blocks, lift, off, origin, window, chunk, prefix, scale, cap, weight, share,
    H: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, E: tl.constexpr, F: tl.constexpr, D_TILE: tl.constexpr,
    E_TILE: tl.constexpr, F_TILE: tl.constexpr, BLOCK: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr,
    CHUNK: tl.constexpr, PREFIX: tl.constexpr, SOFTCAP: tl.constexpr, OWN: tl.constexpr, HAS_C: tl.constexpr,
    PRECISION: tl.constexpr, APPROXIMATE: tl.constexpr, SHUFFLED: tl.constexpr,
):  # fmt: skip
    """DR and DC of one block of distances of one head, over all rows of the batch.

    Two tiles of keys hold as many keys at these distances as one tile has: two products each, but all the rest once.
    """
    block = blocks - 1 - tl.program_id(0) % blocks  # the nearest distances, which most queries have, first
    h = (tl.program_id(0) // blocks).to(tl.int64)
    g = h // GROUP
    t0 = block * BLOCK
    t = t0 + tl.arange(0, BLOCK)
    r_tile = tl.make_tensor_descriptor(R + h * wh, [W, F], [wt, 1], [BLOCK, F_TILE])
    r = r_tile.load([t0, 0])
    beside = tl.zeros([BLOCK], tl.float32)
    if HAS_C:
        beside = tl.load(C + h * W + t, mask=t < W, other=0.0)
    behind = lift - t0  # how far the tile of a block of queries lies before it
    first = tl.maximum(behind - BLOCK, 0)  # before it no query has a key at these distances
    end = tl.minimum(T, S + behind)
    full_first = tl.maximum(behind, 0)
    full_end = tl.minimum(T, S + behind - BLOCK) // BLOCK * BLOCK
    furthest = behind + off
    full = full_end > full_first
    if CAUSAL:
        full = full & (furthest >= BLOCK - 1)
    if WINDOW:
        full = full & (furthest < window) & (BLOCK - 1 - furthest < window)
    if CHUNK:
        full = full & (chunk < 0)
    full_first = tl.where(full, full_first, first)
    full_end = tl.where(full, full_end, first)
    dr = tl.zeros([BLOCK, F_TILE], tl.float32)
    dc = tl.zeros([BLOCK, BLOCK], tl.float32) if HAS_C else tl.zeros([BLOCK], tl.float32)
    for b in range(batch):
        row = h * 0 + b  # as wide as h
        at = row * H + h
        q_tiles = tl.make_tensor_descriptor(Q + row * qb + h * qh, [T, D], [qt, 1], [BLOCK, D_TILE])
        qr_tiles = tl.make_tensor_descriptor(QR + row * rb + h * rh, [T, F], [rt, 1], [BLOCK, F_TILE])
        g_tiles = tl.make_tensor_descriptor(DO + row * gb + h * gh, [T, E], [gt, 1], [BLOCK, E_TILE])
        k_tiles = tl.make_tensor_descriptor(K + row * kb + g * kh, [S, D], [kt, 1], [BLOCK, D_TILE])
        v_tiles = tl.make_tensor_descriptor(V + row * vb + g * vh, [S, E], [vt, 1], [BLOCK, E_TILE])
        for m0 in tl.range(first, full_first, BLOCK):
            dr, dc = _distance_step(
                r, beside, q_tiles, qr_tiles, g_tiles, k_tiles, v_tiles, m0, m0 - behind, LSE, DELTA, at, T, S, off,
                origin, window, chunk, prefix, scale, cap, weight, dr, dc, BLOCK, CAUSAL, WINDOW, CHUNK, PREFIX,
                SOFTCAP, OWN, HAS_C, PRECISION, APPROXIMATE, SHUFFLED, False,
            )  # fmt: skip
        for m0 in tl.range(full_first, full_end, BLOCK):
            dr, dc = _distance_step(
                r, beside, q_tiles, qr_tiles, g_tiles, k_tiles, v_tiles, m0, m0 - behind, LSE, DELTA, at, T, S, off,
                origin, window, chunk, prefix, scale, cap, weight, dr, dc, BLOCK, CAUSAL, WINDOW, CHUNK, PREFIX,
                SOFTCAP, OWN, HAS_C, PRECISION, APPROXIMATE, SHUFFLED, True,
            )  # fmt: skip
        for m0 in tl.range(full_end, end, BLOCK):
            dr, dc = _distance_step(
                r, beside, q_tiles, qr_tiles, g_tiles, k_tiles, v_tiles, m0, m0 - behind, LSE, DELTA, at, T, S, off,
                origin, window, chunk, prefix, scale, cap, weight, dr, dc, BLOCK, CAUSAL, WINDOW, CHUNK, PREFIX,
                SOFTCAP, OWN, HAS_C, PRECISION, APPROXIMATE, SHUFFLED, False,
            )  # fmt: skip
    _store_distances(DR, DC, OFFSET, dr * share, dc * share, h, t, xh, xt, W, F, F_TILE, HAS_C)


@triton.jit(do_not_specialize=["first_head"])
def kept_distance_gradients(
    QR, DR, DC, OFFSET, KEPT, BOUNDS, rb, rh, rt, xh, xt, T, S, W, blocks, query_blocks, first_head, heads, batch, most,
    lift, share, F: tl.constexpr, F_TILE: tl.constexpr, BLOCK: tl.constexpr, BOUNDED: tl.constexpr,
    HAS_C: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """DR and DC of one block of distances of one head, of the scores' gradient that ``query_gradients`` has kept.
    ``BOUNDED``: blocks of queries may not have visited all tiles of keys at these distances."""
    block = blocks - 1 - tl.program_id(0) % blocks  # the nearest distances, which most queries have, first
    part = (tl.program_id(0) // blocks).to(tl.int64)
    h = first_head + part
    t = block * BLOCK + tl.arange(0, BLOCK)
    behind = lift // BLOCK - block
    first = tl.maximum(behind - 1, 0)
    end = tl.minimum(query_blocks, tl.cdiv(S, BLOCK) + behind)
    dr = tl.zeros([BLOCK, F_TILE], tl.float32)
    dc = tl.zeros([BLOCK, BLOCK], tl.float32)
    for b in range(batch):
        pair = part * 0 + b * heads + part
        kept_tiles = _kept_tiles(KEPT, pair, query_blocks, most, BLOCK)
        qr_tiles = tl.make_tensor_descriptor(QR + b * rb + h * rh, [T, F], [rt, 1], [BLOCK, F_TILE])
        for m in tl.range(first, end):
            n = m + 1 - behind
            slot = _slot(m, query_blocks, most, n)
            if BOUNDED:  # before all that is kept there are zeros
                lo, hi = tl.load(BOUNDS + m * 4), tl.load(BOUNDS + m * 4 + 3)
                slot = tl.where((n >= lo) & (n <= hi), slot, -1)
            x = kept_tiles.load([slot * BLOCK, 0])
            dr = tl.dot(x.T, qr_tiles.load([m * BLOCK, 0]), dr, input_precision=PRECISION)
            if HAS_C:
                dc += x.to(tl.float32)
    _store_distances(DR, DC, OFFSET, dr * share, dc * share, h, t, xh, xt, W, F, F_TILE, HAS_C)
