"""What forward and backward share of a tile: who sees whom, and the bias. Scores are in units of log2."""

from __future__ import annotations

import triton
import triton.language as tl

from vantage.kernels.gpu.far import cubic, log2_of, log_terms, middle_and_along, power_terms
from vantage.kernels.gpu.pieces import HEADER, with_pieces

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)
# What a kernel is told at run time. Triton would compile anew where one of them is 1 or a multiple of 16.
LENGTHS = ("T", "S", "blocks", "rows", "off", "origin", "low", "width", "banks", "window", "chunk", "prefix")
# the forms of spec/forms.py, by number
NONE, SLOPE, LOG, POWER, TABLE, ROW_TABLE, QUERY_AND_KEY, PIECES = (tl.constexpr(i) for i in range(8))


@triton.jit
def block_and_heads(blocks, TOGETHER: tl.constexpr):
    """What a program works on: block by block of so many heads at once, so that the longest rows of all of these come
    first; of heads one after the other the last one's longest would be waited for."""
    within = tl.program_id(0) % (blocks * TOGETHER)
    heads = tl.program_id(0) // (blocks * TOGETHER) * TOGETHER + within % TOGETHER
    return within // TOGETHER, heads.to(tl.int64)


@triton.jit
def floor_div(x, BLOCK: tl.constexpr):
    """Of a number that may be negative, where a division of whole numbers rounds towards 0; ``BLOCK`` divides 2^30."""
    return (x + 1073741824) // BLOCK - 1073741824 // BLOCK


@triton.jit
def place(PLACES, which: tl.constexpr, row, rows, i, n, FLOAT: tl.constexpr):
    """Order (0), position (1) or segment (2) of tokens i, -1 behind the last; PLACES is (3, rows, n)."""
    x = tl.load(PLACES + (which * rows + row).to(tl.int64) * n + i, mask=i < n, other=-1)
    if FLOAT:
        x = tl.where(i < n, x.to(tl.float32, bitcast=True), 0.0)
    return x


@triton.jit
def sees(
    qo, ko, qs, ks, inside, origin, window, chunk, prefix,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, CHUNK: tl.constexpr, PREFIX: tl.constexpr,
    SEGMENT: tl.constexpr, EMPTY: tl.constexpr,
):  # fmt: skip
    """Whether queries see keys, from orders and segments that broadcast. ``origin`` is the rank of order 0."""
    see = inside
    if CAUSAL:
        see = see & (ko <= qo)
    if WINDOW:
        see = see & (qo - ko < window) & (ko - qo < window)
    if CHUNK:  # chunks are told apart by where they start
        see = see & (qo - (qo + origin - qs) % chunk == ko - (ko + origin - ks) % chunk)
    if PREFIX:
        see = see | ((ko + origin - ks < prefix) & inside)
    if SEGMENT:
        see = see & (qs == ks)
    if EMPTY:
        see = see & (qo >= 0) & (ko >= 0)
    return see


@triton.jit
def scaled(s, scale, cap, SOFTCAP: tl.constexpr, APPROXIMATE: tl.constexpr):
    """Scores in units of log2, and the derivative of the cap. ``scale`` and ``cap`` are those of ``unit``."""
    slope = 1.0
    if SOFTCAP:
        x = s * scale
        if APPROXIMATE:
            t = tl.inline_asm_elementwise(
                "tanh.approx.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
            )
        else:
            e = tl.math.exp2(-2.0 * LOG2E * tl.abs(x))
            t = (1.0 - e) / (1.0 + e)
            t = tl.where(x < 0, -t, t)
        slope = 1.0 - t * t
        s = t * cap
    else:
        s = s * scale
    return s, slope


@triton.jit
def column(KP, P1, row, rows, at, kj, S, FORM: tl.constexpr, RUN: tl.constexpr, FLOAT: tl.constexpr):
    """What the bias reads of keys: their positions, or a number each. Loaded before the product, which hides it."""
    if FORM == QUERY_AND_KEY:
        x = tl.load(P1 + at * S + kj, mask=kj < S, other=0.0)
    elif RUN or FORM == NONE:
        x = kj
    else:
        x = place(KP, 1, row, rows, kj, S, FLOAT)
    return x


@triton.jit
def bias_of(d, P0, P1, at, h, i, T, low, width, FORM: tl.constexpr, APPROXIMATE: tl.constexpr):
    """The bias of distances d (they broadcast). ``at`` is the number of the row and head, i are queries."""
    if FORM == SLOPE:
        x = -tl.load(P0 + h) * LOG2E * tl.abs(d).to(tl.float32)
    elif FORM == LOG:
        x = -tl.load(P0 + h) * log2_of(1.0 + tl.load(P1 + h) * tl.abs(d).to(tl.float32), APPROXIMATE)
    elif FORM == POWER:
        far = tl.abs(d).to(tl.float32)
        raised = tl.math.exp2(tl.load(P1 + h) * log2_of(tl.where(far > 0, far, 1.0), APPROXIMATE))
        x = -tl.load(P0 + h) * LOG2E * tl.where(far > 0, raised, 0.0)
    else:
        w = tl.minimum(tl.maximum(d - low, 0), width - 1).to(tl.int32)
        if FORM == TABLE:
            x = tl.load(P0 + h * width + w) * LOG2E
        else:
            x = tl.load(P0 + (at * T + i) * width + w, mask=i < T, other=0.0) * LOG2E
    return x


@triton.jit
def shift_of(qp, q0, P0, P1, at, h, i, T, width, FORM: tl.constexpr, ONE_SIDED: tl.constexpr):
    """What every visible key of a query gets alike (far keys, where attention looks back): softmax does not see it, so
    it is left out of the tiles and put back into the log-sum-exp. One-sided: distances of full tiles are not negative.

    For a function in pieces: the number that makes a query's logarithms ratios. Nothing is put back there.
    """
    x = (i * 0).to(tl.float32)
    if FORM == SLOPE and ONE_SIDED:
        x = -tl.load(P0 + h) * LOG2E * (qp - q0).to(tl.float32)
    elif FORM == TABLE and ONE_SIDED:
        x = x + tl.load(P0 + h * width + width - 1) * LOG2E
    elif FORM == ROW_TABLE and ONE_SIDED:
        x = tl.load(P0 + (at * T + i) * width + width - 1, mask=i < T, other=0.0) * LOG2E
    elif FORM == QUERY_AND_KEY:
        x = tl.load(P0 + at * T + i, mask=i < T, other=0.0) * LOG2E
    elif FORM == PIECES:  # the table has one row more than there are break points
        x = tl.load(P1 + HEADER + width - 1 + at * T + i, mask=i < T, other=0.0)
    return x


@triton.jit
def far_bias(
    qp, kp, m0, n0, off, P0, P1, h, BLOCK: tl.constexpr, FORM: tl.constexpr, APPROXIMATE: tl.constexpr
):  # fmt: skip
    """The bias of a logarithm or a power, its sign turned, in a tile far from the diagonal."""
    middle, along = middle_and_along(qp, kp, m0, n0, off, BLOCK)
    a, p = tl.load(P0 + h), tl.load(P1 + h)
    if FORM == LOG:
        c0, c1, c2, c3 = log_terms(middle, p, BLOCK, APPROXIMATE)
    else:
        a *= LOG2E
        c0, c1, c2, c3 = power_terms(middle, p, BLOCK, APPROXIMATE)
    return cubic(along, a * c0, a * c1, a * c2, a * c3)


@triton.jit
def biased(
    x, qp, kp, q0, shift, P0, P1, at, h, i, m0, kj, n0, T, off, low, width, banks,
    BLOCK: tl.constexpr, FORM: tl.constexpr, ONE_SIDED: tl.constexpr, FULL: tl.constexpr, BANKED: tl.constexpr,
    APPROXIMATE: tl.constexpr,
):  # fmt: skip
    """Scores with their bias, less the query's ``shift``. A full tile of a one-sided form needs hardly anything.

    A banked table has the biases of whole tiles in P1, (H, banks, BLOCK, BLOCK), the first for queries a block behind.
    """
    if FORM == QUERY_AND_KEY:
        x = x + kp * LOG2E
    elif FORM == SLOPE and FULL and ONE_SIDED:
        x = x + tl.load(P0 + h) * LOG2E * (kp - q0).to(tl.float32)
    elif FORM == TABLE and BANKED and not FULL:
        bank = tl.maximum(tl.minimum((m0 - n0) // BLOCK + floor_div(off, BLOCK) + 1, banks - 1), 0)
        x = x + tl.load(P1 + ((h * banks + bank) * BLOCK + i - m0) * BLOCK + kj - n0)
    elif FORM == PIECES:
        x, _, _, _ = with_pieces(
            x, qp, kp, shift, P0, P1, at, h, m0, n0, T, off, width, BLOCK, BANKED, ONE_SIDED, FULL and ONE_SIDED,
            APPROXIMATE,
        )  # fmt: skip
    elif (FORM == LOG or FORM == POWER) and FULL and ONE_SIDED:  # noqa: SIM109
        x = x - far_bias(qp, kp, m0, n0, off, P0, P1, h, BLOCK, FORM, APPROXIMATE)
    elif FORM == LOG or FORM == POWER:  # noqa: SIM109
        x = x + bias_of(qp - kp, P0, P1, at, h, i, T, low, width, FORM, APPROXIMATE)
    elif FORM > 0 and not (FULL and ONE_SIDED):
        x = x + bias_of(qp - kp, P0, P1, at, h, i, T, low, width, FORM, APPROXIMATE)
        if ONE_SIDED:
            x = x - shift
    return x
