"""The forward pass: keys in tiles, softmax as it goes (FlashAttention, Dao et al. 2022), the bias as its form.

The tiles that a block of queries visits come in three stretches: masked ones, full ones, masked ones again.
"""

from __future__ import annotations

import triton
import triton.language as tl

from vantage.kernels.gpu.pieces import easy_keys
from vantage.kernels.gpu.tiles import (
    LENGTHS,
    LN2,
    LOG2E,
    PIECES,
    ROW_TABLE,
    TABLE,
    biased,
    block_and_heads,
    column,
    place,
    scaled,
    sees,
    shift_of,
)


@triton.jit
def masked_scores(
    s, kj, kp, n, m0, qi, qo, qp, qs, q0, shift, KP, row, rows, at, h, P0, P1, T, S, off, low, width, banks,
    origin, window, chunk, prefix, BLOCK: tl.constexpr, FORM: tl.constexpr, ONE_SIDED: tl.constexpr, RUN: tl.constexpr,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, CHUNK: tl.constexpr, PREFIX: tl.constexpr, SEGMENT: tl.constexpr,
    EMPTY: tl.constexpr, BANKED: tl.constexpr, APPROXIMATE: tl.constexpr,
):  # fmt: skip
    """The scores of a tile in which some pairs may not see each other."""
    ko = kj
    ks = kj * 0
    if not RUN:
        ko = place(KP, 0, row, rows, kj, S, False)
        ks = place(KP, 2, row, rows, kj, S, False)
    s = biased(
        s, qp[:, None], kp[None, :], q0, shift[:, None], P0, P1, at, h, qi[:, None], m0, kj[None, :], n, T, off, low,
        width, banks, BLOCK, FORM, ONE_SIDED, False, BANKED, APPROXIMATE,
    )  # fmt: skip
    see = sees(
        qo[:, None], ko[None, :], qs[:, None], ks[None, :], (kj < S)[None, :], origin, window, chunk, prefix,
        CAUSAL, WINDOW, CHUNK, PREFIX, SEGMENT, EMPTY,
    )  # fmt: skip
    return tl.where(see, s, float("-inf"))


@triton.jit
def attend_tile(
    q, k_tiles, v_tiles, kp, n, m0, qi, qo, qp, qs, q0, shift, KP, row, rows, at, h, P0, P1, T, S, off, low, width,
    banks, origin, window, chunk, prefix, scale, cap, acc, m, total, BLOCK: tl.constexpr, FORM: tl.constexpr,
    ONE_SIDED: tl.constexpr, RUN: tl.constexpr, FLOAT: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr,
    CHUNK: tl.constexpr, PREFIX: tl.constexpr, SEGMENT: tl.constexpr, EMPTY: tl.constexpr, BANKED: tl.constexpr,
    SOFTCAP: tl.constexpr, PRECISION: tl.constexpr, APPROXIMATE: tl.constexpr, FULL: tl.constexpr,
    MERGED: tl.constexpr, full,
):  # fmt: skip
    """One tile of keys. The output so far, the highest score and the sum of exponentials go in and out."""
    kj = n + tl.arange(0, BLOCK)
    s = tl.dot(q, k_tiles.load([n, 0]).T, input_precision=PRECISION)
    s, _ = scaled(s, scale, cap, SOFTCAP, APPROXIMATE)
    if MERGED:
        if full:
            s = biased(
                s, qp[:, None], kp[None, :], q0, shift[:, None], P0, P1, at, h, qi[:, None], m0, kj[None, :], n, T, off,
                low, width, banks, BLOCK, FORM, ONE_SIDED, True, BANKED, APPROXIMATE,
            )  # fmt: skip
        else:
            s = masked_scores(
                s, kj, kp, n, m0, qi, qo, qp, qs, q0, shift, KP, row, rows, at, h, P0, P1, T, S, off, low, width,
                banks, origin, window, chunk, prefix, BLOCK, FORM, ONE_SIDED, RUN, CAUSAL, WINDOW, CHUNK, PREFIX,
                SEGMENT, EMPTY, BANKED, APPROXIMATE,
            )  # fmt: skip
    elif FULL:
        s = biased(
            s, qp[:, None], kp[None, :], q0, shift[:, None], P0, P1, at, h, qi[:, None], m0, kj[None, :], n, T, off,
            low, width, banks, BLOCK, FORM, ONE_SIDED, True, BANKED, APPROXIMATE,
        )  # fmt: skip
    else:
        s = masked_scores(
            s, kj, kp, n, m0, qi, qo, qp, qs, q0, shift, KP, row, rows, at, h, P0, P1, T, S, off, low, width, banks,
            origin, window, chunk, prefix, BLOCK, FORM, ONE_SIDED, RUN, CAUSAL, WINDOW, CHUNK, PREFIX, SEGMENT, EMPTY,
            BANKED, APPROXIMATE,
        )  # fmt: skip
    top = tl.maximum(m, tl.max(s, 1))
    pivot = top if FULL else tl.where(top == float("-inf"), 0.0, top)  # a row that has seen nothing yet
    p = tl.math.exp2(s - pivot[:, None])
    shrink = tl.math.exp2(m - pivot)
    total = total * shrink + tl.sum(p, 1)
    acc = acc * shrink[:, None]
    v = v_tiles.load([n, 0])
    if not FULL and EMPTY:  # an empty place may hold anything, and 0 times NaN is NaN
        v = tl.where((place(KP, 0, row, rows, kj, S, False) >= 0)[:, None], v, 0.0)
    acc = tl.dot(p.to(v.dtype), v, acc, input_precision=PRECISION)
    return acc, top, total


@triton.jit(do_not_specialize=LENGTHS)
def attend(
    Q, K, V, OUT, LSE, P0, P1, SINKS, QP, KP, BOUNDS, qb, qh, qt, kb, kh, kt, vb, vh, vt, ob, oh, ot, sb, sh, st, T,
    S, blocks, rows, off, origin, low, width, banks, window, chunk, prefix, scale, cap, H: tl.constexpr,
    GROUP: tl.constexpr, D: tl.constexpr, E: tl.constexpr, D_TILE: tl.constexpr, E_TILE: tl.constexpr,
    BLOCK: tl.constexpr, FORM: tl.constexpr, ONE_SIDED: tl.constexpr, RUN: tl.constexpr, FLOAT: tl.constexpr,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, CHUNK: tl.constexpr, PREFIX: tl.constexpr, SEGMENT: tl.constexpr,
    EMPTY: tl.constexpr, BANKED: tl.constexpr, SOFTCAP: tl.constexpr, HAS_SINKS: tl.constexpr,
    PRECISION: tl.constexpr, APPROXIMATE: tl.constexpr, MERGED: tl.constexpr, TOGETHER: tl.constexpr,
):  # fmt: skip
    """One block of queries of one head."""
    block, at = block_and_heads(blocks, TOGETHER)
    block = blocks - 1 - block  # the longest rows first
    b = at // H
    h = (at % H).to(tl.int32)
    g = (h // GROUP).to(tl.int64)
    row = tl.where(rows > 1, b, 0).to(tl.int32)
    m0 = block * BLOCK
    q_tile = tl.make_tensor_descriptor(Q + b * qb + h.to(tl.int64) * qh, [T, D], [qt, 1], [BLOCK, D_TILE])
    k_tiles = tl.make_tensor_descriptor(K + b * kb + g * kh, [S, D], [kt, 1], [BLOCK, D_TILE])
    v_tiles = tl.make_tensor_descriptor(V + b * vb + g * vh, [S, E], [vt, 1], [BLOCK, E_TILE])
    q = q_tile.load([m0, 0])
    qi = m0 + tl.arange(0, BLOCK)
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
    bounds = BOUNDS + (row * blocks + block) * 4
    lo, full_lo, full_hi, hi = tl.load(bounds), tl.load(bounds + 1), tl.load(bounds + 2), tl.load(bounds + 3)
    if FORM == PIECES and ONE_SIDED:
        full_hi = easy_keys(full_lo, full_hi, m0, off, shift, P1, BANKED, BLOCK, APPROXIMATE)
    # what tables have for a tile would take the room of a second program
    NEAR: tl.constexpr = 2 if FORM == TABLE and BANKED else 1 if FORM == ROW_TABLE else None
    acc = tl.zeros([BLOCK, E_TILE], tl.float32)
    m = tl.full([BLOCK], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    kp = column(KP, P1, row, rows, at, lo * BLOCK + tl.arange(0, BLOCK), S, FORM, RUN, FLOAT)
    if MERGED:
        for n in tl.range(lo * BLOCK, hi * BLOCK, BLOCK):
            ahead = column(KP, P1, row, rows, at, n + BLOCK + tl.arange(0, BLOCK), S, FORM, RUN, FLOAT)
            acc, m, total = attend_tile(
                q, k_tiles, v_tiles, kp, n, m0, qi, qo, qp, qs, q0, shift, KP, row, rows, at, h, P0, P1, T, S, off, low,
                width, banks, origin, window, chunk, prefix, scale, cap, acc, m, total, BLOCK, FORM, ONE_SIDED, RUN,
                FLOAT, CAUSAL, WINDOW, CHUNK, PREFIX, SEGMENT, EMPTY, BANKED, SOFTCAP, PRECISION, APPROXIMATE, False,
                True, (n >= full_lo * BLOCK) & (n < full_hi * BLOCK),
            )  # fmt: skip
            kp = ahead
    else:
        for n in tl.range(lo * BLOCK, full_lo * BLOCK, BLOCK, num_stages=NEAR):
            ahead = column(KP, P1, row, rows, at, n + BLOCK + tl.arange(0, BLOCK), S, FORM, RUN, FLOAT)
            acc, m, total = attend_tile(
                q, k_tiles, v_tiles, kp, n, m0, qi, qo, qp, qs, q0, shift, KP, row, rows, at, h, P0, P1, T, S, off, low,
                width, banks, origin, window, chunk, prefix, scale, cap, acc, m, total, BLOCK, FORM, ONE_SIDED, RUN,
                FLOAT, CAUSAL, WINDOW, CHUNK, PREFIX, SEGMENT, EMPTY, BANKED, SOFTCAP, PRECISION, APPROXIMATE, False,
                False, False,
            )  # fmt: skip
            kp = ahead
        for n in tl.range(full_lo * BLOCK, full_hi * BLOCK, BLOCK):
            ahead = column(KP, P1, row, rows, at, n + BLOCK + tl.arange(0, BLOCK), S, FORM, RUN, FLOAT)
            acc, m, total = attend_tile(
                q, k_tiles, v_tiles, kp, n, m0, qi, qo, qp, qs, q0, shift, KP, row, rows, at, h, P0, P1, T, S, off, low,
                width, banks, origin, window, chunk, prefix, scale, cap, acc, m, total, BLOCK, FORM, ONE_SIDED, RUN,
                FLOAT, CAUSAL, WINDOW, CHUNK, PREFIX, SEGMENT, EMPTY, BANKED, SOFTCAP, PRECISION, APPROXIMATE, True,
                False, True,
            )  # fmt: skip
            kp = ahead
        for n in tl.range(full_hi * BLOCK, hi * BLOCK, BLOCK, num_stages=NEAR):
            ahead = column(KP, P1, row, rows, at, n + BLOCK + tl.arange(0, BLOCK), S, FORM, RUN, FLOAT)
            acc, m, total = attend_tile(
                q, k_tiles, v_tiles, kp, n, m0, qi, qo, qp, qs, q0, shift, KP, row, rows, at, h, P0, P1, T, S, off, low,
                width, banks, origin, window, chunk, prefix, scale, cap, acc, m, total, BLOCK, FORM, ONE_SIDED, RUN,
                FLOAT, CAUSAL, WINDOW, CHUNK, PREFIX, SEGMENT, EMPTY, BANKED, SOFTCAP, PRECISION, APPROXIMATE, False,
                False, False,
            )  # fmt: skip
            kp = ahead
    if FORM != PIECES:
        m = m + shift
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
    out = OUT + b * ob + h.to(tl.int64) * oh + qi.to(tl.int64)[:, None] * ot + c[None, :]
    tl.store(out, acc.to(OUT.dtype.element_ty), mask=inside[:, None] & (c < E)[None, :])
