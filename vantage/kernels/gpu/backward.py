"""The backward pass, in two kernels without atomics between blocks: one for queries and the bias, one for keys.

A learned bias gets its gradient from the tiles of the first: two sums a query for a form with two numbers, and for a
table one place for each query and distance, which the caller adds up.
"""

from __future__ import annotations

import triton
import triton.language as tl

from vantage.kernels.gpu.far import log2_of, log_slope, log_terms, middle_and_along, moments, reciprocal
from vantage.kernels.gpu.pieces import easy_keys, easy_queries, empty_sums, piece_sums, store_sums, with_pieces
from vantage.kernels.gpu.tiles import (
    LENGTHS,
    LOG,
    LOG2E,
    PIECES,
    POWER,
    ROW_TABLE,
    SLOPE,
    biased,
    block_and_heads,
    column,
    place,
    scaled,
    sees,
    shift_of,
)
from vantage.kernels.gpu.values import by_distance, value_term


@triton.jit
def _dot_rows(OUT, DO, ob, oh, ot, gb, gh, gt, b, h, i, T, E: tl.constexpr, E_TILE: tl.constexpr):
    """Output times its gradient of some rows."""
    c = tl.arange(0, E_TILE)
    inside = (i < T)[:, None] & (c < E)[None, :]
    row = i.to(tl.int64)[:, None]
    o = tl.load(OUT + b * ob + h * oh + row * ot + c[None, :], mask=inside, other=0.0).to(tl.float32)
    do = tl.load(DO + b * gb + h * gh + row * gt + c[None, :], mask=inside, other=0.0).to(tl.float32)
    return tl.sum(o * do, 1)


@triton.jit(do_not_specialize=LENGTHS)
def dot_rows(
    OUT, DO, DELTA, ob, oh, ot, gb, gh, gt, T, blocks,
    H: tl.constexpr, E: tl.constexpr, E_TILE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """DELTA: output times its gradient, row by row."""
    at = (tl.program_id(0) // blocks).to(tl.int64)
    i = tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)
    delta = _dot_rows(OUT, DO, ob, oh, ot, gb, gh, gt, at // H, at % H, i, T, E, E_TILE)
    tl.store(DELTA + at * T + i, delta, mask=i < T)


@triton.jit(do_not_specialize=LENGTHS)
def row_lines(
    OUT, DO, LSE, GRAD_LSE, DELTA, LINE, SHARED, ob, oh, ot, gb, gh, gt, T, blocks, H: tl.constexpr, E: tl.constexpr,
    E_TILE: tl.constexpr, BLOCK: tl.constexpr, HAS_GRAD_LSE: tl.constexpr,
):  # fmt: skip
    """DELTA as of ``dot_rows``. LINE: what scores are measured from; SHARED: what a row's gradients are. Both of whole
    blocks, so that nothing is asked; one launch, where torch's operations would be seven."""
    at = (tl.program_id(0) // blocks).to(tl.int64)
    i = tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)
    delta = _dot_rows(OUT, DO, ob, oh, ot, gb, gh, gt, at // H, at % H, i, T, E, E_TILE)
    tl.store(DELTA + at * T + i, delta, mask=i < T)
    lse = tl.load(LSE + at * T + i, mask=i < T, other=float("-inf"))
    to = at * (blocks * BLOCK) + i
    tl.store(LINE + to, tl.where(lse == float("-inf"), float("inf"), lse * LOG2E))
    if HAS_GRAD_LSE:
        delta -= tl.load(GRAD_LSE + at * T + i, mask=i < T, other=0.0)
    tl.store(SHARED + to, delta)


@triton.jit
def _bias_sums(
    ds, qp, kp, P0, P1, h, one, two, m0, n0, off, BLOCK: tl.constexpr, FORM: tl.constexpr, FAR: tl.constexpr,
    APPROXIMATE: tl.constexpr,
):  # fmt: skip
    """What a tile adds to the gradients of the (one or two) numbers of a form, row by row."""
    x = tl.abs(qp[:, None] - kp[None, :]).to(tl.float32)
    if FORM == SLOPE:
        one -= tl.sum(ds * x, 1)
    if FORM == LOG and FAR:
        p = tl.load(P1 + h)
        middle, along = middle_and_along(qp[:, None], kp[None, :], m0, n0, off, BLOCK)
        middle = tl.reshape(middle, [BLOCK])
        c0, c1, c2, c3 = log_terms(middle, p, BLOCK, APPROXIMATE)
        x0, x1, x2, x3 = moments(ds, along)
        one -= (c0 * x0 + c1 * x1 + c2 * x2 + c3 * x3) / LOG2E
        two -= log_slope(middle, x0, x1, x2, p, BLOCK) * tl.load(P0 + h)
    elif FORM == LOG:
        inner = 1.0 + tl.load(P1 + h) * x
        one -= tl.sum(ds * log2_of(inner, APPROXIMATE), 1) / LOG2E
        two -= tl.sum(ds * (x * reciprocal(inner, APPROXIMATE)), 1) * tl.load(P0 + h)
    if FORM == POWER:
        log = log2_of(tl.where(x > 0, x, 1.0), APPROXIMATE)
        raised = tl.where(x > 0, tl.math.exp2(tl.load(P1 + h) * log), 0.0)
        one -= tl.sum(ds * raised, 1)
        two -= tl.sum(ds * raised * log, 1) / LOG2E * tl.load(P0 + h)
    return one, two


@triton.jit
def query_step(
    q, do, k_tiles, v_tiles, kp, n, m0, qi, qo, qp, qs, q0, shift, line, delta, KP, row, rows, at, h, P0, P1, G0, G1, T,
    S, off, low, width, banks, origin, window, chunk, prefix, scale, cap, dq, one, two, BLOCK: tl.constexpr,
    FORM: tl.constexpr, ONE_SIDED: tl.constexpr, RUN: tl.constexpr, FLOAT: tl.constexpr, CAUSAL: tl.constexpr,
    WINDOW: tl.constexpr, CHUNK: tl.constexpr, PREFIX: tl.constexpr, SEGMENT: tl.constexpr, EMPTY: tl.constexpr,
    BANKED: tl.constexpr, SOFTCAP: tl.constexpr, PRECISION: tl.constexpr, APPROXIMATE: tl.constexpr,
    LEARNED: tl.constexpr, FULL: tl.constexpr,
):  # fmt: skip
    """One tile of keys, for the gradient of the queries. ``line`` is what a row's scores are measured from."""
    kj = n + tl.arange(0, BLOCK)
    ko = kj
    ks = kj * 0
    if not RUN and not FULL:
        ko = place(KP, 0, row, rows, kj, S, False)
        ks = place(KP, 2, row, rows, kj, S, False)
    k = k_tiles.load([n, 0])
    v = v_tiles.load([n, 0])
    if EMPTY and not FULL:  # an empty place may hold anything
        k = tl.where((ko >= 0)[:, None], k, 0.0)
        v = tl.where((ko >= 0)[:, None], v, 0.0)
    x, slope = scaled(tl.dot(q, k.T, input_precision=PRECISION), scale, cap, SOFTCAP, APPROXIMATE)
    r, first, last = x, 0, 0
    if FORM == PIECES:
        x, r, first, last = with_pieces(
            x, qp[:, None], kp[None, :], shift[:, None], P0, P1, at, h, m0, n, T, off, width, BLOCK, BANKED,
            ONE_SIDED, FULL and ONE_SIDED, APPROXIMATE,
        )  # fmt: skip
    else:
        x = biased(
            x, qp[:, None], kp[None, :], q0, shift[:, None], P0, P1, at, h, qi[:, None], m0, kj[None, :], n, T, off,
            low, width, banks, BLOCK, FORM, ONE_SIDED, FULL, BANKED, APPROXIMATE,
        )  # fmt: skip
    p = tl.math.exp2(x - line[:, None])
    see = (kj < S)[None, :]
    if not FULL:
        see = sees(
            qo[:, None], ko[None, :], qs[:, None], ks[None, :], see, origin, window, chunk, prefix,
            CAUSAL, WINDOW, CHUNK, PREFIX, SEGMENT, EMPTY,
        )  # fmt: skip
        p = tl.where(see, p, 0.0)
    dp = tl.dot(do, v.T, input_precision=PRECISION)
    if FORM == ROW_TABLE and BANKED and not (FULL and ONE_SIDED):
        dp = value_term(dp, qp[:, None] - kp[None, :], qi[:, None], T, low, width, at, P1, ONE_SIDED)
    ds = p * (dp - delta[:, None])
    if LEARNED and FORM == PIECES:
        one = piece_sums(
            one, ds, r, first, last, qp, kp, m0, n, off, P0, P1, G0, at * tl.cdiv(T, BLOCK) + m0 // BLOCK, h, width,
            BLOCK, FULL and ONE_SIDED,
        )  # fmt: skip
    elif LEARNED and FORM <= 3:
        one, two = _bias_sums(ds, qp, kp, P0, P1, h, one, two, m0, n, off, BLOCK, FORM, FULL and ONE_SIDED, APPROXIMATE)
    elif LEARNED and not (FULL and ONE_SIDED):
        d = qp[:, None] - kp[None, :] - low
        one = by_distance(ds, one, d, see, qi, T, width, at, G0, RUN)
        if FORM == ROW_TABLE and BANKED:
            two = by_distance(p, two, d, see, qi, T, width, at, G1, RUN)
    if SOFTCAP:
        ds = ds * slope
    return tl.dot(ds.to(k.dtype), k, dq, input_precision=PRECISION), one, two


@triton.jit(do_not_specialize=LENGTHS)
def query_gradients(
    Q, K, V, DO, LINE, DELTA, DQ, P0, P1, G0, G1, QP, KP, BOUNDS, qb, qh, qt, kb, kh, kt, vb, vh, vt, gb, gh, gt, db,
    dh, dt, T, S, blocks, rows, off, origin, low, width, banks, window, chunk, prefix, scale, cap, factor,
    H: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, E: tl.constexpr, D_TILE: tl.constexpr,
    E_TILE: tl.constexpr, BLOCK: tl.constexpr, FORM: tl.constexpr, ONE_SIDED: tl.constexpr, RUN: tl.constexpr,
    FLOAT: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr, CHUNK: tl.constexpr, PREFIX: tl.constexpr,
    SEGMENT: tl.constexpr, EMPTY: tl.constexpr, BANKED: tl.constexpr, SOFTCAP: tl.constexpr, PRECISION: tl.constexpr,
    APPROXIMATE: tl.constexpr, LEARNED: tl.constexpr, TOGETHER: tl.constexpr,
):  # fmt: skip
    """DQ, and the sums G0 and G1 of a learned bias, for one block of queries of one head."""
    block, at = block_and_heads(blocks, TOGETHER)
    block = blocks - 1 - block
    b = at // H
    h = (at % H).to(tl.int32)
    g = (h // GROUP).to(tl.int64)
    row = tl.where(rows > 1, b, 0).to(tl.int32)
    m0 = block * BLOCK
    q_tile = tl.make_tensor_descriptor(Q + b * qb + h.to(tl.int64) * qh, [T, D], [qt, 1], [BLOCK, D_TILE])
    g_tile = tl.make_tensor_descriptor(DO + b * gb + h.to(tl.int64) * gh, [T, E], [gt, 1], [BLOCK, E_TILE])
    k_tiles = tl.make_tensor_descriptor(K + b * kb + g * kh, [S, D], [kt, 1], [BLOCK, D_TILE])
    v_tiles = tl.make_tensor_descriptor(V + b * vb + g * vh, [S, E], [vt, 1], [BLOCK, E_TILE])
    q = q_tile.load([m0, 0])
    do = g_tile.load([m0, 0])
    qi = m0 + tl.arange(0, BLOCK)
    inside = qi < T
    qo = qi + off
    qp = qi + off
    qs = qi * 0
    q0 = m0 + off
    if not RUN:
        qo = place(QP, 0, row, rows, qi, T, False)
        qs = place(QP, 2, row, rows, qi, T, False)
        qp = place(QP, 1, row, rows, qi, T, FLOAT)
        q0 = tl.max(qp)
    shift = shift_of(qp, q0, P0, P1, at, h, qi, T, width, FORM, ONE_SIDED)
    rest = at * tl.cdiv(T, BLOCK) * BLOCK
    line = tl.load(LINE + rest + qi)
    if FORM != PIECES:
        line = line - shift
    delta = tl.load(DELTA + rest + qi)
    bounds = BOUNDS + (row * blocks + block) * 4
    lo, full_lo, full_hi, hi = tl.load(bounds), tl.load(bounds + 1), tl.load(bounds + 2), tl.load(bounds + 3)
    NEAR: tl.constexpr = (
        1 if BANKED and FORM != PIECES else None
    )  # ready-made biases would take the room of a second program
    dq = tl.zeros([BLOCK, D_TILE], tl.float32)
    one = tl.zeros([BLOCK], tl.float32)
    two = tl.zeros([BLOCK], tl.float32)
    if FORM == PIECES:
        one = empty_sums(h, BLOCK)
        if ONE_SIDED:
            full_hi = easy_keys(full_lo, full_hi, m0, off, shift, P1, BANKED, BLOCK, APPROXIMATE)
    kp = column(KP, P1, row, rows, at, lo * BLOCK + tl.arange(0, BLOCK), S, FORM, RUN, FLOAT)
    for n in tl.range(lo * BLOCK, full_lo * BLOCK, BLOCK, num_stages=NEAR):
        ahead = column(KP, P1, row, rows, at, n + BLOCK + tl.arange(0, BLOCK), S, FORM, RUN, FLOAT)
        dq, one, two = query_step(
            q, do, k_tiles, v_tiles, kp, n, m0, qi, qo, qp, qs, q0, shift, line, delta, KP, row, rows, at, h, P0, P1,
            G0, G1, T, S, off, low, width, banks, origin, window, chunk, prefix, scale, cap, dq, one, two, BLOCK, FORM,
            ONE_SIDED, RUN, FLOAT, CAUSAL, WINDOW, CHUNK, PREFIX, SEGMENT, EMPTY, BANKED, SOFTCAP, PRECISION,
            APPROXIMATE, LEARNED, False,
        )  # fmt: skip
        kp = ahead
    for n in tl.range(full_lo * BLOCK, full_hi * BLOCK, BLOCK):
        ahead = column(KP, P1, row, rows, at, n + BLOCK + tl.arange(0, BLOCK), S, FORM, RUN, FLOAT)
        dq, one, two = query_step(
            q, do, k_tiles, v_tiles, kp, n, m0, qi, qo, qp, qs, q0, shift, line, delta, KP, row, rows, at, h, P0, P1,
            G0, G1, T, S, off, low, width, banks, origin, window, chunk, prefix, scale, cap, dq, one, two, BLOCK, FORM,
            ONE_SIDED, RUN, FLOAT, CAUSAL, WINDOW, CHUNK, PREFIX, SEGMENT, EMPTY, BANKED, SOFTCAP, PRECISION,
            APPROXIMATE, LEARNED, True,
        )  # fmt: skip
        kp = ahead
    for n in tl.range(full_hi * BLOCK, hi * BLOCK, BLOCK, num_stages=NEAR):
        ahead = column(KP, P1, row, rows, at, n + BLOCK + tl.arange(0, BLOCK), S, FORM, RUN, FLOAT)
        dq, one, two = query_step(
            q, do, k_tiles, v_tiles, kp, n, m0, qi, qo, qp, qs, q0, shift, line, delta, KP, row, rows, at, h, P0, P1,
            G0, G1, T, S, off, low, width, banks, origin, window, chunk, prefix, scale, cap, dq, one, two, BLOCK, FORM,
            ONE_SIDED, RUN, FLOAT, CAUSAL, WINDOW, CHUNK, PREFIX, SEGMENT, EMPTY, BANKED, SOFTCAP, PRECISION,
            APPROXIMATE, LEARNED, False,
        )  # fmt: skip
        kp = ahead
    c = tl.arange(0, D_TILE)
    out = DQ + b * db + h.to(tl.int64) * dh + qi.to(tl.int64)[:, None] * dt + c[None, :]
    tl.store(out, (dq * factor).to(DQ.dtype.element_ty), mask=inside[:, None] & (c < D)[None, :])
    if LEARNED and FORM == PIECES:
        program = at * blocks + block
        store_sums(one, shift, G0, G1, program, width, at, T, qi, inside, tl.num_programs(0) // blocks)
    elif LEARNED and FORM <= 3:
        tl.store(G0 + at * T + qi, one, mask=inside)
        tl.store(G1 + at * T + qi, two, mask=inside)
    elif LEARNED:
        tl.store(G0 + (at * T + qi) * width, one, mask=inside)
        if FORM == ROW_TABLE and BANKED:
            tl.store(G1 + (at * T + qi) * width, two, mask=inside)


@triton.jit
def key_step(
    k, v, q_tiles, g_tiles, m0, n0, kj, ko, kp, ks, LINE, DELTA, QP, row, rows, at, h, P0, P1, T, S, off, low, width,
    banks, origin, window, chunk, prefix, scale, cap, dk, dv, total, BLOCK: tl.constexpr, FORM: tl.constexpr,
    ONE_SIDED: tl.constexpr, RUN: tl.constexpr, FLOAT: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr,
    CHUNK: tl.constexpr, PREFIX: tl.constexpr, SEGMENT: tl.constexpr, EMPTY: tl.constexpr, BANKED: tl.constexpr,
    SOFTCAP: tl.constexpr, PRECISION: tl.constexpr, APPROXIMATE: tl.constexpr, LEARNED: tl.constexpr,
    FULL: tl.constexpr,
):  # fmt: skip
    """One tile of queries, for the gradients of keys and values. Tiles stand on their side: (keys, queries)."""
    qi = m0 + tl.arange(0, BLOCK)
    qo = qi + off
    qp = qi + off
    qs = qi * 0
    q0 = m0 + off
    if not RUN:
        if FORM > 0:
            qp = place(QP, 1, row, rows, qi, T, FLOAT)
            q0 = tl.max(qp)
        if not FULL:
            qo = place(QP, 0, row, rows, qi, T, False)
            qs = place(QP, 2, row, rows, qi, T, False)
    shift = shift_of(qp, q0, P0, P1, at, h, qi, T, width, FORM, ONE_SIDED)
    rest = at * tl.cdiv(T, BLOCK) * BLOCK
    line = tl.load(LINE + rest + qi)
    if FORM != PIECES:
        line = line - shift
    delta = tl.load(DELTA + rest + qi)
    q = q_tiles.load([m0, 0])
    x, slope = scaled(tl.dot(k, q.T, input_precision=PRECISION), scale, cap, SOFTCAP, APPROXIMATE)
    x = biased(
        x, qp[None, :], kp[:, None], q0, shift[None, :], P0, P1, at, h, qi[None, :], m0, kj[:, None], n0, T, off, low,
        width, banks, BLOCK, FORM, ONE_SIDED, FULL, BANKED, APPROXIMATE,
    )  # fmt: skip
    p = tl.math.exp2(x - line[None, :])
    if not FULL:
        see = sees(
            qo[None, :], ko[:, None], qs[None, :], ks[:, None], (kj < S)[:, None], origin, window, chunk, prefix,
            CAUSAL, WINDOW, CHUNK, PREFIX, SEGMENT, EMPTY,
        )  # fmt: skip
        p = tl.where(see, p, 0.0)
    do = g_tiles.load([m0, 0])
    dv = tl.dot(p.to(do.dtype), do, dv, input_precision=PRECISION)
    dp = tl.dot(v, do.T, input_precision=PRECISION)
    if FORM == ROW_TABLE and BANKED and not (FULL and ONE_SIDED):
        dp = value_term(dp, qp[None, :] - kp[:, None], qi[None, :], T, low, width, at, P1, ONE_SIDED)
    ds = p * (dp - delta[None, :])
    if LEARNED:
        total += tl.sum(ds, 1)
    if SOFTCAP:
        ds = ds * slope
    dk = tl.dot(ds.to(q.dtype), q, dk, input_precision=PRECISION)
    return dk, dv, total


@triton.jit(do_not_specialize=LENGTHS)
def key_gradients(
    Q, K, V, DO, LINE, DELTA, DK, DV, P0, P1, G1, QP, KP, BOUNDS, qb, qh, qt, kb, kh, kt, vb, vh, vt, gb, gh, gt, xb,
    xh, xt, yb, yh, yt, T, S, blocks, rows, off, origin, low, width, banks, window, chunk, prefix, scale, cap, factor,
    H: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, E: tl.constexpr, D_TILE: tl.constexpr,
    E_TILE: tl.constexpr, BLOCK: tl.constexpr, FORM: tl.constexpr, ONE_SIDED: tl.constexpr, RUN: tl.constexpr,
    FLOAT: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr, CHUNK: tl.constexpr, PREFIX: tl.constexpr,
    SEGMENT: tl.constexpr, EMPTY: tl.constexpr, BANKED: tl.constexpr, SOFTCAP: tl.constexpr, PRECISION: tl.constexpr,
    APPROXIMATE: tl.constexpr, LEARNED: tl.constexpr, TOGETHER: tl.constexpr,
):  # fmt: skip
    """DK and DV of one block of keys, summed over the heads that share them; G1: what a number for each key gets."""
    G: tl.constexpr = H // GROUP
    block, pair = block_and_heads(blocks, TOGETHER)
    b = pair // G
    g = pair % G
    row = tl.where(rows > 1, b, 0).to(tl.int32)
    n0 = block * BLOCK
    kj = n0 + tl.arange(0, BLOCK)
    k_tile = tl.make_tensor_descriptor(K + b * kb + g * kh, [S, D], [kt, 1], [BLOCK, D_TILE])
    v_tile = tl.make_tensor_descriptor(V + b * vb + g * vh, [S, E], [vt, 1], [BLOCK, E_TILE])
    k = k_tile.load([n0, 0])
    v = v_tile.load([n0, 0])
    ko = kj
    ks = kj * 0
    if not RUN:
        ko = place(KP, 0, row, rows, kj, S, False)
        ks = place(KP, 2, row, rows, kj, S, False)
    if EMPTY:  # an empty place may hold anything
        k = tl.where((ko >= 0)[:, None], k, 0.0)
        v = tl.where((ko >= 0)[:, None], v, 0.0)
    bounds = BOUNDS + (row * blocks + block) * 4
    lo, full_lo, full_hi, hi = tl.load(bounds), tl.load(bounds + 1), tl.load(bounds + 2), tl.load(bounds + 3)
    NEAR: tl.constexpr = 1 if BANKED and FORM != PIECES else None  # as above
    dk = tl.zeros([BLOCK, D_TILE], tl.float32)
    dv = tl.zeros([BLOCK, E_TILE], tl.float32)
    for i in range(GROUP):
        h = (g * GROUP + i).to(tl.int32)
        at = b * H + h
        q_tiles = tl.make_tensor_descriptor(Q + b * qb + h.to(tl.int64) * qh, [T, D], [qt, 1], [BLOCK, D_TILE])
        g_tiles = tl.make_tensor_descriptor(DO + b * gb + h.to(tl.int64) * gh, [T, E], [gt, 1], [BLOCK, E_TILE])
        kp = column(KP, P1, row, rows, at, kj, S, FORM, RUN, FLOAT)
        total = tl.zeros([BLOCK], tl.float32)
        if FORM == PIECES and ONE_SIDED:  # noqa: SIM102 (known to the compiler, unlike the next)
            if i == 0:  # where positions run on, heads do not differ in this
                full_lo = easy_queries(full_lo, full_hi, n0, off, at, T, P1, width, BANKED, BLOCK, APPROXIMATE)
        for m0 in tl.range(lo * BLOCK, full_lo * BLOCK, BLOCK, num_stages=NEAR):
            dk, dv, total = key_step(
                k, v, q_tiles, g_tiles, m0, n0, kj, ko, kp, ks, LINE, DELTA, QP, row, rows, at, h, P0, P1, T, S, off,
                low, width, banks, origin, window, chunk, prefix, scale, cap, dk, dv, total, BLOCK, FORM, ONE_SIDED,
                RUN, FLOAT, CAUSAL, WINDOW, CHUNK, PREFIX, SEGMENT, EMPTY, BANKED, SOFTCAP, PRECISION, APPROXIMATE,
                LEARNED, False,
            )  # fmt: skip
        for m0 in tl.range(full_lo * BLOCK, full_hi * BLOCK, BLOCK):
            dk, dv, total = key_step(
                k, v, q_tiles, g_tiles, m0, n0, kj, ko, kp, ks, LINE, DELTA, QP, row, rows, at, h, P0, P1, T, S, off,
                low, width, banks, origin, window, chunk, prefix, scale, cap, dk, dv, total, BLOCK, FORM, ONE_SIDED,
                RUN, FLOAT, CAUSAL, WINDOW, CHUNK, PREFIX, SEGMENT, EMPTY, BANKED, SOFTCAP, PRECISION, APPROXIMATE,
                LEARNED, True,
            )  # fmt: skip
        for m0 in tl.range(full_hi * BLOCK, hi * BLOCK, BLOCK, num_stages=NEAR):
            dk, dv, total = key_step(
                k, v, q_tiles, g_tiles, m0, n0, kj, ko, kp, ks, LINE, DELTA, QP, row, rows, at, h, P0, P1, T, S, off,
                low, width, banks, origin, window, chunk, prefix, scale, cap, dk, dv, total, BLOCK, FORM, ONE_SIDED,
                RUN, FLOAT, CAUSAL, WINDOW, CHUNK, PREFIX, SEGMENT, EMPTY, BANKED, SOFTCAP, PRECISION, APPROXIMATE,
                LEARNED, False,
            )  # fmt: skip
        if LEARNED:
            tl.store(G1 + at * S + kj, total, mask=kj < S)
    inside = (kj < S)[:, None]
    c = tl.arange(0, D_TILE)
    where = DK + b * xb + g * xh + kj.to(tl.int64)[:, None] * xt + c[None, :]
    tl.store(where, (dk * factor).to(DK.dtype.element_ty), mask=inside & (c < D)[None, :])
    c = tl.arange(0, E_TILE)
    where = DV + b * yb + g * yh + kj.to(tl.int64)[:, None] * yt + c[None, :]
    tl.store(where, dv.to(DV.dtype.element_ty), mask=inside & (c < E)[None, :])
