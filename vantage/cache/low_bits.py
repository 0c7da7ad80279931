"""Keys and values in two, three or four bits a number (TurboQuant, Zandieh et al. 2025, as vLLM has it).

A key keeps its length in full. Its direction is turned by the orthonormal Hadamard matrix, after which every number is
much like a draw from a normal distribution, whatever the key was; each goes to the nearest of the levels that are best
for such a draw (Lloyd, Max). On reading the levels are brought back to length 1, lengthened and turned back. Values are
rounded between the smallest and the largest number of their token and head. A token is rounded once, by itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any, final

import torch
from torch import Tensor

from vantage.cache.codecs import PackedCodec, PlainCodec, SingleCodec, StreamShape, read_packed
from vantage.cache.dump import damaged
from vantage.errors import BadInput

BITS = (2, 3, 4)
ROUNDS = 4000  # of Lloyd's algorithm: the levels no longer change


def check_bits(keys: int, values: int) -> None:
    if keys not in BITS or values not in BITS:
        raise BadInput(f"{keys} bits for keys and {values} for values: give 2, 3 or 4 of each")


@final
@dataclass(frozen=True)
class LowBitCodec(PackedCodec):
    """Another codec's keys and values in ``key_bits`` and ``value_bits``."""

    kind = "low bits"
    of: PlainCodec | SingleCodec
    key_bits: int = 4
    value_bits: int = 4

    def __post_init__(self) -> None:
        check_bits(self.key_bits, self.value_bits)

    def streams(self) -> tuple[StreamShape, ...]:
        if not self.kv_heads:  # a layer that keeps states alone
            return ()
        keys = StreamShape(packed_bytes(padded(self.key_dim), self.key_bits), torch.uint8)
        both = keys, StreamShape(1, self.scale_dtype)
        if len(self.of.streams()) == 1:  # the value is the front of the key
            return both
        values = StreamShape(packed_bytes(self.value_dim, self.value_bits), torch.uint8)
        return (*both, values, StreamShape(2, self.scale_dtype))

    def encode(self, k_BGTd: Tensor, v_BGTe: Tensor) -> tuple[Tensor, ...]:
        codes = [encode_direction(k_BGTd, self.key_bits, self.scale_dtype)]
        if len(self.of.streams()) > 1:
            codes.append(encode_range(v_BGTe, self.value_bits, self.scale_dtype))
        return tuple(stream for pair in codes for stream in pair)

    def decode(self, streams: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        keys = decode_direction(streams[0], streams[1], self.key_dim, self.key_bits, self.of.dtype)
        if len(streams) == 2:
            return self.of.decode([keys])
        return self.of.decode(
            [keys, decode_range(streams[2], streams[3], self.value_dim, self.value_bits, self.of.dtype)]
        )

    def dump(self) -> dict[str, Any]:
        return self.dump_with(key_bits=self.key_bits, value_bits=self.value_bits)

    @classmethod
    def from_dump(cls, saved: Mapping[str, Any]) -> LowBitCodec:
        inside, bits = read_packed(saved, "key_bits", "value_bits")
        if not set(bits) <= set(BITS):
            return damaged(f"a layer keeps {str(dict(saved))[:80]!r}")
        return LowBitCodec(inside, *bits)


# ---- keys


def encode_direction(x: Tensor, bits: int, scale_dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Codes of the direction, packed (…, bytes), and the length (…, 1)."""
    wide = torch.promote_types(x.dtype, torch.float32)
    x = torch.nn.functional.pad(x.to(wide), (0, padded(x.shape[-1]) - x.shape[-1]))
    length = x.norm(dim=-1, keepdim=True)
    turned = hadamard(x / length.clamp_min(torch.finfo(wide).tiny)) * x.shape[-1] ** 0.5
    levels = levels_of(bits).to(turned.device, wide, non_blocking=True)
    codes = torch.bucketize(turned, (levels[1:] + levels[:-1]) / 2)
    return pack(codes, bits), length.to(scale_dtype)


def decode_direction(packed: Tensor, length: Tensor, width: int, bits: int, dtype: torch.dtype) -> Tensor:
    wide = torch.promote_types(dtype, torch.float32)
    turned = levels_of(bits).to(packed.device, wide, non_blocking=True)[unpack(packed, padded(width), bits)]
    direction = hadamard(turned / turned.norm(dim=-1, keepdim=True))
    return (direction * length.to(wide))[..., :width].to(dtype)


def hadamard(x: Tensor) -> Tensor:
    """The orthonormal Hadamard matrix times x, over the last dimension, a power of two; its own inverse."""
    width = x.shape[-1]
    half = 1
    while half < width:
        a, b = x.unflatten(-1, (-1, 2, half)).unbind(-2)
        x = torch.stack((a + b, a - b), -2).flatten(-3)
        half *= 2
    return x * width**-0.5


def padded(width: int) -> int:
    """The next power of two."""
    return 1 << max(0, width - 1).bit_length()


@cache
def levels_of(bits: int) -> Tensor:
    """The levels to which draws of N(0, 1) are rounded with the least square error: each is the mean of what goes to
    it, and borders lie halfway (Lloyd, Max)."""
    count = 2**bits
    levels = [4 * (i + 0.5) / count - 2 for i in range(count)]
    for _ in range(ROUNDS):
        borders = [-math.inf, *((a + b) / 2 for a, b in pairwise(levels)), math.inf]
        levels = [_mean_between(low, high) for low, high in pairwise(borders)]
    return torch.tensor(levels, dtype=torch.float64)


def _mean_between(low: float, high: float) -> float:
    """Of N(0, 1) between two borders."""

    def density(x: float) -> float:
        return math.exp(-x * x / 2) / math.sqrt(2 * math.pi)

    below = [0.5 * (1 + math.erf(x / math.sqrt(2))) for x in (low, high)]
    return (density(low) - density(high)) / (below[1] - below[0])


# ---- values


def encode_range(x: Tensor, bits: int, scale_dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Codes between the smallest and the largest number, packed, and the smallest with the step (…, 2)."""
    codes, scales = range_codes(x, bits, scale_dtype)
    return pack(codes, bits), scales


def range_codes(x: Tensor, bits: int, scale_dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The same, one number for each code."""
    wide = torch.promote_types(x.dtype, torch.float32)
    x, most = x.to(wide), 2**bits - 1
    low = x.amin(-1, keepdim=True).to(scale_dtype)
    step = ((x.amax(-1, keepdim=True) - low.to(wide)) / most).to(scale_dtype)
    codes = ((x - low.to(wide)) / step.to(wide).clamp_min(torch.finfo(wide).tiny)).round().clamp(0, most)
    return codes.long(), torch.cat((low, step), -1)


def decode_range(packed: Tensor, scales: Tensor, width: int, bits: int, dtype: torch.dtype) -> Tensor:
    low, step = scales.to(torch.promote_types(dtype, torch.float32)).split(1, -1)
    return (unpack(packed, width, bits) * step + low).to(dtype)


# ---- codes as bytes


def packed_bytes(count: int, bits: int) -> int:
    return -(-count * bits // 8)


def pack(codes: Tensor, bits: int) -> Tensor:
    """(…, count) of small numbers, the lowest bit of the first one first."""
    one_by_one = (codes[..., None] >> torch.arange(bits, device=codes.device)) & 1
    row = one_by_one.flatten(-2)
    row = torch.nn.functional.pad(row, (0, -row.shape[-1] % 8)).unflatten(-1, (-1, 8))
    return (row << torch.arange(8, device=codes.device)).sum(-1).to(torch.uint8)


def unpack(packed: Tensor, count: int, bits: int) -> Tensor:
    row = (packed[..., None].long() >> torch.arange(8, device=packed.device)) & 1
    one_by_one = row.flatten(-2)[..., : count * bits].unflatten(-1, (count, bits))
    return (one_by_one << torch.arange(bits, device=packed.device)).sum(-1)
