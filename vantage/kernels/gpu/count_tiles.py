"""What forward and backward share of a bias that counts the keys a query cares about (CoPE).

A key's count is the sum of gates from it to the query: tiles are visited from the newest key on, and each row carries
what it has counted so far. Sums within a tile are products with a triangle of ones. Once all rows of a block have
reached the highest count there is, the bias is one number for each query, and nothing is counted any more.
"""

from __future__ import annotations

import triton
import triton.language as tl

from vantage.kernels.gpu.tiles import sees


@triton.jit
def triangle(Q, BLOCK: tl.constexpr, OWN: tl.constexpr):
    """Ones, of Q's type, that sum up the later columns of a tile, with each column its own or without."""
    k = tl.arange(0, BLOCK)[:, None]
    j = tl.arange(0, BLOCK)[None, :]
    later = k >= j if OWN else k > j
    return later.to(Q.dtype.element_ty)


@triton.jit
def sums_of_later(x, ones, PRECISION: tl.constexpr):
    """For each column the sum over later ones. In half precision x goes in two parts: what counts is exact to 2^-16."""
    if ones.dtype == tl.float32:
        y = tl.dot(x, ones, input_precision=PRECISION)
    else:
        high = x.to(ones.dtype)
        low = (x - high.to(tl.float32)).to(ones.dtype)
        y = tl.dot(low, ones, tl.dot(high, ones))
    return y


@triton.jit
def gates_of(
    s, qi, kj, S, off, origin, window, chunk, gate, CAUSAL: tl.constexpr, WINDOW: tl.constexpr, CHUNK: tl.constexpr
):  # fmt: skip
    """How much queries care about keys, 0 where they do not see them; and whether they do. ``gate``: the scale of the
    scores s, in units of log2."""
    see = sees(
        (qi + off)[:, None], kj[None, :], 0, 0, (kj < S)[None, :], origin, window, chunk, 0, CAUSAL, WINDOW, CHUNK,
        False, False, False,
    )  # fmt: skip
    e = tl.math.exp2(-tl.abs(s * gate))
    open_share = 1.0 / (1.0 + e)
    return tl.where(see, tl.where(s < 0, e * open_share, open_share), 0.0), see


@triton.jit
def first_column(x, BLOCK: tl.constexpr):
    """As it stands there, bit by bit: what the next tile goes on from."""
    return tl.sum(tl.where(tl.arange(0, BLOCK)[None, :] == 0, x, 0.0), 1)


@triton.jit
def number_at(BASE, i, IN_PLACE: tl.constexpr):
    """Of half precision, at place i from BASE on. ``IN_PLACE``: each thread asks for what it has places of, where a
    load of Triton's would bring tiles into another layout first, and back."""
    if IN_PLACE and BASE.dtype.element_ty == tl.bfloat16:
        x = tl.inline_asm_elementwise(
            "{.reg .b64 at; .reg .b16 x, none; mad.wide.u32 at, $1, 2, $2; mov.b16 none, 0;"
            "ld.global.nc.b16 x, [at]; mov.b32 $0, {none, x};}",
            "=f,r,l", [i, BASE.to(tl.int64)], dtype=tl.float32, is_pure=True, pack=1,
        )  # fmt: skip
    elif IN_PLACE:
        x = tl.inline_asm_elementwise(
            "{.reg .b64 at; .reg .b16 x; mad.wide.u32 at, $1, 2, $2; ld.global.nc.b16 x, [at]; cvt.f32.f16 $0, x;}",
            "=f,r,l", [i, BASE.to(tl.int64)], dtype=tl.float32, is_pure=True, pack=1,
        )  # fmt: skip
    else:
        x = tl.load(BASE + i).to(tl.float32)
    return x


@triton.jit
def store_at(BASE, i, x, mask, IN_PLACE: tl.constexpr):
    """Float32 numbers, in the same way."""
    if IN_PLACE:
        tl.inline_asm_elementwise(
            "{.reg .b64 at; .reg .pred wanted; setp.ne.s32 wanted, $4, 0; mad.wide.u32 at, $1, 4, $2;"
            "@wanted st.global.f32 [at], $3; mov.b32 $0, 0;}",
            "=r,r,l,f,r", [i, BASE.to(tl.int64), x, mask.to(tl.int32)], dtype=tl.int32, is_pure=False, pack=1,
        )  # fmt: skip
    else:
        tl.store(BASE + i, x, mask=mask)


@triton.jit
def by_count(count, BY, row, P, IN_PLACE: tl.constexpr):
    """What queries have for a count, between whole counts interpolated, and how fast it rises there; the count as a
    whole number and a part. BY has P numbers for each query; ``row``: where those of a query begin."""
    count = tl.minimum(count, P - 1.0)
    below = count.to(tl.int32)
    low = number_at(BY, row + below, IN_PLACE)
    rise = number_at(BY, row + tl.minimum(below + 1, P - 1), IN_PLACE) - low
    part = count - below.to(tl.float32)
    return low + part * rise, rise, below, part
