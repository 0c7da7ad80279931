"""Logarithms and powers of distances: number by number, and for tiles far from the diagonal as one cubic for each row.

In a far tile distances differ little from the one in its middle, so that a series of four terms is enough. Its next
two terms are put into the others (Chebyshev's economisation). From four blocks away on that is within 7e-6 of log2.
"""

from __future__ import annotations

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def log2_of(x, APPROXIMATE: tl.constexpr):
    """The special function unit's, within 2^-22, or Triton's own, which is some fifteen multiplications."""
    if APPROXIMATE:
        y = tl.inline_asm_elementwise("lg2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)
    else:
        y = tl.math.log2(x)
    return y


@triton.jit
def reciprocal(x, APPROXIMATE: tl.constexpr):
    """The special function unit's, within 1 in 2^23, or a division, which is some ten instructions."""
    if APPROXIMATE:
        y = tl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)
    else:
        y = 1.0 / x
    return y


@triton.jit
def middle_and_along(qp, kp, m0, n0, off, BLOCK: tl.constexpr):
    """Where positions run on: the distances of a tile as one number for each row and one for each column, less than
    BLOCK / 2. A row is a query, or a key where tiles stand on their side."""
    if qp.shape[0] > 1:
        middle = (qp - n0).to(tl.float32) - (BLOCK - 1) / 2
        along = (BLOCK - 1) / 2 - tl.arange(0, BLOCK).to(tl.float32)
    else:
        middle = (m0 + off - kp).to(tl.float32) + (BLOCK - 1) / 2
        along = tl.arange(0, BLOCK).to(tl.float32) - (BLOCK - 1) / 2
    return middle, along[None, :]


@triton.jit
def cubic(a, c0, c1, c2, c3):
    return c0 + a * (c1 + a * (c2 + a * c3))


@triton.jit
def log_terms(middle, p, BLOCK: tl.constexpr, APPROXIMATE: tl.constexpr):
    """Of log2(1 + p·(middle + along)), as a cubic in ``along``."""
    whole = 1.0 + p * middle
    u = p / whole
    uu = u * u
    more = uu * (BLOCK * BLOCK / 16 * LOG2E)
    c0 = log2_of(whole, APPROXIMATE) + uu * uu * (BLOCK * BLOCK * BLOCK * BLOCK / 512 * LOG2E)
    return c0, u * LOG2E, uu * (-LOG2E / 2 - more), uu * u * (LOG2E / 3 + more)


@triton.jit
def power_terms(middle, p, BLOCK: tl.constexpr, APPROXIMATE: tl.constexpr):
    """Of (middle + along)^p, as a cubic in ``along``."""
    u = 1.0 / middle
    half = u * (BLOCK / 2)
    hh = half * half
    b2 = p * (p - 1.0) / 2
    b3 = b2 * (p - 2.0) / 3
    b4 = b3 * (p - 3.0) / 4
    b5 = b4 * (p - 4.0) / 5
    whole = tl.math.exp2(p * log2_of(middle, APPROXIMATE))
    c0 = whole * (1.0 - b4 / 8 * hh * hh)
    c1 = whole * u * (p - b5 * (5 / 16) * hh * hh)
    c2 = whole * u * u * (b2 + b4 * hh)
    c3 = whole * u * u * u * (b3 + b5 * (5 / 4) * hh)
    return c0, c1, c2, c3


@triton.jit
def moments(ds, along):
    """Row sums of ds times powers of ``along``: what a tile adds to any polynomial in it."""
    squared = along * along
    return tl.sum(ds, 1), tl.sum(ds * along, 1), tl.sum(ds * squared, 1), tl.sum(ds * (squared * along), 1)


@triton.jit
def log_slope(middle, m0, m1, m2, p, BLOCK: tl.constexpr):
    """Row sums of ds times the derivative of log(1 + p·distance) by p, which is distance / (1 + p·distance): in a far
    tile a parabola in ``along``. ``m0`` to ``m2`` are ``moments``; ``middle`` has one number a row."""
    w = 1.0 / (1.0 + p * middle)
    half = p * w * (BLOCK / 2)
    hh = half * half
    c0 = middle + w * (BLOCK / 16) * half * hh
    c1 = w * (1.0 + 0.75 * hh)
    c2 = -p * w * w * (1.0 + hh)
    return w * (c0 * m0 + c1 * m1 + c2 * m2)
