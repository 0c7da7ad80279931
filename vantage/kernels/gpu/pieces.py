"""A bias that is linear in pieces of a ratio: a logarithm of the distance times a number of the query (FIRE).

P0 is (H, width, 2): slope and offset of each piece. P1 begins with the number in the logarithm and, from HEADER on, has
the break points in rising order, infinite behind the last. In most tiles the ratio stays in one piece or two: a tile
begins with the piece of its lowest ratio, and adds a hinge for each break point up to its highest.
"""

from __future__ import annotations

import triton
import triton.language as tl

from vantage.kernels.gpu.far import LOG2E, cubic, log2_of, log_slope, log_terms, middle_and_along, moments

HEADER = tl.constexpr(4)
GROUP = tl.constexpr(4)  # break points that a far tile may have
TILES_PER_LOOK = tl.constexpr(64)  # tiles that are looked at together
RATIO_TOLERANCE = tl.constexpr(1e-5)  # bounds of a ratio are rounded, and so is the ratio


@triton.jit
def break_points(low, high, least, most, P1, GROUPS: tl.constexpr, APPROXIMATE: tl.constexpr):
    """How many break points lie below all ratios of a tile, and below some; of its lowest and highest distance, and of
    the lowest and highest number of its queries."""
    c = tl.load(P1)
    k = tl.arange(0, GROUPS * GROUP)
    at = tl.load(P1 + HEADER + k)
    lowest = log2_of(1.0 + c * low, APPROXIMATE) * least * (1.0 - RATIO_TOLERANCE)
    highest = log2_of(1.0 + c * high, APPROXIMATE) * most * (1.0 + RATIO_TOLERANCE) + RATIO_TOLERANCE
    return tl.sum((at < lowest).to(tl.int32)), tl.sum((at < highest).to(tl.int32))


@triton.jit
def distance_bounds(qp, kp, m0, n0, off, BLOCK: tl.constexpr, ONE_SIDED: tl.constexpr):
    """The lowest and highest distance of a tile; one-sided: positions run on."""
    if ONE_SIDED:
        behind = (m0 + off - n0).to(tl.float32)
        low = tl.maximum(behind - (BLOCK - 1), 0.0)
        high = tl.maximum(behind + (BLOCK - 1), BLOCK)
    else:
        q_low, q_high = tl.min(qp).to(tl.float32), tl.max(qp).to(tl.float32)
        k_low, k_high = tl.min(kp).to(tl.float32), tl.max(kp).to(tl.float32)
        low = tl.maximum(tl.maximum(q_low - k_high, k_low - q_high), 0.0)
        high = tl.maximum(q_high - k_low, k_high - q_low)
    return low, high


@triton.jit
def logs(
    qp, kp, m0, n0, off, P1, BLOCK: tl.constexpr, FAR: tl.constexpr, APPROXIMATE: tl.constexpr
):  # fmt: skip
    """log2(1 + c·distance) of a tile's pairs."""
    c = tl.load(P1)
    if FAR:
        middle, along = middle_and_along(qp, kp, m0, n0, off, BLOCK)
        c0, c1, c2, c3 = log_terms(middle, c, BLOCK, APPROXIMATE)
        y = cubic(along, c0, c1, c2, c3)
    else:
        y = log2_of(1.0 + c * tl.abs(qp - kp).to(tl.float32), APPROXIMATE)
    return y


@triton.jit
def hinge(y, r, k, P0, P1, h, width):
    """What a break point adds: beyond it the slope is another."""
    bend = tl.load(P0 + (h * width + k + 1) * 2) - tl.load(P0 + (h * width + k) * 2)
    return y + (bend * LOG2E) * tl.maximum(r - tl.load(P1 + HEADER + k), 0.0)


@triton.jit
def add_pieces(x, r, first, last, P0, P1, h, width, FAR: tl.constexpr):
    """Scores with their bias. ``first`` and ``last``: see ``break_points``. A far tile has few of them (``easy_keys``):
    a loop inside the loop over tiles would keep that from loading ahead."""
    piece = P0 + (h * width + first) * 2
    x = x + ((tl.load(piece) * LOG2E) * r + tl.load(piece + 1) * LOG2E)
    if FAR:
        for u in tl.static_range(GROUP // 2):
            if last > first + 2 * u:
                x = hinge(x, r, first + 2 * u, P0, P1, h, width)
                x = hinge(x, r, first + 2 * u + 1, P0, P1, h, width)
    else:
        for k in range(first, last):
            x = hinge(x, r, k, P0, P1, h, width)
    return x


@triton.jit
def crowded(behind, least, most, P1, GROUPS: tl.constexpr, BLOCK: tl.constexpr, APPROXIMATE: tl.constexpr):
    """Whether tiles, their queries so far behind their keys, have more break points than a far tile may have."""
    c = tl.load(P1)
    lowest = log2_of(1.0 + c * tl.maximum(behind - (BLOCK - 1), 0.0), APPROXIMATE) * least * (1.0 - RATIO_TOLERANCE)
    highest = log2_of(1.0 + c * (behind + (BLOCK - 1)), APPROXIMATE) * most * (1.0 + RATIO_TOLERANCE) + RATIO_TOLERANCE
    count = (behind * 0).to(tl.int32)
    for k in range(GROUPS * GROUP):
        t = tl.load(P1 + HEADER + k)
        count += ((t >= lowest) & (t < highest)).to(tl.int32)
    return count > GROUP


@triton.jit
def easy_keys(
    start, end, m0, off, by_query, P1, GROUPS: tl.constexpr, BLOCK: tl.constexpr, APPROXIMATE: tl.constexpr
):  # fmt: skip
    """Up to which tile of keys, of those from ``start`` to ``end``, none is crowded."""
    stop = end
    for first in range(start, end, TILES_PER_LOOK):
        n = first + tl.arange(0, TILES_PER_LOOK)
        behind = tl.maximum(m0 + off - n * BLOCK, 0).to(tl.float32)
        hard = crowded(behind, tl.min(by_query), tl.max(by_query), P1, GROUPS, BLOCK, APPROXIMATE)
        stop = tl.minimum(stop, tl.min(tl.where(hard & (n < end), n, end)))
    return stop


@triton.jit
def easy_queries(
    start, end, n0, off, at, T, P1, width, GROUPS: tl.constexpr, BLOCK: tl.constexpr, APPROXIMATE: tl.constexpr
):  # fmt: skip
    """From which tile of queries on none is crowded. Numbers of queries fall from one to the next."""
    begin = start
    by_query = P1 + HEADER + width - 1 + at * T
    for first in range(start, end, TILES_PER_LOOK):
        m = first + tl.arange(0, TILES_PER_LOOK)
        behind = tl.maximum(m * BLOCK + off - n0, 0).to(tl.float32)
        most = tl.load(by_query + m * BLOCK, mask=m < end, other=0.0)
        least = tl.load(by_query + tl.minimum(m * BLOCK + (BLOCK - 1), T - 1), mask=m < end, other=0.0)
        hard = crowded(behind, least, most, P1, GROUPS, BLOCK, APPROXIMATE)
        begin = tl.maximum(begin, tl.max(tl.where(hard & (m < end), m + 1, start)))
    return begin


@triton.jit
def with_pieces(
    x, qp, kp, by_query, P0, P1, at, h, m0, n0, T, off, width, BLOCK: tl.constexpr, GROUPS: tl.constexpr,
    ONE_SIDED: tl.constexpr, FAR: tl.constexpr, APPROXIMATE: tl.constexpr,
):  # fmt: skip
    """Scores with their bias; the ratios, and the two numbers of ``break_points``."""
    low, high = distance_bounds(qp, kp, m0, n0, off, BLOCK, ONE_SIDED)
    if ONE_SIDED:  # the numbers of queries fall from one to the next
        numbers = P1 + HEADER + width - 1 + at * T
        most = tl.load(numbers + m0)
        least = tl.load(numbers + tl.minimum(m0 + BLOCK - 1, T - 1))
    else:
        least, most = tl.min(by_query), tl.max(by_query)
    first, last = break_points(low, high, least, most, P1, GROUPS, APPROXIMATE)
    r = logs(qp, kp, m0, n0, off, P1, BLOCK, FAR, APPROXIMATE) * by_query
    return add_pieces(x, r, first, last, P0, P1, h, width, FAR), r, first, last


@triton.jit
def empty_sums(h, BLOCK: tl.constexpr):
    """Of each row: ds and ds·ratio since ``piece`` began; what the query's number gets, and what the number in the
    logarithm gets."""
    zero = tl.zeros([BLOCK], tl.float32)
    return zero, zero, zero, zero, h * 0


@triton.jit
def _row_sums(ds, r, qp, kp, m0, n0, off, c, BLOCK: tl.constexpr, FAR: tl.constexpr):
    """Sums over keys of ds; of ds times the ratio; and of ds times the logarithm's derivative."""
    if FAR:
        middle, along = middle_and_along(qp[:, None], kp[None, :], m0, n0, off, BLOCK)
        total, first, second, _ = moments(ds, along)
        slope = log_slope(tl.reshape(middle, [BLOCK]), total, first, second, c, BLOCK)
    else:
        d = tl.abs(qp[:, None] - kp[None, :]).to(tl.float32)
        total = tl.sum(ds, 1)
        slope = tl.sum(ds * (d / (1.0 + c * d)), 1)
    return total, tl.sum(ds * r, 1), slope


@triton.jit
def flush(G0, place, total, by_ratio):
    """Into a place that only this program adds to."""
    tl.atomic_add(G0 + place, tl.sum(total), sem="relaxed")
    tl.atomic_add(G0 + place + 1, tl.sum(by_ratio), sem="relaxed")


@triton.jit
def _beyond(
    to_log, to_c, ds, r, k, qp, kp, m0, n0, off, c, P0, P1, G0, base, h, width, BLOCK: tl.constexpr,
    FAR: tl.constexpr,
):  # fmt: skip
    """What lies beyond a break point that is in the tile."""
    bend = tl.load(P0 + (h * width + k + 1) * 2) - tl.load(P0 + (h * width + k) * 2)
    ds = tl.where(r > tl.load(P1 + HEADER + k), ds, 0.0)
    total, by_ratio, by_c = _row_sums(ds, r, qp, kp, m0, n0, off, c, BLOCK, FAR)
    flush(G0, base + k * 4 + 2, total, by_ratio)
    return to_log + bend * by_ratio, to_c + bend * by_c


@triton.jit
def piece_sums(
    sums, ds, r, first, last, qp, kp, m0, n0, off, P0, P1, G0, program, h, width, BLOCK: tl.constexpr,
    FAR: tl.constexpr,
):  # fmt: skip
    """What a tile adds to the gradients. G0 is (programs, width, 4): ds and ds·ratio of tiles that begin in a piece,
    and of what lies beyond its break point in tiles that go on."""
    total, by_ratio, to_log, to_c, piece = sums
    base = program * width * 4
    if first != piece:
        flush(G0, base + piece * 4, total, by_ratio)
        total = tl.zeros([BLOCK], tl.float32)
        by_ratio = tl.zeros([BLOCK], tl.float32)
    c = tl.load(P1)
    a, b, s = _row_sums(ds, r, qp, kp, m0, n0, off, c, BLOCK, FAR)
    slope = tl.load(P0 + (h * width + first) * 2)
    total += a
    by_ratio += b
    to_log += slope * b
    to_c += slope * s
    if FAR:
        for u in tl.static_range(GROUP // 2):
            if last > first + 2 * u:
                k = first + 2 * u
                for _ in tl.static_range(2):
                    to_log, to_c = _beyond(
                        to_log, to_c, ds, r, k, qp, kp, m0, n0, off, c, P0, P1, G0, base, h, width, BLOCK, FAR
                    )
                    k += 1
    else:
        for k in range(first, last):
            to_log, to_c = _beyond(
                to_log, to_c, ds, r, k, qp, kp, m0, n0, off, c, P0, P1, G0, base, h, width, BLOCK, FAR
            )
    return total, by_ratio, to_log, to_c, first


@triton.jit
def store_sums(sums, by_query, G0, G1, program, width, at, T, qi, inside, all_heads):
    """The rest of G0, and G1, (2, B, H, T): of each query's number, and its share of the number in the logarithm."""
    total, by_ratio, to_log, to_c, piece = sums
    flush(G0, (program * width + piece) * 4, total, by_ratio)
    tl.store(G1 + at * T + qi, to_log / tl.where(by_query == 0, 1.0, by_query), mask=inside)
    tl.store(G1 + (all_heads + at) * T + qi, to_c * by_query * LOG2E, mask=inside)
