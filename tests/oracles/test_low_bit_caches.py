"""Low-bit caches against their authors' rules, written out number by number in plain Python.

Neither TurboQuant (as vLLM has it: `turboquant/centroids.py` and `triton_turboquant_store.py`, which runs on a GPU
alone) nor KIVI (`quant/new_pack.py`) is in a package that could be installed beside ours. So the rules are stated here
once more, from the papers' formulas, without torch and without anything of `vantage.cache`, and held to published
numbers first; then our codecs must give the same codes and read the same numbers.

Where vLLM differs: it ends Lloyd's rounds after 200, when 4-bit levels still move by a thousandth; a number on a border
goes to the upper level, and a value half way to the upper code, where torch rounds to the even one.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import NamedTuple

import pytest
import torch

from vantage.cache.codecs import PlainCodec
from vantage.cache.kivi import KiviCodec
from vantage.cache.low_bits import LowBitCodec, levels_of, unpack

F64 = torch.float64
STEPS = 40  # of an integral


# ---- TurboQuant (Zandieh et al. 2025)


def density(x: float) -> float:
    return math.exp(-x * x / 2) / math.sqrt(2 * math.pi)


def integral(f, low: float, high: float) -> float:
    """By Simpson's rule."""
    h = (high - low) / STEPS
    inner = sum((4 if i % 2 else 2) * f(low + i * h) for i in range(1, STEPS))
    return (f(low) + inner + f(high)) * h / 3


def best_levels(bits: int) -> list[float]:
    """Lloyd and Max: a level is the mean of the normal draws that are nearest to it. Seven deviations are all. Levels
    go nearly twice as far as the mean says, which saves most of the rounds and ends at the same place."""
    count = 2**bits
    levels = [-3 + 6 * (i + 0.5) / count for i in range(count)]
    for _ in range(400):
        means = [integral(lambda x: x * density(x), a, b) / integral(density, a, b) for a, b in cells(levels)]
        levels = [level + 1.8 * (mean - level) for level, mean in zip(levels, means, strict=True)]
    return levels


def cells(levels: list[float]) -> list[tuple[float, float]]:
    """Which numbers go to each level."""
    return list(pairwise([-7.0, *((a + b) / 2 for a, b in pairwise(levels)), 7.0]))


def turned(x: list[float]) -> list[float]:
    """By the orthonormal Hadamard matrix, whose sign at (i, j) is that of the bits which i and j share."""
    n = len(x)
    return [sum((-1) ** (i & j).bit_count() * x[j] for j in range(n)) / math.sqrt(n) for i in range(n)]


class Key(NamedTuple):
    codes: list[int]
    length: float
    read: list[float]


def turbo_key(x: list[float], levels: list[float]) -> Key:
    length = math.sqrt(sum(v * v for v in x))
    spread = math.sqrt(len(x))  # numbers of a unit vector are draws of N(0, 1/d)
    codes = [
        min(range(len(levels)), key=lambda c: abs(v * spread - levels[c])) for v in turned([v / length for v in x])
    ]
    found = [levels[c] for c in codes]
    size = math.sqrt(sum(v * v for v in found))
    return Key(codes, length, turned([v / size * length for v in found]))


def ranged(x: list[float], bits: int) -> tuple[list[int], list[float]]:
    """Codes between the smallest and the largest, and what they read: TurboQuant's values, and all of KIVI's."""
    low, step = min(x), (max(x) - min(x)) / (2**bits - 1)
    codes = [round((v - low) / step) for v in x]
    return codes, [low + c * step for c in codes]


@pytest.fixture(scope="module")
def levels() -> dict[int, list[float]]:
    return {bits: best_levels(bits) for bits in (2, 3, 4)}


def test_the_written_rules_give_the_published_numbers(levels: dict[int, list[float]]):
    assert levels[2][2:] == pytest.approx([0.4528, 1.5104], abs=5e-5)
    assert levels[3][4:] == pytest.approx([0.2451, 0.7560, 1.3439, 2.1519], abs=1e-4)
    for bits, error in ((2, 0.1175), (3, 0.03455), (4, 0.0095)):
        parts = zip(levels[bits], cells(levels[bits]), strict=True)
        total = sum(integral(lambda x, c=c: (x - c) ** 2 * density(x), a, b) for c, (a, b) in parts)
        assert total == pytest.approx(error, rel=5e-3)
    assert turned([14, 1, 1, 1]) == pytest.approx([8.5, 6.5, 6.5, 6.5])
    assert ranged([0, 1, 2, 9], 2) == ([0, 0, 1, 3], [0, 0, 3, 9])


@pytest.mark.parametrize("bits", [2, 3, 4])
def test_turboquant(bits: int, levels: dict[int, list[float]]):
    assert levels_of(bits).tolist() == pytest.approx(levels[bits], abs=2e-4)
    draw = torch.Generator().manual_seed(bits)
    k, v = (torch.randn(1, 2, 12, 16, generator=draw, dtype=F64) for _ in range(2))
    k[..., 3] *= 12  # an outlier channel, as keys have them
    codec = LowBitCodec(PlainCodec(2, 16, 16, F64), bits, bits)
    streams = codec.encode(k, v)
    keys, values = codec.decode(streams)
    for g in range(2):
        for t in range(12):
            key = turbo_key(k[0, g, t].tolist(), levels_of(bits).tolist())
            assert unpack(streams[0][0, g, t], 16, bits).tolist() == key.codes
            assert float(streams[1][0, g, t]) == pytest.approx(key.length, rel=1e-6)
            assert keys[0, g, t].tolist() == pytest.approx(key.read, rel=1e-6, abs=1e-6)
            codes, read = ranged(v[0, g, t].tolist(), bits)
            assert unpack(streams[2][0, g, t], 16, bits).tolist() == codes
            assert values[0, g, t].tolist() == pytest.approx(read, abs=1e-5)


# ---- KIVI (Liu et al. 2024)


@pytest.mark.parametrize("bits", [2, 4])
def test_kivi(bits: int):
    """Keys channel by channel over groups of 4 tokens, values token by token over groups of 8 channels."""
    draw = torch.Generator().manual_seed(bits)
    k, v = (torch.randn(1, 2, 12, 16, generator=draw, dtype=F64) for _ in range(2))
    k[..., 3] *= 12
    codec = KiviCodec(PlainCodec(2, 16, 16, F64), bits, group=4, channels=8)
    streams = codec.encode(k, v)
    keys, values = codec.decode(streams)
    key_codes, value_codes = (unpack(streams[i], 16, bits) for i in (0, 2))
    for g in range(2):
        for first in range(0, 12, 4):
            for channel in range(16):
                column = (0, g, slice(first, first + 4), channel)
                codes, read = ranged(k[column].tolist(), bits)
                assert key_codes[column].tolist() == codes
                assert keys[column].tolist() == pytest.approx(read, abs=1e-5)
        for token in range(12):
            for first in (0, 8):
                part = (0, g, token, slice(first, first + 8))
                codes, read = ranged(v[part].tolist(), bits)
                assert value_codes[part].tolist() == codes
                assert values[part].tolist() == pytest.approx(read, abs=1e-5)
