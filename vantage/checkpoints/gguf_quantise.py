"""Weights to the blocks of a GGUF file, in every type that can be written.

A block of the simple types is 32 weights with one scale (Q4_0, Q5_0, Q8_0, IQ4_NL, MXFP4) or a scale and an offset
(Q4_1, Q5_1). One of the K types, and of IQ4_XS, is 256 weights: parts of 16 or 32 with scales of 4 to 8 bits, multiples
of one float16.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from torch import Tensor

from vantage.checkpoints.scale_search import (
    fit_scale,
    fit_scale_and_offset,
    refit_scale,
    refit_scale_and_offset,
    whole,
)
from vantage.errors import BadInput, unknown

CHUNK_WEIGHTS = 2**17  # weights at a time: what a core's cache holds with what is computed of them
SMALLEST = 1e-15  # a row with nothing larger is all zeros
# The values of IQ4_NL and IQ4_XS, in units of the scale.
IQ4_LEVELS = (-127.0, -104.0, -83.0, -65.0, -49.0, -35.0, -22.0, -10.0, 1.0, 13.0, 25.0, 38.0, 53.0, 69.0, 89.0, 113.0)
# Those of MXFP4 (E2M1) without their sign, in units of a power of two, which is stored with this added to its exponent.
# GGUF's readers take half of the power and twice the values.
MXFP4_LEVELS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
MXFP4_BIAS = 127


def quantise(weight: Tensor, kind: str, on_weights: Callable[[int], None] | None = None) -> Tensor:
    """The bytes of a tensor, row by row: (…, bytes). ``on_weights`` hears how many weights are done, now and then."""
    if kind not in ENCODERS and kind not in PLAIN:
        raise BadInput(unknown("type to quantise to", kind, [*ENCODERS, *PLAIN]))
    weight = weight.detach().cpu()
    if kind in PLAIN:
        plain = weight.to(PLAIN[kind]).contiguous()
        if not bool(plain.isfinite().all()):
            raise BadInput(f"a weight is NaN, infinity or too large for {kind}")
        return plain.view(torch.uint8)
    block, width = GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
    if weight.shape[-1] % block:
        raise BadInput(f"{kind} needs rows in blocks of {block}, and these have {weight.shape[-1]} weights")
    blocks = weight.reshape(-1, block)
    out = torch.empty(len(blocks), width, dtype=torch.uint8)
    step = CHUNK_WEIGHTS // block
    for a in range(0, len(blocks), step):
        piece = blocks[a : a + step].float()
        if not bool(piece.isfinite().all()):
            raise BadInput(f"a weight is NaN or infinity: {kind} cannot hold it")
        out[a : a + step] = ENCODERS[kind](torch.where(piece.abs() < SMALLEST, 0.0, piece))
        if on_weights is not None:
            on_weights(min(a + step, len(blocks)) * block)
    return out.view(*weight.shape[:-1], -1)


PLAIN = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


# ---- the simple types


def _around(middle: float, by: float, count: int) -> list[float]:
    return [middle + by * i for i in range(-count, count + 1)]


def _even(x: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """A scale and whole numbers from 0, of which half the range is taken away again."""
    half = 2 ** (bits - 1)
    rounding = whole(-half, half - 1)
    scale = fit_scale(x, _importance(x), rounding, _around(-half, 0.1, 9)).half()
    return scale, (rounding(_divided(x, scale.float())) + half).byte()


def _offset(x: Tensor, bits: int) -> tuple[Tensor, Tensor, Tensor]:
    """A scale, the lowest value, and whole numbers from 0."""
    steps = 2**bits - 1
    scale, offset = fit_scale_and_offset(x, _importance(x), steps, _around(steps, 0.1, 9), offset_below=False)
    scale, lowest = scale.half(), (-offset).half()
    return scale, lowest, _divided(x - lowest.float(), scale.float()).round_().clamp_(0, steps).byte()


def _q4_0(x: Tensor) -> Tensor:
    scale, q = _even(x, 4)
    return _joined(scale, _nibbles(q))


def _q4_1(x: Tensor) -> Tensor:
    scale, lowest, q = _offset(x, 4)
    return _joined(scale, lowest, _nibbles(q))


def _q5_0(x: Tensor) -> Tensor:
    scale, q = _even(x, 5)
    return _joined(scale, _bits(q >> 4), _nibbles(q & 15))


def _q5_1(x: Tensor) -> Tensor:
    scale, lowest, q = _offset(x, 5)
    return _joined(scale, lowest, _bits(q >> 4), _nibbles(q & 15))


def _q8_0(x: Tensor) -> Tensor:
    scale = (x.abs().amax(-1, keepdim=True) / 127).half()
    return _joined(scale, _divided(x, scale.float()).round_().clamp_(-127, 127).to(torch.int8))


def _nearest_iq4(y: Tensor) -> Tensor:
    """The places of the nearest values of IQ4_NL."""
    values = torch.tensor(IQ4_LEVELS)
    return torch.bucketize(y, (values[1:] + values[:-1]) / 2)


def _iq4_scale(x: Tensor) -> Tensor:
    values = torch.tensor(IQ4_LEVELS)
    return fit_scale(x, _importance(x), lambda y: values[_nearest_iq4(y)], _around(IQ4_LEVELS[0], 1.0, 7))


def _iq4_nl(x: Tensor) -> Tensor:
    scale = _iq4_scale(x).half()
    return _joined(scale, _nibbles(_nearest_iq4(_divided(x, scale.float())).byte()))


def _mxfp4(x: Tensor) -> Tensor:
    """The power of two is the one that brings the largest weight between 4 and 8, or one of its neighbours."""
    values = torch.tensor(MXFP4_LEVELS)
    between = (values[1:] + values[:-1]) / 2
    exponent = (torch.frexp(x.abs().amax(-1, keepdim=True)).exponent - 3).clamp(2 - MXFP4_BIAS, 253 - MXFP4_BIAS)
    x = torch.ldexp(x, -exponent)
    importance, sizes = _importance(x), x.abs()
    best_error, best_up = torch.full(exponent.shape, torch.inf), torch.zeros_like(exponent)
    best = torch.zeros(x.shape, dtype=torch.long)
    for up in (0, 1, -1):
        places = torch.bucketize(sizes * 2.0**-up, between)
        error = (importance * (values[places] * 2.0**up - sizes) ** 2).sum(-1, keepdim=True)
        better = error < best_error
        best_error, best_up = torch.where(better, error, best_error), torch.where(better, up, best_up)
        best = torch.where(better, places, best)
    signed = best + len(MXFP4_LEVELS) * (x < 0)
    return _joined((exponent + best_up + MXFP4_BIAS).byte(), _nibbles(signed.byte()))


# ---- the K types


def _with_offsets(x: Tensor, parts: int, bits: int, scale_bits: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Of blocks of 256: float16 scale and offset, whole multiples of them for each part, and the numbers (B, 256)."""
    steps, most = 2**bits - 1, 2**scale_bits - 1
    of_parts = x.view(len(x), parts, -1)
    importance = _importance(of_parts)
    # a range of few steps is worth trying narrower: the outermost weights are then rounded further
    ranges = [steps + by for by in ((-0.5 + 0.1 * i) for i in range(16))] if bits < 4 else _around(steps, 0.1, 10)
    scales, offsets = (y.squeeze(-1) for y in fit_scale_and_offset(of_parts, importance, steps, ranges))
    scale, multiples = _multiples(scales, most)
    offset, below = _multiples(offsets, most)

    def numbers() -> Tensor:
        each = (scale.float() * multiples).unsqueeze(-1)
        return _divided(of_parts + (offset.float() * below).unsqueeze(-1), each).round_().clamp_(0, steps)

    q = numbers()
    # the numbers are settled but for this: both float16s fitted to them once more
    flat = (x, importance.flatten(1))
    steps_up, steps_down = (q * multiples.unsqueeze(-1)).flatten(1), below.unsqueeze(-1).expand_as(q).flatten(1)
    finer_scale, finer_offset = refit_scale_and_offset(*flat, steps_up, steps_down)
    fits = (finer_scale > 0) & (finer_offset > 0)
    scale = torch.where(fits, finer_scale, scale.float()).half()
    offset = torch.where(fits, finer_offset, offset.float()).half()
    return scale, offset, multiples.byte(), below.byte(), numbers().byte().flatten(1)


def _multiples(values: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """Values from 0 as whole multiples, at most ``most``, of one float16 for each row."""
    unit = (values.amax(-1, keepdim=True) / most).half()
    return unit, _divided(values, unit.float()).round_().clamp_(0, most)


def _signed_multiples(scales: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """One float16 for each row, and its multiples from -``most`` to ``most`` - 1."""
    # the largest scale becomes the lowest multiple: there is one more below 0 than above
    largest = scales.gather(-1, scales.abs().argmax(-1, keepdim=True))
    scale = (largest / -most).half()
    return scale, _divided(scales, scale.float()).round_().clamp_(-most, most - 1)


def _signed(x: Tensor, bits: int, scale_bits: int) -> tuple[Tensor, Tensor, Tensor]:
    """Of blocks of 256 in parts of 16: a float16 scale, its signed multiples, and the numbers (B, 256) from 0."""
    half, most = 2 ** (bits - 1), 2 ** (scale_bits - 1)
    parts = x.view(len(x), 16, 16)
    rounding = whole(-half, half - 1)
    extremes = _around(-half, 0.1, 9)
    importance = _importance(parts)
    scales = fit_scale(parts, importance, rounding, extremes).squeeze(-1)
    scale, multiples = _signed_multiples(scales, most)

    def numbers() -> Tensor:
        return rounding(_divided(parts, (scale.float() * multiples).unsqueeze(-1)))

    finer = refit_scale(x, importance.flatten(1), (numbers() * multiples.unsqueeze(-1)).flatten(1))
    scale = torch.where(finer == 0, scale.float(), finer).half()
    return scale, multiples.to(torch.int8), (numbers() + half).byte().flatten(1)


def _q2_k(x: Tensor) -> Tensor:
    scale, offset, multiples, below, q = _with_offsets(x, 16, 2, 4)
    return _joined(multiples | below << 4, _quarters(q), scale, offset)


def _q3_k(x: Tensor) -> Tensor:
    scale, multiples, q = _signed(x, 3, 6)
    m = (multiples + 32).byte()
    low, high = m & 15, (m >> 4).view(-1, 4, 4)
    high = high[:, 0] | high[:, 1] << 2 | high[:, 2] << 4 | high[:, 3] << 6
    return _joined(_planes(q >> 2), _quarters(q & 3), low[:, :8] | low[:, 8:] << 4, high, scale)


def _q4_k(x: Tensor) -> Tensor:
    scale, offset, multiples, below, q = _with_offsets(x, 8, 4, 6)
    return _joined(scale, offset, _six_bits(multiples, below), _halves(q))


def _q5_k(x: Tensor) -> Tensor:
    scale, offset, multiples, below, q = _with_offsets(x, 8, 5, 6)
    return _joined(scale, offset, _six_bits(multiples, below), _planes(q >> 4), _halves(q & 15))


def _q6_k(x: Tensor) -> Tensor:
    scale, multiples, q = _signed(x, 6, 8)
    low = (q & 15).view(-1, 2, 2, 64)
    return _joined((low[:, :, 0] | low[:, :, 1] << 4).flatten(1), _quarters(q >> 4), multiples, scale)


def _iq4_xs(x: Tensor) -> Tensor:
    parts = x.view(len(x), 8, 32)
    scale, multiples = _signed_multiples(_iq4_scale(parts).squeeze(-1), 32)
    each = (scale.float() * multiples).unsqueeze(-1)
    places = _nearest_iq4(_divided(parts, each))
    finer = refit_scale(
        x, _importance(parts).flatten(1), (torch.tensor(IQ4_LEVELS)[places] * multiples.unsqueeze(-1)).flatten(1)
    )
    scale = torch.where(finer == 0, scale.float(), finer).half()
    places = _nearest_iq4(_divided(parts, (scale.float() * multiples).unsqueeze(-1))).byte()
    m = (multiples + 32).byte()
    low, high = m & 15, (m >> 4).view(-1, 2, 4)
    high = high[..., 0] | high[..., 1] << 2 | high[..., 2] << 4 | high[..., 3] << 6
    return _joined(scale, high, low[:, ::2] | low[:, 1::2] << 4, _nibbles(places).flatten(1))


ENCODERS: dict[str, Callable[[Tensor], Tensor]] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "IQ4_NL": _iq4_nl,
    "IQ4_XS": _iq4_xs,
    "MXFP4": _mxfp4,
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
}


# ---- numbers to bytes


def _importance(x: Tensor) -> Tensor:
    """How much the error of each weight counts: the more the larger it is, and that of a small one also something."""
    return x.abs() + (x * x).mean(-1, keepdim=True).sqrt()


def _divided(x: Tensor, by: Tensor) -> Tensor:
    """0 where the divisor is."""
    return torch.where(by == 0, torch.zeros_like(x), x / by)


def _joined(*parts: Tensor) -> Tensor:
    return torch.cat([part.contiguous().view(torch.uint8) for part in parts], -1)


def _nibbles(q: Tensor) -> Tensor:
    """The second half of the block above the first."""
    half = q.shape[-1] // 2
    return q[..., :half] | q[..., half:] << 4


def _halves(q: Tensor) -> Tensor:
    """32 above 32, for every 64."""
    return _nibbles(q.view(len(q), -1, 64)).flatten(1)


def _quarters(q: Tensor) -> Tensor:
    """Two bits of four times 32, for every 128."""
    q = q.view(len(q), -1, 4, 32)
    return (q[:, :, 0] | q[:, :, 1] << 2 | q[:, :, 2] << 4 | q[:, :, 3] << 6).flatten(1)


def _planes(q: Tensor) -> Tensor:
    """One bit of eight times 32."""
    q = q.view(len(q), 8, 32)
    return (q << torch.arange(8, dtype=torch.uint8).view(8, 1)).sum(1, dtype=torch.uint8)


def _bits(q: Tensor) -> Tensor:
    """One bit of 32, eight to a byte."""
    return (q.view(len(q), 4, 8) << torch.arange(8, dtype=torch.uint8)).sum(-1, dtype=torch.uint8)


def _six_bits(multiples: Tensor, below: Tensor) -> Tensor:
    """Eight scales and eight offsets of 6 bits in 12 bytes: the last four lie in fours and twos."""
    first = multiples[:, :4] | multiples[:, 4:] >> 4 << 6
    second = below[:, :4] | below[:, 4:] >> 4 << 6
    third = multiples[:, 4:] & 15 | (below[:, 4:] & 15) << 4
    return _joined(first, second, third)
