"""Candidates for the kernels of causal self-attention over contiguous positions, as decoders train.

They compute what ``vantage/kernels/gpu/forward.py`` and ``backward.py`` do for any mask. What is different:
- All tiles of a block go through one loop (``SPLIT`` 0) or two, where those have three: a pipeline is filled less
  often, which should count where rows are short.
- Tile ranges follow from the diagonal: no list is read. ``ROWS`` and ``COLS`` of a tile may differ.
- Pointers instead of tensor descriptors, which each program would have to write first.
- A table of distances is one line for each head, and not ready-made tiles. With ``LOOKUP`` each thread loads its own
  numbers, with one address for a row and constants for columns; Triton's load brings a tile through shared memory.
- The gradient of queries computes output times gradient itself, so that one launch less is needed.
- ``PRODUCT``: the sums of a logarithm's gradient in far tiles are a product with powers of the place in the tile.
"""

from __future__ import annotations

import triton
import triton.language as tl

from vantage.kernels.gpu.far import log2_of, log_terms, reciprocal
from vantage.kernels.gpu.tiles import LN2, LOG, LOG2E, SLOPE, TABLE

SIZES = ("T", "blocks", "beyond", "width")
BEFORE = tl.constexpr(128)  # numbers of a line before distance 0, for the masked half of a tile on the diagonal


@triton.jit
def tile_at(X, xt, i, T, W: tl.constexpr, EVEN: tl.constexpr):
    """Rows i of a matrix, (rows, W); 0 behind the last."""
    where = X + i.to(tl.int64)[:, None] * xt + tl.arange(0, W)[None, :]
    if EVEN:
        x = tl.load(where)
    else:
        x = tl.load(where, mask=(i < T)[:, None], other=0.0)
    return x


@triton.jit
def numbers_at(X, i, T, EVEN: tl.constexpr):
    if EVEN:
        x = tl.load(X + i)
    else:
        x = tl.load(X + i, mask=i < T, other=0.0)
    return x


@triton.jit
def line_at(LINE, qi, kj, LOOKUP: tl.constexpr):
    """Numbers of the distances between queries and keys."""
    if LOOKUP:  # the row's part of an address first, so that columns become constants of the loads
        base = LINE.to(tl.int64)
        if qi.shape[0] > 1:
            where = (base + qi.to(tl.int64) * 4) - kj.to(tl.int64) * 4
        else:
            where = (base - kj.to(tl.int64) * 4) + qi.to(tl.int64) * 4
        x = tl.inline_asm_elementwise("ld.global.nc.f32 $0, [$1];", "=f,l", [where], tl.float32, is_pure=True, pack=1)
    else:
        x = tl.load(LINE + qi - kj)
    return x


@triton.jit
def with_bias(
    x, qi, kj, q0, middle, along, LINES, h, a, p, width, near, WIDTH: tl.constexpr, FORM: tl.constexpr,
    APPROXIMATE: tl.constexpr, LOOKUP: tl.constexpr,
):  # fmt: skip
    """Scores with their bias, less what all keys of a query get alike. ``middle``: the distance in the middle of a row
    of the tile; ``along``: what its columns add; ``near``: the tile is not far."""
    if FORM == SLOPE:
        x = x + a * (kj - q0).to(tl.float32)
    elif FORM == TABLE:
        if near:
            x = x + line_at(LINES + h * width + BEFORE, qi, kj, LOOKUP)
    elif FORM == LOG:
        if near:
            x = x - a * log2_of(1.0 + p * tl.maximum(qi - kj, 0).to(tl.float32), APPROXIMATE)
        else:
            c0, c1, c2, c3 = log_terms(middle, p, WIDTH, APPROXIMATE)
            x = x - ((a * c0) + along * ((a * c1) + along * ((a * c2) + along * (a * c3))))
    return x


@triton.jit
def head_numbers(P0, P1, h, FORM: tl.constexpr):
    """What a form says of a head; a table: its last number, in units of log2."""
    a = 0.0
    p = 0.0
    if FORM == SLOPE:
        a = tl.load(P0 + h) * LOG2E
    elif FORM == LOG:
        a = tl.load(P0 + h)
        p = tl.load(P1 + h)
    elif FORM == TABLE:
        a = tl.load(P1 + h)
    return a, p


@triton.jit
def shift_of(i, q0, a, FORM: tl.constexpr):
    """What every key of a query gets alike, which tiles leave out."""
    x = (i * 0).to(tl.float32)
    if FORM == SLOPE:
        x = a * (q0 - i).to(tl.float32)
    elif FORM == TABLE:
        x = x + a
    return x


@triton.jit(do_not_specialize=SIZES)
def attend(
    Q, K, V, OUT, LSE, P0, P1, LINES, qb, qh, qt, kb, kh, kt, vb, vh, vt, ob, oh, ot, T, blocks, beyond, width, scale,
    H: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
    FORM: tl.constexpr, EVEN: tl.constexpr, APPROXIMATE: tl.constexpr, LOOKUP: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    """One block of queries of one head."""
    block = blocks - 1 - tl.program_id(0) % blocks  # the longest rows first
    at = (tl.program_id(0) // blocks).to(tl.int64)
    b = at // H
    h = (at % H).to(tl.int32)
    g = (h // GROUP).to(tl.int64)
    m0 = block * ROWS
    qi = m0 + tl.arange(0, ROWS)
    K += b * kb + g * kh
    V += b * vb + g * vh
    q = tile_at(Q + b * qb + h.to(tl.int64) * qh, qt, qi, T, D, EVEN)
    a, p = head_numbers(P0, P1, h, FORM)
    along = ((COLS - 1) / 2 - tl.arange(0, COLS).to(tl.float32))[None, :]
    acc = tl.zeros([ROWS, D], tl.float32)
    m = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    hi = tl.minimum(m0 + ROWS, T)
    far = tl.maximum(m0 + 1 - beyond, 0) // COLS * COLS  # tiles before this one are
    for phase in tl.static_range(1 + SPLIT):
        for n in tl.range(far if phase == 1 else 0, far if SPLIT and phase == 0 else hi, COLS):
            kj = n + tl.arange(0, COLS)
            k = tile_at(K, kt, kj, T, D, EVEN)
            s = tl.dot(q, k.T) * scale
            middle = ((qi - n).to(tl.float32) - (COLS - 1) / 2)[:, None]
            if SPLIT:
                near = phase == 1
            else:
                near = m0 - n - COLS + 1 < beyond
            s = with_bias(
                s, qi[:, None], kj[None, :], m0, middle, along, LINES, h, a, p, width, near, COLS, FORM, APPROXIMATE,
                LOOKUP,
            )  # fmt: skip
            if not SPLIT or phase == 1:  # noqa: SIM102 (known to the compiler)
                if n + COLS > m0:
                    s = tl.where(kj[None, :] <= qi[:, None], s, float("-inf"))
            top = tl.maximum(m, tl.max(s, 1))
            w = tl.math.exp2(s - top[:, None])
            shrink = tl.math.exp2(m - top)
            total = total * shrink + tl.sum(w, 1)
            v = tile_at(V, vt, kj, T, D, EVEN)
            acc = tl.dot(w.to(v.dtype), v, acc * shrink[:, None])
            m = top
    m += shift_of(qi, m0, a, FORM)
    inside = qi < T
    tl.store(LSE + at * T + qi, (m + tl.math.log2(total)) * LN2, mask=inside)
    out = OUT + b * ob + h.to(tl.int64) * oh + qi.to(tl.int64)[:, None] * ot + tl.arange(0, D)[None, :]
    tl.store(out, (acc / total[:, None]).to(OUT.dtype.element_ty), mask=inside[:, None])


@triton.jit
def powers_of(along, dtype: tl.constexpr):
    """(columns, 16): 1, along, its square in two parts and its cube in three, each of which bfloat16 has exactly."""
    c = tl.arange(0, 16)[None, :]
    x = tl.where(c == 0, 1.0, tl.where(c == 1, along, tl.where(c < 4, along * along, along * along * along)))
    high = x.to(dtype).to(tl.float32)
    rest = (x - high).to(dtype).to(tl.float32)
    x = tl.where((c == 3) | (c == 5), rest, tl.where(c == 6, x - high - rest, tl.where(c > 6, 0.0, high)))
    return x.to(dtype)


@triton.jit
def by_power(c0, c1, c2, c3):
    """(rows, 16): the terms of a cubic, where ``powers_of`` has its powers."""
    c = tl.arange(0, 16)[None, :]
    return tl.where(c == 0, c0, tl.where(c == 1, c1, tl.where(c < 4, c2, c3)))


@triton.jit
def log_sums(
    ds, rounded, powers, qi, kj, middle, along, p, near, one, two, cubics, parabolas, WIDTH: tl.constexpr,
    APPROXIMATE: tl.constexpr, PRODUCT: tl.constexpr,
):  # fmt: skip
    """What a tile adds, row by row, to the sums of ds times log2(1 + p·distance), and of ds times
    distance / (1 + p·distance)."""
    if near:
        x = tl.maximum(qi - kj, 0).to(tl.float32)
        inner = 1.0 + p * x
        one += tl.sum(ds * log2_of(inner, APPROXIMATE), 1)
        two += tl.sum(ds * (x * reciprocal(inner, APPROXIMATE)), 1)
    else:
        u0, u1, u2, u3 = log_terms(middle, p, WIDTH, APPROXIMATE)
        w = reciprocal(1.0 + p * middle, APPROXIMATE)
        half = p * w * (WIDTH / 2)
        hh = half * half
        c0 = w * (middle + w * (WIDTH / 16) * half * hh)
        c1 = w * w * (1.0 + 0.75 * hh)
        c2 = -p * w * w * w * (1.0 + hh)
        if PRODUCT:
            sums = tl.dot(rounded, powers)
            cubics += sums * by_power(u0[:, None], u1[:, None], u2[:, None], u3[:, None])
            parabolas += sums * by_power(c0[:, None], c1[:, None], c2[:, None], 0.0)
        else:
            x0, x1 = tl.sum(ds, 1), tl.sum(ds * along, 1)
            squared = along * along
            x2, x3 = tl.sum(ds * squared, 1), tl.sum(ds * (squared * along), 1)
            one += u0 * x0 + u1 * x1 + u2 * x2 + u3 * x3
            two += c0 * x0 + c1 * x1 + c2 * x2
    return one, two, cubics, parabolas


@triton.jit(do_not_specialize=SIZES)
def query_gradients(
    Q, K, V, OUT, DO, LSE, DELTA, DQ, P0, P1, LINES, G0, G1, qb, qh, qt, kb, kh, kt, vb, vh, vt, ob, oh, ot, gb, gh, gt,
    db, dh, dt, T, blocks, beyond, width, scale, factor, H: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr, FORM: tl.constexpr, EVEN: tl.constexpr, APPROXIMATE: tl.constexpr,
    LOOKUP: tl.constexpr, SPLIT: tl.constexpr, PRODUCT: tl.constexpr,
):  # fmt: skip
    """DQ of one block of queries of one head, and DELTA: output times its gradient, row by row. G0 and G1: what a row
    adds to the gradients of a logarithm's two numbers."""
    block = blocks - 1 - tl.program_id(0) % blocks
    at = (tl.program_id(0) // blocks).to(tl.int64)
    b = at // H
    h = (at % H).to(tl.int32)
    g = (h // GROUP).to(tl.int64)
    m0 = block * ROWS
    qi = m0 + tl.arange(0, ROWS)
    inside = qi < T
    K += b * kb + g * kh
    V += b * vb + g * vh
    q = tile_at(Q + b * qb + h.to(tl.int64) * qh, qt, qi, T, D, EVEN)
    do = tile_at(DO + b * gb + h.to(tl.int64) * gh, gt, qi, T, D, EVEN)
    out = tile_at(OUT + b * ob + h.to(tl.int64) * oh, ot, qi, T, D, EVEN)
    delta = tl.sum(out.to(tl.float32) * do.to(tl.float32), 1)
    tl.store(DELTA + at * T + qi, delta, mask=inside)
    a, p = head_numbers(P0, P1, h, FORM)
    line = numbers_at(LSE + at * T, qi, T, EVEN) * LOG2E - shift_of(qi, m0, a, FORM)
    along = ((COLS - 1) / 2 - tl.arange(0, COLS).to(tl.float32))[None, :]
    dq = tl.zeros([ROWS, D], tl.float32)
    one = tl.zeros([ROWS], tl.float32)
    two = tl.zeros([ROWS], tl.float32)
    cubics = tl.zeros([ROWS, 16], tl.float32)
    parabolas = tl.zeros([ROWS, 16], tl.float32)
    powers = powers_of(((COLS - 1) / 2 - tl.arange(0, COLS).to(tl.float32))[:, None], Q.dtype.element_ty)
    hi = tl.minimum(m0 + ROWS, T)
    far = tl.maximum(m0 + 1 - beyond, 0) // COLS * COLS
    for phase in tl.static_range(1 + SPLIT):
        for n in tl.range(far if phase == 1 else 0, far if SPLIT and phase == 0 else hi, COLS):
            kj = n + tl.arange(0, COLS)
            k = tile_at(K, kt, kj, T, D, EVEN)
            v = tile_at(V, vt, kj, T, D, EVEN)
            x = tl.dot(q, k.T) * scale
            dp = tl.dot(do, v.T)
            middle = (qi - n).to(tl.float32) - (COLS - 1) / 2
            if SPLIT:
                near = phase == 1
            else:
                near = m0 - n - COLS + 1 < beyond
            x = with_bias(
                x, qi[:, None], kj[None, :], m0, middle[:, None], along, LINES, h, a, p, width, near, COLS, FORM,
                APPROXIMATE, LOOKUP,
            )  # fmt: skip
            w = tl.math.exp2(x - line[:, None])
            if not SPLIT or phase == 1:  # noqa: SIM102 (known to the compiler)
                if n + COLS > m0:
                    w = tl.where(kj[None, :] <= qi[:, None], w, 0.0)
            ds = w * (dp - delta[:, None])
            if FORM == LOG:
                one, two, cubics, parabolas = log_sums(
                    ds, ds.to(k.dtype), powers, qi[:, None], kj[None, :], middle, along, p, near, one, two, cubics,
                    parabolas, COLS, APPROXIMATE, PRODUCT,
                )  # fmt: skip
            dq = tl.dot(ds.to(k.dtype), k, dq)
    to = DQ + b * db + h.to(tl.int64) * dh + qi.to(tl.int64)[:, None] * dt + tl.arange(0, D)[None, :]
    tl.store(to, (dq * factor).to(DQ.dtype.element_ty), mask=inside[:, None])
    if FORM == LOG:
        if PRODUCT:
            one += tl.sum(cubics, 1)
            two += tl.sum(parabolas, 1)
        tl.store(G0 + at * T + qi, one * -LN2, mask=inside)
        tl.store(G1 + at * T + qi, two * -a, mask=inside)


@triton.jit(do_not_specialize=SIZES)
def key_gradients(
    Q, K, V, DO, LSE, DELTA, DK, DV, P0, P1, LINES, qb, qh, qt, kb, kh, kt, vb, vh, vt, gb, gh, gt, xb, xh, xt, yb, yh,
    yt, T, blocks, beyond, width, scale, factor, H: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr, FORM: tl.constexpr, EVEN: tl.constexpr, APPROXIMATE: tl.constexpr,
    LOOKUP: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    """DK and DV of one block of keys, summed over the heads that share them. Tiles stand on their side."""
    G: tl.constexpr = H // GROUP
    block = tl.program_id(0) % blocks
    pair = (tl.program_id(0) // blocks).to(tl.int64)
    b = pair // G
    g = pair % G
    n0 = block * ROWS
    kj = n0 + tl.arange(0, ROWS)
    k = tile_at(K + b * kb + g * kh, kt, kj, T, D, EVEN)
    v = tile_at(V + b * vb + g * vh, vt, kj, T, D, EVEN)
    along = (tl.arange(0, COLS).to(tl.float32) - (COLS - 1) / 2)[None, :]
    dk = tl.zeros([ROWS, D], tl.float32)
    dv = tl.zeros([ROWS, D], tl.float32)
    lo = n0 // COLS * COLS
    far = tl.maximum(tl.minimum(tl.cdiv(n0 + ROWS - 1 + beyond, COLS) * COLS, T), lo)  # tiles from this one on are
    for i in range(GROUP):
        h = (g * GROUP + i).to(tl.int32)
        at = b * H + h
        a, p = head_numbers(P0, P1, h, FORM)
        q_rows = Q + b * qb + h.to(tl.int64) * qh
        do_rows = DO + b * gb + h.to(tl.int64) * gh
        for phase in tl.static_range(1 + SPLIT):
            for m0 in tl.range(far if phase == 1 else lo, far if SPLIT and phase == 0 else T, COLS):
                qi = m0 + tl.arange(0, COLS)
                q = tile_at(q_rows, qt, qi, T, D, EVEN)
                do = tile_at(do_rows, gt, qi, T, D, EVEN)
                line = numbers_at(LSE + at * T, qi, T, EVEN) * LOG2E - shift_of(qi, n0, a, FORM)
                delta = numbers_at(DELTA + at * T, qi, T, EVEN)
                x = tl.dot(k, q.T) * scale
                dp = tl.dot(v, do.T)
                middle = ((m0 - kj).to(tl.float32) + (COLS - 1) / 2)[:, None]
                if SPLIT:
                    near = phase == 0
                else:
                    near = m0 - n0 - ROWS + 1 < beyond
                x = with_bias(
                    x, qi[None, :], kj[:, None], n0, middle, along, LINES, h, a, p, width, near, COLS, FORM,
                    APPROXIMATE, LOOKUP,
                )  # fmt: skip
                w = tl.math.exp2(x - line[None, :])
                if not SPLIT or phase == 0:  # noqa: SIM102 (known to the compiler)
                    if m0 < n0 + ROWS:
                        w = tl.where(kj[:, None] <= qi[None, :], w, 0.0)
                dv = tl.dot(w.to(do.dtype), do, dv)
                ds = w * (dp - delta[None, :])
                dk = tl.dot(ds.to(q.dtype), q, dk)
    inside = (kj < T)[:, None]
    to = DK + b * xb + g * xh + kj.to(tl.int64)[:, None] * xt + tl.arange(0, D)[None, :]
    tl.store(to, (dk * factor).to(DK.dtype.element_ty), mask=inside)
    to = DV + b * yb + g * yh + kj.to(tl.int64)[:, None] * yt + tl.arange(0, D)[None, :]
    tl.store(to, dv.to(DV.dtype.element_ty), mask=inside)
