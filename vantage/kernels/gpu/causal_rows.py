"""Causal self-attention of whole rows whose places run on, as decoders are trained, with a bias that costs little.

forward.py and backward.py do the same for any mask. Here
- all tiles of a block go through one loop, where those have three, each of which fills its pipeline anew;
- tile ranges follow from the diagonal, so that none are read; addresses are pointers, since a program would have to
  write descriptors first;
- a table of distances is one line of numbers for each head, not ready-made tiles: each thread loads its own, with one
  address for a row and constants for columns, where Triton's load brings a tile through shared memory;
- the gradient of queries computes output times gradient itself.
"""

from __future__ import annotations

import triton
import triton.language as tl

from vantage.kernels.gpu.far import log2_of, log_slope, log_terms, moments, reciprocal
from vantage.kernels.gpu.tiles import LN2, LOG, LOG2E, SLOPE, TABLE

SIZES = ("T", "blocks", "beyond", "length", "low", "width")


@triton.jit
def tile_at(X, xt, i, D: tl.constexpr):
    """Rows i of a matrix."""
    return tl.load(X + i.to(tl.int64)[:, None] * xt + tl.arange(0, D)[None, :])


@triton.jit(do_not_specialize=SIZES)
def table_lines(P0, LINES, low, width, length, BLOCK: tl.constexpr, NUMBERS: tl.constexpr):
    """LINES, (H, length): a table by distance from -BLOCK on, which the masked half of a tile on the diagonal reads,
    less its last number, in units of log2."""
    h = tl.program_id(0)
    i = tl.program_id(1) * NUMBERS + tl.arange(0, NUMBERS)
    w = tl.minimum(tl.maximum(i - BLOCK - low, 0), width - 1)
    x = tl.load(P0 + h * width + w) - tl.load(P0 + h * width + width - 1)
    tl.store(LINES + h * length + i, x * LOG2E, mask=i < length)


@triton.jit
def numbers_at(LINE, qi, kj, PTX: tl.constexpr):
    """A line's numbers for the distances between queries and keys, one of which is a column."""
    if PTX:  # the row's part of an address first, so that columns become constants of the loads
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
def head_numbers(P0, P1, h, width, FORM: tl.constexpr):
    """What a form has for a head; of a table: its last number. In units of log2."""
    a = 0.0
    p = 0.0
    if FORM == SLOPE:
        a = tl.load(P0 + h) * LOG2E
    elif FORM == LOG:
        a = tl.load(P0 + h)
        p = tl.load(P1 + h)
    elif FORM == TABLE:
        a = tl.load(P0 + h * width + width - 1) * LOG2E
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


@triton.jit
def with_bias(
    x, qi, kj, q0, middle, along, LINE, a, p, near, BLOCK: tl.constexpr, FORM: tl.constexpr, PTX: tl.constexpr
):
    """Scores with their bias, less ``shift_of``. ``middle``: the distance in the middle of a row of the tile;
    ``along``: what its columns add; ``near``: the tile is not a far one."""
    if FORM == SLOPE:
        x = x + a * (kj - q0).to(tl.float32)
    elif FORM == TABLE:
        if near:
            x = x + numbers_at(LINE, qi, kj, PTX)
    elif FORM == LOG:
        if near:
            x = x - a * log2_of(1.0 + p * tl.maximum(qi - kj, 0).to(tl.float32), PTX)
        else:
            c0, c1, c2, c3 = log_terms(middle, p, BLOCK, PTX)
            x = x - ((a * c0) + along * ((a * c1) + along * ((a * c2) + along * (a * c3))))
    return x


@triton.jit(do_not_specialize=SIZES)
def attend(
    Q, K, V, OUT, LSE, P0, P1, LINES, qb, qh, qt, kb, kh, kt, vb, vh, vt, ob, oh, ot, T, blocks, beyond, length, width,
    scale, H: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr, FORM: tl.constexpr,
    PTX: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    """OUT and LSE of one block of queries of one head. ``SPLIT``: far tiles first, in a loop of their own."""
    block = blocks - 1 - tl.program_id(0) % blocks  # the longest rows first
    at = (tl.program_id(0) // blocks).to(tl.int64)
    b = at // H
    h = (at % H).to(tl.int32)
    g = (h // GROUP).to(tl.int64)
    m0 = block * BLOCK
    qi = m0 + tl.arange(0, BLOCK)
    K += b * kb + g * kh
    V += b * vb + g * vh
    q = tile_at(Q + b * qb + h.to(tl.int64) * qh, qt, qi, D)
    a, p = head_numbers(P0, P1, h, width, FORM)
    line = LINES + h * length + BLOCK
    along = ((BLOCK - 1) / 2 - tl.arange(0, BLOCK).to(tl.float32))[None, :]
    acc = tl.zeros([BLOCK, D], tl.float32)
    m = tl.full([BLOCK], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    far = tl.maximum(m0 + 1 - beyond, 0) // BLOCK * BLOCK  # tiles before this one are
    for phase in tl.static_range(1 + SPLIT):
        for n in tl.range(far if phase == 1 else 0, far if SPLIT and phase == 0 else m0 + BLOCK, BLOCK):
            kj = n + tl.arange(0, BLOCK)
            k = tile_at(K, kt, kj, D)
            x = tl.dot(q, k.T) * scale
            middle = ((qi - n).to(tl.float32) - (BLOCK - 1) / 2)[:, None]
            if SPLIT:
                near = phase == 1
            else:
                near = m0 - n - BLOCK + 1 < beyond
            x = with_bias(x, qi[:, None], kj[None, :], m0, middle, along, line, a, p, near, BLOCK, FORM, PTX)
            if not SPLIT or phase == 1:  # noqa: SIM102 (known to the compiler)
                if n + BLOCK > m0:
                    x = tl.where(kj[None, :] <= qi[:, None], x, float("-inf"))
            top = tl.maximum(m, tl.max(x, 1))
            w = tl.math.exp2(x - top[:, None])
            shrink = tl.math.exp2(m - top)
            total = total * shrink + tl.sum(w, 1)
            v = tile_at(V, vt, kj, D)
            acc = tl.dot(w.to(v.dtype), v, acc * shrink[:, None])
            m = top
    m += shift_of(qi, m0, a, FORM)
    tl.store(LSE + at * T + qi, (m + tl.math.log2(total)) * LN2)
    out = OUT + b * ob + h.to(tl.int64) * oh + qi.to(tl.int64)[:, None] * ot + tl.arange(0, D)[None, :]
    tl.store(out, (acc / total[:, None]).to(OUT.dtype.element_ty))


@triton.jit
def log_sums(ds, qi, kj, middle, along, p, near, one, two, BLOCK: tl.constexpr, PTX: tl.constexpr):
    """What a tile adds, row by row, to the sums of ds times log2(1 + p·distance), and of ds times
    distance / (1 + p·distance)."""
    if near:
        x = tl.maximum(qi - kj, 0).to(tl.float32)
        inner = 1.0 + p * x
        one += tl.sum(ds * log2_of(inner, PTX), 1)
        two += tl.sum(ds * (x * reciprocal(inner, PTX)), 1)
    else:
        c0, c1, c2, c3 = log_terms(middle, p, BLOCK, PTX)
        x0, x1, x2, x3 = moments(ds, along)
        one += c0 * x0 + c1 * x1 + c2 * x2 + c3 * x3
        two += log_slope(middle, x0, x1, x2, p, BLOCK)
    return one, two


@triton.jit(do_not_specialize=SIZES)
def query_gradients(
    Q, K, V, OUT, DO, LSE, GRAD_LSE, DELTA, SHARED, DQ, P0, P1, LINES, G0, G1, qb, qh, qt, kb, kh, kt, vb, vh, vt, ob,
    oh, ot, gb, gh, gt, db, dh, dt, T, blocks, beyond, length, width, scale, factor, H: tl.constexpr,
    GROUP: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr, FORM: tl.constexpr, PTX: tl.constexpr,
    SPLIT: tl.constexpr, LEARNED: tl.constexpr, HAS_GRAD_LSE: tl.constexpr,
):  # fmt: skip
    """DQ of one block of queries of one head, and row by row DELTA: output times its gradient, and SHARED: what all
    gradients of a row's scores are less. G0 and G1: what a row adds to the gradients of a logarithm's two numbers."""
    block = blocks - 1 - tl.program_id(0) % blocks
    at = (tl.program_id(0) // blocks).to(tl.int64)
    b = at // H
    h = (at % H).to(tl.int32)
    g = (h // GROUP).to(tl.int64)
    m0 = block * BLOCK
    qi = m0 + tl.arange(0, BLOCK)
    K += b * kb + g * kh
    V += b * vb + g * vh
    q = tile_at(Q + b * qb + h.to(tl.int64) * qh, qt, qi, D)
    do = tile_at(DO + b * gb + h.to(tl.int64) * gh, gt, qi, D)
    out = tile_at(OUT + b * ob + h.to(tl.int64) * oh, ot, qi, D)
    delta = tl.sum(out.to(tl.float32) * do.to(tl.float32), 1)
    tl.store(DELTA + at * T + qi, delta)
    if HAS_GRAD_LSE:
        delta -= tl.load(GRAD_LSE + at * T + qi)
        tl.store(SHARED + at * T + qi, delta)
    a, p = head_numbers(P0, P1, h, width, FORM)
    line = LINES + h * length + BLOCK
    zero = tl.load(LSE + at * T + qi) * LOG2E - shift_of(qi, m0, a, FORM)  # what scores are measured from
    along = ((BLOCK - 1) / 2 - tl.arange(0, BLOCK).to(tl.float32))[None, :]
    dq = tl.zeros([BLOCK, D], tl.float32)
    one = tl.zeros([BLOCK], tl.float32)
    two = tl.zeros([BLOCK], tl.float32)
    far = tl.maximum(m0 + 1 - beyond, 0) // BLOCK * BLOCK
    for phase in tl.static_range(1 + SPLIT):
        for n in tl.range(far if phase == 1 else 0, far if SPLIT and phase == 0 else m0 + BLOCK, BLOCK):
            kj = n + tl.arange(0, BLOCK)
            k = tile_at(K, kt, kj, D)
            v = tile_at(V, vt, kj, D)
            x = tl.dot(q, k.T) * scale
            dp = tl.dot(do, v.T)
            middle = (qi - n).to(tl.float32) - (BLOCK - 1) / 2
            if SPLIT:
                near = phase == 1
            else:
                near = m0 - n - BLOCK + 1 < beyond
            x = with_bias(x, qi[:, None], kj[None, :], m0, middle[:, None], along, line, a, p, near, BLOCK, FORM, PTX)
            w = tl.math.exp2(x - zero[:, None])
            if not SPLIT or phase == 1:  # noqa: SIM102 (known to the compiler)
                if n + BLOCK > m0:
                    w = tl.where(kj[None, :] <= qi[:, None], w, 0.0)
            ds = w * (dp - delta[:, None])
            if LEARNED and FORM == LOG:
                one, two = log_sums(ds, qi[:, None], kj[None, :], middle, along, p, near, one, two, BLOCK, PTX)
            dq = tl.dot(ds.to(k.dtype), k, dq)
    to = DQ + b * db + h.to(tl.int64) * dh + qi.to(tl.int64)[:, None] * dt + tl.arange(0, D)[None, :]
    tl.store(to, (dq * factor).to(DQ.dtype.element_ty))
    if LEARNED and FORM == LOG:
        tl.store(G0 + at * T + qi, one * -LN2)
        tl.store(G1 + at * T + qi, two * -a)


@triton.jit(do_not_specialize=SIZES)
def key_gradients(
    Q, K, V, DO, LSE, SHARED, DK, DV, P0, P1, LINES, qb, qh, qt, kb, kh, kt, vb, vh, vt, gb, gh, gt, xb, xh, xt, yb, yh,
    yt, T, blocks, beyond, length, width, scale, factor, H: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr,
    BLOCK: tl.constexpr, FORM: tl.constexpr, PTX: tl.constexpr,
):  # fmt: skip
    """DK and DV of one block of keys, summed over the heads that share them. Tiles stand on their side."""
    G: tl.constexpr = H // GROUP
    block = tl.program_id(0) % blocks
    pair = (tl.program_id(0) // blocks).to(tl.int64)
    b = pair // G
    g = pair % G
    n0 = block * BLOCK
    kj = n0 + tl.arange(0, BLOCK)
    k = tile_at(K + b * kb + g * kh, kt, kj, D)
    v = tile_at(V + b * vb + g * vh, vt, kj, D)
    along = (tl.arange(0, BLOCK).to(tl.float32) - (BLOCK - 1) / 2)[None, :]
    dk = tl.zeros([BLOCK, D], tl.float32)
    dv = tl.zeros([BLOCK, D], tl.float32)
    for i in range(GROUP):
        h = (g * GROUP + i).to(tl.int32)
        at = b * H + h
        a, p = head_numbers(P0, P1, h, width, FORM)
        numbers = LINES + h * length + BLOCK
        q_rows = Q + b * qb + h.to(tl.int64) * qh
        do_rows = DO + b * gb + h.to(tl.int64) * gh
        for m0 in tl.range(n0, T, BLOCK):
            qi = m0 + tl.arange(0, BLOCK)
            q = tile_at(q_rows, qt, qi, D)
            do = tile_at(do_rows, gt, qi, D)
            zero = tl.load(LSE + at * T + qi) * LOG2E - shift_of(qi, n0, a, FORM)
            shared = tl.load(SHARED + at * T + qi)
            x = tl.dot(k, q.T) * scale
            dp = tl.dot(v, do.T)
            middle = ((m0 - kj).to(tl.float32) + (BLOCK - 1) / 2)[:, None]
            near = m0 - n0 - BLOCK + 1 < beyond
            x = with_bias(x, qi[None, :], kj[:, None], n0, middle, along, numbers, a, p, near, BLOCK, FORM, PTX)
            w = tl.math.exp2(x - zero[None, :])
            if m0 == n0:
                w = tl.where(kj[:, None] <= qi[None, :], w, 0.0)
            dv = tl.dot(w.to(do.dtype), do, dv)
            ds = w * (dp - shared[None, :])
            dk = tl.dot(ds.to(q.dtype), q, dk)
    c = tl.arange(0, D)[None, :]
    tl.store(DK + b * xb + g * xh + kj.to(tl.int64)[:, None] * xt + c, (dk * factor).to(DK.dtype.element_ty))
    tl.store(DV + b * yb + g * yh + kj.to(tl.int64)[:, None] * yt + c, dv.to(DV.dtype.element_ty))
