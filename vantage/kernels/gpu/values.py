"""A vector that is added to the value of a key by its distance (Shaw et al. 2018), after the forward pass.

Weights are summed by distance, in tiles near the diagonal alone where attention looks back: there the last distance
has what is left of a row. The backward pass needs no pass of its own: what a vector says to a query's gradient is a
table of distances for each query (``value_term``).
"""

from __future__ import annotations

import triton
import triton.language as tl

from vantage.kernels.gpu.forward import masked_scores
from vantage.kernels.gpu.tiles import LENGTHS, LOG2E, column, place, scaled, shift_of


@triton.jit
def by_distance(x, first, d, see, i, T, width, at, PLACES, RUN: tl.constexpr):
    """Adds x to each query's row of PLACES, (B, H, T, width), by distance ``d`` from the table's first on. What is at
    the first distance or before it comes back as a sum; the last distance, which has the rest, is left out."""
    first += tl.sum(tl.where(d <= 0, x, 0.0), 1)
    where = (PLACES + (at * T + i) * width)[:, None] + d.to(tl.int32)
    if RUN:  # every distance has a key of its own, one that is not seen has 0, and what is negative is very large
        last = tl.where(i < T, tl.maximum(width - 2, 0), 0).to(tl.uint32)
        tl.store(where, x, mask=(d - 1).to(tl.uint32) < last[:, None])
    else:  # two keys may stand at one position
        tl.atomic_add(where, x, mask=see & (d > 0) & (d < width - 1) & (i < T)[:, None], sem="relaxed")
    return first


@triton.jit
def value_term(dp, d, i, T, low, width, at, P1, ONE_SIDED: tl.constexpr):
    """The gradient of weights with what the vectors say, less what the last one says where attention looks back: that
    is left out of the row's sum as well."""
    w = tl.minimum(tl.maximum(d - low, 0), width - 1).to(tl.int32)
    row = P1 + (at * T + i) * width
    dp += tl.load(row + w, mask=i < T, other=0.0)
    if ONE_SIDED:
        dp -= tl.load(row + width - 1, mask=i < T, other=0.0)
    return dp


@triton.jit
def _weigh(
    q, k_tiles, n, m0, qi, qo, qp, qs, q0, shift, line, first, KP, row, rows, at, h, P0, P1, MASS, T, S, off, low,
    width, origin, window, chunk, prefix, scale, cap, BLOCK: tl.constexpr, FORM: tl.constexpr, ONE_SIDED: tl.constexpr,
    RUN: tl.constexpr, FLOAT: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr, CHUNK: tl.constexpr,
    PREFIX: tl.constexpr, SEGMENT: tl.constexpr, EMPTY: tl.constexpr, SOFTCAP: tl.constexpr, PRECISION: tl.constexpr,
    APPROXIMATE: tl.constexpr,
):  # fmt: skip
    """The weights of one tile of keys, by distance."""
    kj = n + tl.arange(0, BLOCK)
    kp = column(KP, P1, row, rows, at, kj, S, FORM, RUN, FLOAT)
    s = tl.dot(q, k_tiles.load([n, 0]).T, input_precision=PRECISION)
    s, _ = scaled(s, scale, cap, SOFTCAP, APPROXIMATE)
    s = masked_scores(
        s, kj, kp, n, m0, qi, qo, qp, qs, q0, shift, KP, row, rows, at, h, P0, P1, T, S, off, low, width, 0, origin,
        window, chunk, prefix, BLOCK, FORM, ONE_SIDED, RUN, CAUSAL, WINDOW, CHUNK, PREFIX, SEGMENT, EMPTY, False,
        APPROXIMATE,
    )  # fmt: skip
    p = tl.math.exp2(s - line[:, None])
    return by_distance(p, first, qp[:, None] - kp[None, :] - low, s > float("-inf"), qi, T, width, at, MASS, RUN)


@triton.jit(do_not_specialize=LENGTHS)
def add_values(
    Q, K, OUT, LSE, P0, P1, SINKS, MASS, QP, KP, BOUNDS, qb, qh, qt, kb, kh, kt, ob, oh, ot, sb, sh, st, T, S, blocks,
    rows, off, origin, low, width, window, chunk, prefix, scale, cap, H: tl.constexpr, GROUP: tl.constexpr,
    D: tl.constexpr, E: tl.constexpr, D_TILE: tl.constexpr, E_TILE: tl.constexpr, W_TILE: tl.constexpr,
    BLOCK: tl.constexpr, FORM: tl.constexpr, ONE_SIDED: tl.constexpr, RUN: tl.constexpr, FLOAT: tl.constexpr,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, CHUNK: tl.constexpr, PREFIX: tl.constexpr, SEGMENT: tl.constexpr,
    EMPTY: tl.constexpr, SOFTCAP: tl.constexpr, HAS_SINKS: tl.constexpr, PRECISION: tl.constexpr,
    APPROXIMATE: tl.constexpr,
):  # fmt: skip
    """OUT of one block of queries of one head, with P1, (width, E), by distance. MASS, (B, H, T, width), is 0."""
    block = tl.program_id(0) % blocks
    at = (tl.program_id(0) // blocks).to(tl.int64)
    b = at // H
    h = (at % H).to(tl.int32)
    g = (h // GROUP).to(tl.int64)
    row = tl.where(rows > 1, b, 0).to(tl.int32)
    m0 = block * BLOCK
    q_tile = tl.make_tensor_descriptor(Q + b * qb + h.to(tl.int64) * qh, [T, D], [qt, 1], [BLOCK, D_TILE])
    k_tiles = tl.make_tensor_descriptor(K + b * kb + g * kh, [S, D], [kt, 1], [BLOCK, D_TILE])
    q = q_tile.load([m0, 0])
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
    lse = tl.load(LSE + at * T + qi, mask=inside, other=float("-inf"))
    line = tl.where(lse == float("-inf"), float("inf"), lse) * LOG2E
    bounds = BOUNDS + (row * blocks + block) * 4
    lo, full_lo, full_hi, hi = tl.load(bounds), tl.load(bounds + 1), tl.load(bounds + 2), tl.load(bounds + 3)
    if not ONE_SIDED:  # nothing is far enough
        full_lo = hi
        full_hi = hi
    first = tl.zeros([BLOCK], tl.float32)
    for n in tl.range(lo * BLOCK, full_lo * BLOCK, BLOCK):
        first = _weigh(
            q, k_tiles, n, m0, qi, qo, qp, qs, q0, shift, line - shift, first, KP, row, rows, at, h, P0, P1, MASS, T, S,
            off, low, width, origin, window, chunk, prefix, scale, cap, BLOCK, FORM, ONE_SIDED, RUN, FLOAT, CAUSAL,
            WINDOW, CHUNK, PREFIX, SEGMENT, EMPTY, SOFTCAP, PRECISION, APPROXIMATE,
        )  # fmt: skip
    for n in tl.range(full_hi * BLOCK, hi * BLOCK, BLOCK):
        first = _weigh(
            q, k_tiles, n, m0, qi, qo, qp, qs, q0, shift, line - shift, first, KP, row, rows, at, h, P0, P1, MASS, T, S,
            off, low, width, origin, window, chunk, prefix, scale, cap, BLOCK, FORM, ONE_SIDED, RUN, FLOAT, CAUSAL,
            WINDOW, CHUNK, PREFIX, SEGMENT, EMPTY, SOFTCAP, PRECISION, APPROXIMATE,
        )  # fmt: skip
    whole = tl.where(lse == float("-inf"), 0.0, 1.0)
    if HAS_SINKS:
        sink = tl.load(SINKS + b * sb + h * sh + qi.to(tl.int64) * st, mask=inside, other=0.0).to(tl.float32) * LOG2E
        whole -= tl.math.exp2(sink - line)
    tl.debug_barrier()  # what other threads have put into MASS is there for all
    w = tl.arange(0, W_TILE)
    mass = tl.load(
        MASS + (at * T + qi)[:, None] * width + w[None, :], mask=inside[:, None] & (w < width)[None, :], other=0.0
    )
    mass = tl.where((w == 0)[None, :], first[:, None], mass)
    mass = tl.where(
        (w == width - 1)[None, :], (whole - tl.sum(tl.where((w < width - 1)[None, :], mass, 0.0), 1))[:, None], mass
    )
    c = tl.arange(0, E_TILE)
    vectors = tl.load(P1 + w[:, None] * E + c[None, :], mask=(w < width)[:, None] & (c < E)[None, :], other=0.0)
    kind = OUT.dtype.element_ty
    out = OUT + b * ob + h.to(tl.int64) * oh + qi.to(tl.int64)[:, None] * ot + c[None, :]
    seen = inside[:, None] & (c < E)[None, :]
    more = tl.dot(mass.to(kind), vectors.to(kind), input_precision=PRECISION)
    tl.store(out, (tl.load(out, mask=seen, other=0.0).to(tl.float32) + more).to(kind), mask=seen)
