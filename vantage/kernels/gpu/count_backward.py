"""The backward pass for a bias that counts keys, without atomics.

``count_tiles`` finds how many tiles of each block of queries count (behind them the highest count is reached). In those
``sum_counts`` adds up what the others need; then come the gradients of what queries have for each count, of queries,
and of keys and values.

A gate takes part in the counts of its own key and of all older ones. So its gradient is a sum from the oldest key on,
which is what all keys have less the sum over newer ones. Blocks of queries go from the newest key back and have the
latter at hand. For blocks of keys both sums are kept at the beginning of each tile, or of every second, third, … where
more tiles count than there is room for; then those in between are worked out once more.
"""

from __future__ import annotations

import triton
import triton.language as tl

from vantage.kernels.gpu.backward import key_step, query_step
from vantage.kernels.gpu.count_tiles import by_count, first_column, gates_of, store_at, sums_of_later, triangle
from vantage.kernels.gpu.tiles import block_and_heads, scaled


@triton.jit
def count_tiles(
    Q, K, COUNTED, BOUNDS, qb, qh, qt, kb, kh, kt, T, S, P, blocks, off, origin, window, chunk, gate, H: tl.constexpr,
    GROUP: tl.constexpr, D: tl.constexpr, D_TILE: tl.constexpr, BLOCK: tl.constexpr, CAUSAL: tl.constexpr,
    WINDOW: tl.constexpr, CHUNK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """COUNTED (B, H, blocks): how many tiles, from the newest key on, until all queries are at the highest count."""
    block = tl.program_id(0) % blocks
    at = (tl.program_id(0) // blocks).to(tl.int64)
    b = at // H
    h = at % H
    m0 = block * BLOCK
    q_tile = tl.make_tensor_descriptor(Q + b * qb + h * qh, [T, D], [qt, 1], [BLOCK, D_TILE])
    k_tiles = tl.make_tensor_descriptor(K + b * kb + h // GROUP * kh, [S, D], [kt, 1], [BLOCK, D_TILE])
    q = q_tile.load([m0, 0])
    qi = m0 + tl.arange(0, BLOCK)
    lo, newest = tl.load(BOUNDS + block * 4), tl.load(BOUNDS + block * 4 + 3)
    hi = newest
    ones = triangle(Q, BLOCK, True)
    carry = tl.where(qi < T, 0.0, P + 0.0)
    while (hi > lo) & (tl.min(carry) < P - 1):
        hi -= 1
        s = tl.dot(q, k_tiles.load([hi * BLOCK, 0]).T, input_precision=PRECISION)
        kj = hi * BLOCK + tl.arange(0, BLOCK)
        gates, _ = gates_of(s, qi, kj, S, off, origin, window, chunk, gate, CAUSAL, WINDOW, CHUNK)
        carry = first_column(carry[:, None] + sums_of_later(gates, ones, PRECISION), BLOCK)
    tl.store(COUNTED + at * blocks + block, newest - hi)


@triton.jit
def _place(carry, gates, below, row, inside, ones_behind, P, PRECISION: tl.constexpr):
    """Where a key passes a whole number of counts, twice the place of that number, and one more where it passes two at
    once, which a rounding may do; elsewhere -1. A gate is at most 1, and what newer keys have is the very sum that the
    next key has: so each number is passed by one key, and no two write to one place."""
    before = carry[:, None] + sums_of_later(gates, ones_behind, PRECISION)
    was = tl.minimum(before, P - 1.0).to(tl.int32)
    return tl.where(inside[:, None] & (below > was), (row[:, None] + below) * 2 + (below > was + 1).to(tl.int32), -1)


@triton.jit
def _weighed(
    q, do, k, v, ones, ones_behind, n, qi, BY, row, place_row, last, line, delta, carry, inside, S, P, off, origin,
    window, chunk, scale, cap, gate, weight, BLOCK: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr,
    CHUNK: tl.constexpr, SOFTCAP: tl.constexpr, PRECISION: tl.constexpr, APPROXIMATE: tl.constexpr,
    PLACED: tl.constexpr,
):  # fmt: skip
    """A tile that counts: its weights and their scores' gradient, the derivative of the softcap, how fast the bias
    rises with the count, gates, the part of counts beyond whole numbers, and the count that the next tile goes on from;
    ``PLACED``: and the places of ``_place``."""
    kj = n + tl.arange(0, BLOCK)
    s = tl.dot(q, k.T, input_precision=PRECISION)
    gates, see = gates_of(s, qi, kj, S, off, origin, window, chunk, gate, CAUSAL, WINDOW, CHUNK)
    count = carry[:, None] + sums_of_later(gates, ones, PRECISION)
    bias, rise, below, part = by_count(count, BY, row[:, None], P, APPROXIMATE)
    place = _place(carry, gates, below, place_row, inside, ones_behind, P, PRECISION) if PLACED else below
    x, slope = scaled(s, scale, cap, SOFTCAP, APPROXIMATE)
    p = tl.where(see, tl.math.exp2(x + (bias - last[:, None]) * weight - line[:, None]), 0.0)
    ds = p * (tl.dot(do, v.T, input_precision=PRECISION) - delta[:, None])
    return p, ds, slope, rise, gates, part, first_column(count, BLOCK), place


@triton.jit
def _with_gates(
    ds, slope, rise, gates, every, later, ones_behind, ratio, SOFTCAP: tl.constexpr, PRECISION: tl.constexpr
):  # fmt: skip
    """The gradient of scores by both their ways, as weights and as gates. A gate gets what all counts get (``every``),
    less those of newer keys (``later``: of newer tiles). ``ratio``: the scale of gates as a share of that of scores."""
    newer = later[:, None] + sums_of_later(ds * rise, ones_behind, PRECISION)
    if SOFTCAP:
        ds = ds * slope
    return ds + gates * (1.0 - gates) * (every[:, None] - newer) * ratio


@triton.jit
def _store_newer(A, total, x, place, ones_behind, PRECISION: tl.constexpr, IN_PLACE: tl.constexpr):
    """What newer keys have of x, into the places of A that keys pass. ``total``: what newer tiles have; back: all."""
    newer = total[:, None] + sums_of_later(x, ones_behind, PRECISION)
    passed = place >= 0
    store_at(A, place >> 1, newer, passed, IN_PLACE)
    store_at(A, (place >> 1) - 1, newer, passed & ((place & 1) == 1), IN_PLACE)
    return total + tl.sum(x, 1)


@triton.jit
def sum_counts(
    Q, K, V, BY, DO, LINE, DELTA, A0, A1, TOTALS, COUNTED, SUMS, BOUNDS, qb, qh, qt, kb, kh, kt, vb, vh, vt, cb, ch, ct,
    gb, gh, gt, T, S, P, blocks, heads, off, origin, window, chunk, scale, cap, gate, weight, H: tl.constexpr,
    GROUP: tl.constexpr, D: tl.constexpr, E: tl.constexpr, D_TILE: tl.constexpr, E_TILE: tl.constexpr,
    BLOCK: tl.constexpr, KEPT: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr, CHUNK: tl.constexpr,
    SOFTCAP: tl.constexpr, PRECISION: tl.constexpr, APPROXIMATE: tl.constexpr, LEARNED: tl.constexpr,
):  # fmt: skip
    """Of one block of queries of one head. SUMS (2, B, H, KEPT + 1, T): counts, and the counts' gradients, of newer
    tiles, for each tile that is kept and last of all. A0 and A1 (B, H, T, P): where a query's count passes a whole
    number, what newer keys have of ds, and of ds times the part beyond the whole number below; TOTALS (2, B, H, T): the
    same of all keys."""
    block = blocks - 1 - tl.program_id(0) % blocks
    at = (tl.program_id(0) // blocks).to(tl.int64)
    b = at // H
    h = at % H
    g = h // GROUP
    m0 = block * BLOCK
    q_tile = tl.make_tensor_descriptor(Q + b * qb + h * qh, [T, D], [qt, 1], [BLOCK, D_TILE])
    g_tile = tl.make_tensor_descriptor(DO + b * gb + h * gh, [T, E], [gt, 1], [BLOCK, E_TILE])
    k_tiles = tl.make_tensor_descriptor(K + b * kb + g * kh, [S, D], [kt, 1], [BLOCK, D_TILE])
    v_tiles = tl.make_tensor_descriptor(V + b * vb + g * vh, [S, E], [vt, 1], [BLOCK, E_TILE])
    q = q_tile.load([m0, 0])
    do = g_tile.load([m0, 0])
    qi = m0 + tl.arange(0, BLOCK)
    inside = qi < T
    padded = at * tl.cdiv(T, BLOCK) * BLOCK
    line = tl.load(LINE + padded + qi)
    delta = tl.load(DELTA + padded + qi)
    newest = tl.load(BOUNDS + block * 4 + 3)
    tiles = tl.load(COUNTED + at * blocks + block)
    stride = tl.maximum(tl.cdiv(tiles, KEPT), 1)
    BY += b * cb + h * ch + (at * 0 + m0) * ct
    A0 += (at * T + m0) * P
    A1 += (at * T + m0) * P
    row = (tl.minimum(qi, T - 1) - m0) * ct
    place_row = (qi - m0) * P
    last = tl.load(BY + row + P - 1).to(tl.float32)
    ones = triangle(Q, BLOCK, True)
    ones_behind = triangle(Q, BLOCK, False)
    carry = tl.zeros([BLOCK], tl.float32)
    later = tl.zeros([BLOCK], tl.float32)
    sum0 = tl.zeros([BLOCK], tl.float32)
    sum1 = tl.zeros([BLOCK], tl.float32)
    kept = SUMS + at * (KEPT + 1) * T + qi
    kept_later = kept + (at * 0 + heads) * (KEPT + 1) * T
    for e in range(tiles):
        slot = e // stride * T
        begins = inside & (e % stride == 0)
        tl.store(kept + slot, carry, mask=begins)
        tl.store(kept_later + slot, later, mask=begins)
        n = (newest - 1 - e) * BLOCK
        _, ds, _, rise, _, part, carry, place = _weighed(
            q, do, k_tiles.load([n, 0]), v_tiles.load([n, 0]), ones, ones_behind, n, qi, BY, row, place_row, last, line,
            delta, carry, inside, S, P, off, origin, window, chunk, scale, cap, gate, weight, BLOCK, CAUSAL, WINDOW,
            CHUNK, SOFTCAP, PRECISION, APPROXIMATE, LEARNED,
        )  # fmt: skip
        later += tl.sum(ds * rise, 1)
        if LEARNED:
            sum0 = _store_newer(A0, sum0, ds, place, ones_behind, PRECISION, APPROXIMATE)
            sum1 = _store_newer(A1, sum1, ds * part, place, ones_behind, PRECISION, APPROXIMATE)
    tl.store(kept + KEPT * T, carry, mask=inside)
    tl.store(kept_later + KEPT * T, later, mask=inside)
    if LEARNED:
        tl.store(TOTALS + at * T + qi, sum0, mask=inside)
        tl.store(TOTALS + (heads + at) * T + qi, sum1, mask=inside)


@triton.jit
def _newer(A, row, p, inside, top, total, P):
    """What newer keys than those at count p have: kept where it was passed, and behind the highest count all of it."""
    x = tl.load(A + row + p, mask=inside & (p > 0) & (p <= top) & (p < P), other=0.0)
    return tl.where(p > top, total, x)


@triton.jit
def gradients_by_count(
    A0, A1, TOTALS, SUMS, OUT, cb, ch, ct, T, P, rows, apart, factor, H: tl.constexpr, KEPT: tl.constexpr,
    ROWS: tl.constexpr, P_TILE: tl.constexpr,
):  # fmt: skip
    """OUT (B, H, T, P): the gradient of what queries have for each count, of the sums of ``sum_counts``, for ``rows``
    queries; ``apart``: from the first to the second of TOTALS. The last count has what is left: as if a row added up to
    nothing, as without sinks it does."""
    i = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    inside = (i < rows)[:, None]
    counted = tl.load(SUMS + (i // T * (KEPT + 1) + KEPT) * T + i % T, mask=i < rows, other=0.0)
    top = tl.minimum(counted, P - 1.0).to(tl.int32)[:, None]
    sum0 = tl.load(TOTALS + i, mask=i < rows, other=0.0)[:, None]
    sum1 = tl.load(TOTALS + apart + i, mask=i < rows, other=0.0)[:, None]
    row = i[:, None] * P
    p = tl.arange(0, P_TILE)[None, :]
    part = _newer(A1, row, p, inside, top, sum1, P)
    x = _newer(A0, row, p + 1, inside, top, sum0, P) - _newer(A0, row, p, inside, top, sum0, P)
    x += 2.0 * part - _newer(A1, row, p + 1, inside, top, sum1, P) - _newer(A1, row, p - 1, inside, top, sum1, P)
    x = tl.where(p < P - 1, x, 0.0)
    x = tl.where(p == P - 1, -tl.sum(x, 1)[:, None], x)
    to = OUT + (i // T // H * cb + i // T % H * ch + i % T * ct)[:, None] + p
    tl.store(to, (x * factor).to(OUT.dtype.element_ty), mask=inside & (p < P))


@triton.jit
def query_gradients(
    Q, K, V, BY, DO, LINE, DELTA, DQ, COUNTED, SUMS, BOUNDS, qb, qh, qt, kb, kh, kt, vb, vh, vt, cb, ch, ct, gb, gh, gt,
    db, dh, dt, T, S, P, blocks, heads, off, origin, window, chunk, scale, cap, gate, weight, ratio, factor,
    H: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, E: tl.constexpr, D_TILE: tl.constexpr, E_TILE: tl.constexpr,
    BLOCK: tl.constexpr, KEPT: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr, CHUNK: tl.constexpr,
    SOFTCAP: tl.constexpr, PRECISION: tl.constexpr, APPROXIMATE: tl.constexpr,
):  # fmt: skip
    """DQ of one block of queries of one head."""
    block = blocks - 1 - tl.program_id(0) % blocks
    at = (tl.program_id(0) // blocks).to(tl.int64)
    b = at // H
    h = (at % H).to(tl.int32)
    g = (h // GROUP).to(tl.int64)
    m0 = block * BLOCK
    q_tile = tl.make_tensor_descriptor(Q + b * qb + h.to(tl.int64) * qh, [T, D], [qt, 1], [BLOCK, D_TILE])
    g_tile = tl.make_tensor_descriptor(DO + b * gb + h.to(tl.int64) * gh, [T, E], [gt, 1], [BLOCK, E_TILE])
    k_tiles = tl.make_tensor_descriptor(K + b * kb + g * kh, [S, D], [kt, 1], [BLOCK, D_TILE])
    v_tiles = tl.make_tensor_descriptor(V + b * vb + g * vh, [S, E], [vt, 1], [BLOCK, E_TILE])
    q = q_tile.load([m0, 0])
    do = g_tile.load([m0, 0])
    qi = m0 + tl.arange(0, BLOCK)
    inside = qi < T
    padded = at * tl.cdiv(T, BLOCK) * BLOCK
    line = tl.load(LINE + padded + qi)
    delta = tl.load(DELTA + padded + qi)
    bounds = BOUNDS + block * 4
    lo, full_lo, full_hi, newest = tl.load(bounds), tl.load(bounds + 1), tl.load(bounds + 2), tl.load(bounds + 3)
    tiles = tl.load(COUNTED + at * blocks + block)
    BY += b * cb + h.to(tl.int64) * ch + (at * 0 + m0) * ct
    row = (tl.minimum(qi, T - 1) - m0) * ct
    last = tl.load(BY + row + P - 1).to(tl.float32)
    every = tl.load(SUMS + ((heads + at) * (KEPT + 1) + KEPT) * T + qi, mask=inside, other=0.0)
    ones = triangle(Q, BLOCK, True)
    ones_behind = triangle(Q, BLOCK, False)
    dq = tl.zeros([BLOCK, D_TILE], tl.float32)
    carry = tl.zeros([BLOCK], tl.float32)
    later = tl.zeros([BLOCK], tl.float32)
    for e in tl.range(0, tiles, num_stages=1):  # tiles fetched ahead would take the room of a second program
        n = (newest - 1 - e) * BLOCK
        k = k_tiles.load([n, 0])
        _, ds, slope, rise, gates, _, carry, _ = _weighed(
            q, do, k, v_tiles.load([n, 0]), ones, ones_behind, n, qi, BY, row, row, last, line, delta, carry, inside, S,
            P, off, origin, window, chunk, scale, cap, gate, weight, BLOCK, CAUSAL, WINDOW, CHUNK, SOFTCAP, PRECISION,
            APPROXIMATE, False,
        )  # fmt: skip
        to_scores = _with_gates(ds, slope, rise, gates, every, later, ones_behind, ratio, SOFTCAP, PRECISION)
        later += tl.sum(ds * rise, 1)
        dq = tl.dot(to_scores.to(k.dtype), k, dq, input_precision=PRECISION)
    hi = newest - tiles
    full_lo = tl.minimum(full_lo, hi)
    full_hi = tl.minimum(full_hi, hi)
    qo = qi + off
    for n in tl.range(lo * BLOCK, full_lo * BLOCK, BLOCK):
        dq, carry, later = query_step(
            q, do, k_tiles, v_tiles, qi, n, m0, qi, qo, qo, qi * 0, 0, last, line, delta, BOUNDS, 0, 1, at, h, BY, BY,
            BY, BY, T, S, off, 0, 0, 0, origin, window, chunk, 0, scale, cap, dq, carry, later, BLOCK, 0, False, True,
            False, CAUSAL, WINDOW, CHUNK, False, False, False, False, SOFTCAP, PRECISION, APPROXIMATE, False, False,
        )  # fmt: skip
    for n in tl.range(full_lo * BLOCK, full_hi * BLOCK, BLOCK):
        dq, carry, later = query_step(
            q, do, k_tiles, v_tiles, qi, n, m0, qi, qo, qo, qi * 0, 0, last, line, delta, BOUNDS, 0, 1, at, h, BY, BY,
            BY, BY, T, S, off, 0, 0, 0, origin, window, chunk, 0, scale, cap, dq, carry, later, BLOCK, 0, False, True,
            False, CAUSAL, WINDOW, CHUNK, False, False, False, False, SOFTCAP, PRECISION, APPROXIMATE, False, True,
        )  # fmt: skip
    for n in tl.range(full_hi * BLOCK, hi * BLOCK, BLOCK):
        dq, carry, later = query_step(
            q, do, k_tiles, v_tiles, qi, n, m0, qi, qo, qo, qi * 0, 0, last, line, delta, BOUNDS, 0, 1, at, h, BY, BY,
            BY, BY, T, S, off, 0, 0, 0, origin, window, chunk, 0, scale, cap, dq, carry, later, BLOCK, 0, False, True,
            False, CAUSAL, WINDOW, CHUNK, False, False, False, False, SOFTCAP, PRECISION, APPROXIMATE, False, False,
        )  # fmt: skip
    c = tl.arange(0, D_TILE)
    to = DQ + b * db + h.to(tl.int64) * dh + qi.to(tl.int64)[:, None] * dt + c[None, :]
    tl.store(to, (dq * factor).to(DQ.dtype.element_ty), mask=inside[:, None] & (c < D)[None, :])


@triton.jit
def _counted_queries(
    k, v, q_tiles, g_tiles, k_tiles, v_tiles, ones, ones_behind, m, n, BY, LINE, DELTA, COUNTED, SUMS, BOUNDS, at, ct,
    blocks, heads, T, S, P, off, origin, window, chunk, scale, cap, gate, weight, ratio, dk, dv, BLOCK: tl.constexpr,
    KEPT: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr, CHUNK: tl.constexpr, SOFTCAP: tl.constexpr,
    PRECISION: tl.constexpr, APPROXIMATE: tl.constexpr,
):  # fmt: skip
    """One tile of queries whose keys are counted, for the gradients of keys and values."""
    m0 = m * BLOCK
    qi = m0 + tl.arange(0, BLOCK)
    inside = qi < T
    padded = at * tl.cdiv(T, BLOCK) * BLOCK
    line = tl.load(LINE + padded + qi)
    delta = tl.load(DELTA + padded + qi)
    BY += (at * 0 + m0) * ct
    row = (tl.minimum(qi, T - 1) - m0) * ct
    last = tl.load(BY + row + P - 1).to(tl.float32)
    q = q_tiles.load([m0, 0])
    do = g_tiles.load([m0, 0])
    newest = tl.load(BOUNDS + m * 4 + 3)
    tiles = tl.load(COUNTED + at * blocks + m)
    stride = tl.maximum(tl.cdiv(tiles, KEPT), 1)
    e = newest - 1 - n
    counts = (e >= 0) & (e < tiles)  # else all of its counts are the highest
    slot = tl.where(counts, e // stride, 0)
    kept = SUMS + at * (KEPT + 1) * T + qi
    kept_later = kept + (at * 0 + heads) * (KEPT + 1) * T
    every = tl.load(kept_later + KEPT * T, mask=inside, other=0.0)
    carry = tl.where(counts, tl.load(kept + slot * T, mask=inside, other=0.0), P + 0.0)
    later = tl.where(counts, tl.load(kept_later + slot * T, mask=inside, other=0.0), every)
    for between in tl.range(tl.where(counts, slot * stride, 0), tl.where(counts, e, 0), num_stages=1):
        n0 = (newest - 1 - between) * BLOCK
        _, ds, _, rise, _, _, carry, _ = _weighed(
            q, do, k_tiles.load([n0, 0]), v_tiles.load([n0, 0]), ones, ones_behind, n0, qi, BY, row, row, last, line,
            delta, carry, inside, S, P, off, origin, window, chunk, scale, cap, gate, weight, BLOCK, CAUSAL, WINDOW,
            CHUNK, SOFTCAP, PRECISION, APPROXIMATE, False,
        )  # fmt: skip
        later += tl.sum(ds * rise, 1)
    p, ds, slope, rise, gates, _, _, _ = _weighed(
        q, do, k, v, ones, ones_behind, n * BLOCK, qi, BY, row, row, last, line, delta, carry, inside, S, P, off,
        origin, window, chunk, scale, cap, gate, weight, BLOCK, CAUSAL, WINDOW, CHUNK, SOFTCAP, PRECISION, APPROXIMATE,
        False,
    )  # fmt: skip
    to_scores = _with_gates(ds, slope, rise, gates, every, later, ones_behind, ratio, SOFTCAP, PRECISION)
    dv = tl.dot(p.to(do.dtype).T, do, dv, input_precision=PRECISION)
    dk = tl.dot(to_scores.to(q.dtype).T, q, dk, input_precision=PRECISION)
    return dk, dv


@triton.jit
def key_gradients(
    Q, K, V, BY, DO, LINE, DELTA, DK, DV, COUNTED, ENDS, SUMS, BOUNDS, RANGES, qb, qh, qt, kb, kh, kt, vb, vh, vt, cb,
    ch, ct, gb, gh, gt, xb, xh, xt, yb, yh, yt, T, S, P, blocks, query_blocks, heads, off, origin, window, chunk, scale,
    cap, gate, weight, ratio, factor, H: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
    D_TILE: tl.constexpr, E_TILE: tl.constexpr, BLOCK: tl.constexpr, KEPT: tl.constexpr, CAUSAL: tl.constexpr,
    WINDOW: tl.constexpr, CHUNK: tl.constexpr, SOFTCAP: tl.constexpr, PRECISION: tl.constexpr,
    APPROXIMATE: tl.constexpr, TOGETHER: tl.constexpr,
):  # fmt: skip
    """DK and DV of one block of keys, summed over the heads that share them. ENDS (B, H, blocks): before which block of
    queries these keys are counted. BOUNDS are those of queries, RANGES those of keys."""
    G: tl.constexpr = H // GROUP
    block, pair = block_and_heads(blocks, TOGETHER)
    b = pair // G
    g = pair % G
    n0 = block * BLOCK
    kj = n0 + tl.arange(0, BLOCK)
    k_tiles = tl.make_tensor_descriptor(K + b * kb + g * kh, [S, D], [kt, 1], [BLOCK, D_TILE])
    v_tiles = tl.make_tensor_descriptor(V + b * vb + g * vh, [S, E], [vt, 1], [BLOCK, E_TILE])
    k = k_tiles.load([n0, 0])
    v = v_tiles.load([n0, 0])
    ranges = RANGES + block * 4
    lo, full_lo, full_hi, hi = tl.load(ranges), tl.load(ranges + 1), tl.load(ranges + 2), tl.load(ranges + 3)
    ones = triangle(Q, BLOCK, True)
    ones_behind = triangle(Q, BLOCK, False)
    dk = tl.zeros([BLOCK, D_TILE], tl.float32)
    dv = tl.zeros([BLOCK, E_TILE], tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    for i in range(GROUP):
        h = (g * GROUP + i).to(tl.int32)
        at = b * H + h
        q_tiles = tl.make_tensor_descriptor(Q + b * qb + h.to(tl.int64) * qh, [T, D], [qt, 1], [BLOCK, D_TILE])
        g_tiles = tl.make_tensor_descriptor(DO + b * gb + h.to(tl.int64) * gh, [T, E], [gt, 1], [BLOCK, E_TILE])
        end = tl.minimum(tl.maximum(tl.load(ENDS + at * blocks + block), lo), hi)
        for m in tl.range(lo, end, num_stages=1):
            dk, dv = _counted_queries(
                k, v, q_tiles, g_tiles, k_tiles, v_tiles, ones, ones_behind, m, block,
                BY + b * cb + h.to(tl.int64) * ch, LINE, DELTA, COUNTED, SUMS, BOUNDS, at, ct, query_blocks, heads, T,
                S, P, off, origin, window, chunk, scale, cap, gate, weight, ratio, dk, dv, BLOCK, KEPT, CAUSAL, WINDOW,
                CHUNK, SOFTCAP, PRECISION, APPROXIMATE,
            )  # fmt: skip
        first = tl.maximum(full_lo, end)
        past = tl.maximum(full_hi, first)
        for m0 in tl.range(end * BLOCK, first * BLOCK, BLOCK):
            dk, dv, total = key_step(
                k, v, q_tiles, g_tiles, m0, n0, kj, kj, kj, kj * 0, LINE, DELTA, BOUNDS, 0, 1, at, h, BY, BY, T, S, off,
                0, 0, 0, origin, window, chunk, 0, scale, cap, dk, dv, total, BLOCK, 0, False, True, False, CAUSAL,
                WINDOW, CHUNK, False, False, False, False, SOFTCAP, PRECISION, APPROXIMATE, False, False,
            )  # fmt: skip
        for m0 in tl.range(first * BLOCK, past * BLOCK, BLOCK):
            dk, dv, total = key_step(
                k, v, q_tiles, g_tiles, m0, n0, kj, kj, kj, kj * 0, LINE, DELTA, BOUNDS, 0, 1, at, h, BY, BY, T, S, off,
                0, 0, 0, origin, window, chunk, 0, scale, cap, dk, dv, total, BLOCK, 0, False, True, False, CAUSAL,
                WINDOW, CHUNK, False, False, False, False, SOFTCAP, PRECISION, APPROXIMATE, False, True,
            )  # fmt: skip
        for m0 in tl.range(past * BLOCK, hi * BLOCK, BLOCK):
            dk, dv, total = key_step(
                k, v, q_tiles, g_tiles, m0, n0, kj, kj, kj, kj * 0, LINE, DELTA, BOUNDS, 0, 1, at, h, BY, BY, T, S, off,
                0, 0, 0, origin, window, chunk, 0, scale, cap, dk, dv, total, BLOCK, 0, False, True, False, CAUSAL,
                WINDOW, CHUNK, False, False, False, False, SOFTCAP, PRECISION, APPROXIMATE, False, False,
            )  # fmt: skip
    inside = (kj < S)[:, None]
    where = kj.to(tl.int64)[:, None]
    c = tl.arange(0, D_TILE)[None, :]
    tl.store(DK + b * xb + g * xh + where * xt + c, (dk * factor).to(DK.dtype.element_ty), mask=inside & (c < D))
    c = tl.arange(0, E_TILE)[None, :]
    tl.store(DV + b * yb + g * yh + where * yt + c, dv.to(DV.dtype.element_ty), mask=inside & (c < E))
