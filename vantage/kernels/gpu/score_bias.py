"""A score bias in attention over a cache that stays where it is: the forms of ``spec/forms.py`` that need nothing but
a distance, a query's position and numbers of the head.

Positions of a row run on, so a distance is how many tokens lie between.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from vantage.kernels.gpu.far import LOG2E
from vantage.kernels.gpu.tiles import LOG, PIECES, POWER, ROW_TABLE, SLOPE, TABLE
from vantage.spec.forms import (
    DistanceForm,
    DistanceTable,
    LogDistance,
    PowerDistance,
    RatioNetwork,
    RatioPieces,
    Slope,
)
from vantage.spec.rounding import next_power_of_2

# behind the forms of ``tiles``; chunks read the last one like PIECES
COUNTS, PIECES_AS_PRODUCT = tl.constexpr(8), tl.constexpr(9)
PIECE_HEADER = tl.constexpr(4)  # numbers of ``two`` before the break points: c, limit, eps
LEAST_BREAKS = 16  # the matrix units take no fewer; and layers with a few more or less are compiled once
MOST_BREAKS = 32  # of a function that is a product: with more of them each key's piece is looked up


@dataclass(frozen=True)
class DeviceBias:
    """A form as float32 tensors on the device. ``one`` and ``two``: slopes; factors and rates of a logarithm or power;
    a table (H, width) by distance, or (rows, H, width) where each row has its own; or (H, width, 2), slope and offset
    of each piece, and c, limit, eps and, from PIECE_HEADER on, the break points, rising, with infinite ones behind the
    last."""

    form: int
    one: Tensor
    two: Tensor
    width: int = 0

    @property
    def breaks(self) -> int:
        """A power of two, more than the break points of a function in pieces."""
        in_pieces = self.form in (PIECES.value, PIECES_AS_PRODUCT.value)
        return len(self.two) - PIECE_HEADER.value + 1 if in_pieces else 0


def device_bias(form: DistanceForm, device: torch.device) -> DeviceBias:
    """What the kernels read of a form; attention looks back, so no distance is negative."""
    with torch.inference_mode(False), torch.no_grad():
        match form:
            case Slope():
                slopes = _float(form.slopes, device)
                return DeviceBias(SLOPE.value, slopes, slopes)
            case LogDistance() | PowerDistance():
                kind = LOG.value if isinstance(form, LogDistance) else POWER.value
                return DeviceBias(kind, _float(form.a, device), _float(form.p, device))
            case DistanceTable():
                table = _float(from_zero(form.values, form.first), device)
                return DeviceBias(TABLE.value, table, table, table.shape[-1])
            case RatioNetwork():
                return _pieces(form.pieces(), device)
            case RatioPieces():
                return _pieces(form, device)


def form_constants(bias: DeviceBias | None) -> dict[str, int]:
    """What a kernel is compiled for."""
    return {"BIAS": 0, "BREAKS": 0} if bias is None else {"BIAS": bias.form, "BREAKS": bias.breaks}


def from_zero(values_HW: Tensor, first: int) -> Tensor:
    """The same table for the distance 0 and those above."""
    if first > 0:
        return torch.cat((values_HW[:, :1].expand(-1, first), values_HW), 1)
    return values_HW[:, min(-first, values_HW.shape[-1] - 1) :]


def _pieces(form: RatioPieces, device: torch.device) -> DeviceBias:
    # no key lies before the first position, so a ratio is at least 0 and at most 1: other pieces are left out
    first, last = (int((form.breaks < end).sum()) for end in (0, 1))
    breaks = form.breaks[first:last]
    kind, least = (PIECES_AS_PRODUCT, LEAST_BREAKS) if len(breaks) < MOST_BREAKS else (PIECES, 1)
    one = _float(torch.stack((form.slopes, form.offsets), -1)[:, first : last + 1], device)
    room = max(least, next_power_of_2(len(breaks) + 1)) - 1
    beyond = breaks.new_full((room - len(breaks),), float("inf"))
    numbers = (form.c.abs(), form.limit, form.c.new_tensor([form.eps, 0.0]), breaks, beyond)
    return DeviceBias(kind.value, one, torch.cat([_float(x, device) for x in numbers]), one.shape[1])


def _float(x: Tensor, device: torch.device) -> Tensor:
    return x.detach().to(device, torch.float32).contiguous()


@triton.jit
def bias_row(row, h, H: tl.constexpr, FORM: tl.constexpr):
    """Which line of a bias's numbers a head of a row reads: its head's, or one of its own."""
    if FORM == ROW_TABLE or FORM == COUNTS:  # noqa: SIM109
        return row.to(tl.int64) * H + h
    else:
        return h


@triton.jit
def head_numbers(one, two, width, h, at, mine, FORM: tl.constexpr):
    """Two numbers that the bias of a head, or of a query at the position ``at``, needs for every key. They are read
    before the loop over keys."""
    a = 0.0
    b = 0.0
    if FORM == SLOPE:
        a = tl.load(one + h, mask=mine, other=0.0)
    elif FORM == LOG or FORM == POWER:  # noqa: SIM109
        a = tl.load(one + h, mask=mine, other=0.0)
        b = tl.load(two + h, mask=mine, other=0.0)
    elif FORM == TABLE or FORM == ROW_TABLE:  # noqa: SIM109 (of keys far away)
        a = tl.load(one + h * width + width - 1, mask=mine, other=0.0)
    elif FORM == PIECES or FORM == PIECES_AS_PRODUCT:  # noqa: SIM109
        b = tl.load(two)
        within = tl.maximum(at.to(tl.float32), tl.load(two + 1))
        a = 1.0 / (tl.math.log2(1.0 + b * within) + tl.load(two + 2) * LOG2E)
    return a, b


@triton.jit
def first_line(
    one, two, width, begin, HEADS: tl.constexpr, TILE: tl.constexpr, FORM: tl.constexpr, BREAKS: tl.constexpr
):  # fmt: skip
    """A function in pieces of a ratio, in units of log2, as the slope and offset of its first piece, and where (BREAKS,
    1) and by how much (TILE, BREAKS) the slope changes after it, of so many heads from ``begin`` on; nothing for other
    forms. Read before the loop over keys."""
    slope = 0.0
    offset = 0.0
    at = 0.0
    change = 0.0
    if FORM == PIECES_AS_PRODUCT:
        r = tl.arange(0, TILE)[:, None]
        h = begin + r
        mine = r < HEADS
        k = tl.arange(0, BREAKS)
        line = one + h * (2 * width)
        inside = mine & (k + 1 < width)[None, :]
        change = tl.load(line + 2 * k[None, :] + 2, mask=inside, other=0.0)
        change = (change - tl.load(line + 2 * k[None, :], mask=inside, other=0.0)) * LOG2E
        at = tl.load(two + PIECE_HEADER + k, mask=k < BREAKS - 1, other=float("inf"))[:, None]
        slope = tl.load(line, mask=mine, other=0.0) * LOG2E
        offset = tl.load(line + 1, mask=mine, other=0.0) * LOG2E
    return slope, offset, at, change


@triton.jit
def with_line(s, distance, a, b, slope, offset, at, change, PRECISION: tl.constexpr):
    """Scores, in units of log2, with a function in pieces of the ratios of keys, which all rows share. Every change of
    slope is a hidden unit of a small network, so that a product of matrices adds it up. Looking up the piece of each
    ratio would be a chain of loads within the loop over keys, which must then wait for each other's memory. In three
    parts: a bias may be large, and one part of 11 bits would be less than float16 keeps."""
    PARTS: tl.constexpr = "ieee" if PRECISION == "ieee" else "tf32x3"
    ratio = tl.math.log2(1.0 + b * tl.maximum(distance, 0).to(tl.float32)) * a
    return tl.dot(change, tl.maximum(ratio - at, 0.0), s + (slope * ratio + offset), input_precision=PARTS)


@triton.jit
def _with_pieces(s, ratio, h, mine, one, two, width, BREAKS: tl.constexpr):
    """Scores with a function in pieces of ratios that heads share: each is looked up."""
    piece = (ratio * 0.0).to(tl.int32)
    for level in tl.static_range(1, 32):  # how many break points lie below: by halves
        half = BREAKS >> level
        if half > 0:
            below = tl.load(two + PIECE_HEADER + piece + (half - 1)) < ratio
            piece += tl.where(below, half, 0)
    place = one + (h * width + piece) * 2
    return s + tl.load(place, mask=mine, other=0.0) * ratio + tl.load(place + 1, mask=mine, other=0.0)


@triton.jit
def _with_hinges(s, ratio, h, mine, one, two, width, BREAKS: tl.constexpr):
    """The same of a tile of ratios, which mostly stay in one piece or two: the piece of the lowest, and a hinge for
    each break point up to the highest. Looking each of them up would take longer than the products."""
    k = tl.arange(0, BREAKS)
    breaks = tl.load(two + PIECE_HEADER + k, mask=k < BREAKS - 1, other=float("inf"))
    first = tl.sum((breaks < tl.min(ratio)).to(tl.int32))
    last = tl.sum((breaks < tl.max(ratio)).to(tl.int32))
    place = one + (h * width + first) * 2
    slope = tl.load(place, mask=mine, other=0.0)
    s += slope * ratio + tl.load(place + 1, mask=mine, other=0.0)
    for i in range(first, last):
        following = tl.load(one + (h * width + i + 1) * 2, mask=mine, other=0.0)
        s += (following - slope) * tl.maximum(ratio - tl.load(two + PIECE_HEADER + i), 0.0)
        slope = following
    return s


@triton.jit
def biased(s, distance, nearest, h, mine, a, b, one, two, width, FORM: tl.constexpr, BREAKS: tl.constexpr):
    """Scores s with their bias. ``distance`` (a whole number), h, a and b broadcast against them; a and b are from
    ``head_numbers``. ``nearest``: no distance of keys that are seen is less."""
    if FORM:
        distance = tl.maximum(distance, 0)  # keys that are not seen may come later
    if FORM == SLOPE:
        s -= a * distance.to(tl.float32)
    elif FORM == LOG:
        s -= a * (tl.math.log2(1.0 + b * distance.to(tl.float32)) / LOG2E)
    elif FORM == POWER:
        far = distance.to(tl.float32)
        raised = tl.math.exp2(b * tl.math.log2(tl.where(far > 0, far, 1.0)))
        s -= a * tl.where(far > 0, raised, 0.0)
    elif FORM == TABLE or FORM == ROW_TABLE:  # noqa: SIM109
        if nearest < width - 1:
            s += tl.load(one + h * width + tl.minimum(distance, width - 1), mask=mine, other=0.0)
        else:
            s += a
    elif FORM == PIECES or FORM == PIECES_AS_PRODUCT:  # noqa: SIM109
        ratio = tl.math.log2(1.0 + b * distance.to(tl.float32)) * a
        if distance.shape[0] == 1:
            s = _with_pieces(s, ratio, h, mine, one, two, width, BREAKS)
        else:
            s = _with_hinges(s, ratio, h, mine, one, two, width, BREAKS)
    return s


@triton.jit
def scored(
    s, distance, nearest, h, mine, a, b, one, two, width, scale, cap, SOFTCAP: tl.constexpr, FORM: tl.constexpr,
    BREAKS: tl.constexpr,
):  # fmt: skip
    """Products of queries and keys as scores, in units of log2."""
    s *= scale
    if SOFTCAP:
        s = cap * (2.0 * tl.sigmoid(2.0 * s / cap) - 1.0)
    return biased(s, distance, nearest, h, mine, a, b, one, two, width, FORM, BREAKS) * LOG2E
