"""The backward pass for a bias that is a product of queries and distances, without atomics: the distances."""

from __future__ import annotations

import triton
import triton.language as tl

from vantage.kernels.gpu.distance_tiles import kept_slot, kept_tiles_of, line_and_delta
from vantage.kernels.gpu.skew import by_key, by_one_distance_block, on_diagonal
from vantage.kernels.gpu.tiles import scaled, sees


@triton.jit
def _distance_step(
    r, beside, q_tiles, qr_tiles, g_tiles, k_tiles, v_tiles, m0, n, LSE, DELTA, at, T, S, off, origin, window, chunk,
    prefix, scale, cap, weight, dr, dc, BLOCK: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr,
    CHUNK: tl.constexpr, PREFIX: tl.constexpr, SOFTCAP: tl.constexpr, OWN: tl.constexpr, HAS_C: tl.constexpr,
    PRECISION: tl.constexpr, APPROXIMATE: tl.constexpr, SHUFFLED: tl.constexpr, FULL: tl.constexpr,
):  # fmt: skip
    """One block of queries. The later keys of tile n and the earlier ones of the next stand at these distances."""
    qi = m0 + tl.arange(0, BLOCK)
    line, delta = line_and_delta(LSE, DELTA, at, qi, T)
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
        kept_tiles = kept_tiles_of(KEPT, pair, query_blocks, most, BLOCK)
        qr_tiles = tl.make_tensor_descriptor(QR + b * rb + h * rh, [T, F], [rt, 1], [BLOCK, F_TILE])
        for m in tl.range(first, end):
            n = m + 1 - behind
            slot = kept_slot(m, query_blocks, most, n)
            if BOUNDED:  # before all that is kept there are zeros
                lo, hi = tl.load(BOUNDS + m * 4), tl.load(BOUNDS + m * 4 + 3)
                slot = tl.where((n >= lo) & (n <= hi), slot, -1)
            x = kept_tiles.load([slot * BLOCK, 0])
            dr = tl.dot(x.T, qr_tiles.load([m * BLOCK, 0]), dr, input_precision=PRECISION)
            if HAS_C:
                dc += x.to(tl.float32)
    _store_distances(DR, DC, OFFSET, dr * share, dc * share, h, t, xh, xt, W, F, F_TILE, HAS_C)
