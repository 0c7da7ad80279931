"""Frequency rules: how RoPE turns at lengths it was not trained for (P9).

A rule is frozen data. ``frequencies`` gives one frequency per pair of dimensions and a factor for
cosines and sines alike (so scores grow with its square). Two rules look at the length of the context.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from vantage.errors import BadInput
from vantage.position import angles

Device = torch.device | str | None


@runtime_checkable
class Rule(Protocol):
    """What ``Rope(scaling=)`` takes."""

    @property
    def depends_on_length(self) -> bool: ...
    @property
    def original_length(self) -> int | None:
        """Up to this length the frequencies stay as they are; ``None``: they never change."""
        ...

    def frequencies(self, dim: int, base: float, length: int | None, device: Device = None) -> tuple[Tensor, float]:
        """(dim / 2,) frequencies in float64, and the factor. ``length`` is read by rules that depend on it."""
        ...


@dataclass(frozen=True)
class Default:
    """base^(-2k/d), as in the paper."""

    depends_on_length = False
    original_length = None

    def frequencies(self, dim: int, base: float, length: int | None, device: Device = None) -> tuple[Tensor, float]:
        return angles.frequencies(dim, base, device), 1.0


@dataclass(frozen=True)
class Linear:
    """Position interpolation (Chen et al. 2023): every frequency divided by ``factor``."""

    factor: float

    depends_on_length = False
    original_length = None

    def __post_init__(self) -> None:
        _positive("factor", self.factor)

    def frequencies(self, dim: int, base: float, length: int | None, device: Device = None) -> tuple[Tensor, float]:
        return angles.frequencies(dim, base, device) / self.factor, 1.0


@dataclass(frozen=True)
class Proportional:
    """Only the fastest ``share`` of the pairs turn; the rest stand still (Gemma's global layers).

    Unlike ``Rope(share=)`` the pairs are those of the whole head, and so are the frequencies.
    """

    share: float = 1.0
    factor: float = 1.0

    depends_on_length = False
    original_length = None

    def __post_init__(self) -> None:
        _positive("factor", self.factor)
        if not 0.0 <= self.share <= 1.0:
            raise BadInput(f"share={self.share}: the share of pairs that turn lies between 0 and 1")

    def frequencies(self, dim: int, base: float, length: int | None, device: Device = None) -> tuple[Tensor, float]:
        freq = angles.frequencies(dim, base, device)
        turning = torch.arange(dim // 2, device=freq.device) < int(self.share * dim // 2)
        return torch.where(turning, freq / self.factor, 0.0), 1.0


@dataclass(frozen=True)
class DynamicNTK:
    """NTK-aware scaling that grows with the length (bloc97, emozilla 2023): past ``original`` the base rises."""

    factor: float
    original: int

    depends_on_length = True

    def __post_init__(self) -> None:
        _at_least_one("factor", self.factor)
        _at_least_one("original", self.original)

    @property
    def original_length(self) -> int | None:
        return self.original

    def frequencies(self, dim: int, base: float, length: int | None, device: Device = None) -> tuple[Tensor, float]:
        if dim == 2:
            raise BadInput(f"dynamic NTK needs more than one pair of dimensions to turn, got a width of {dim}")
        length = self.original if length is None else max(length, self.original)
        stretch = self.factor * length / self.original - (self.factor - 1)
        return angles.frequencies(dim, base * stretch ** (dim / (dim - 2)), device), 1.0


@dataclass(frozen=True)
class YaRN:
    """YaRN (Peng et al. 2023): pairs that turn often within ``original`` keep their frequency, slow ones are
    interpolated, with a ramp between; and the scores are sharpened by the factor's logarithm."""

    factor: float
    original: int
    beta_fast: float = 32
    beta_slow: float = 1
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True

    depends_on_length = False
    original_length = None

    def __post_init__(self) -> None:
        _at_least_one("factor", self.factor)
        _at_least_one("original", self.original)
        if not self.beta_fast > self.beta_slow > 0:
            raise BadInput(f"beta_fast={self.beta_fast}, beta_slow={self.beta_slow}: the first must be the larger")

    def frequencies(self, dim: int, base: float, length: int | None, device: Device = None) -> tuple[Tensor, float]:
        freq = angles.frequencies(dim, base, device)
        low, high = self._pair_turning(self.beta_fast, dim, base), self._pair_turning(self.beta_slow, dim, base)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, dim - 1)
        high = high + 0.001 if low == high else high
        pair = torch.arange(dim // 2, device=freq.device, dtype=freq.dtype)
        slow = ((pair - low) / (high - low)).clamp(0, 1)
        return freq * (1 - slow) + freq / self.factor * slow, self._sharpening()

    def _pair_turning(self, turns: float, dim: int, base: float) -> float:
        """Which pair (as a real number) makes so many turns within the original length."""
        return dim * math.log(self.original / (turns * 2 * math.pi)) / (2 * math.log(base))

    def _sharpening(self) -> float:
        if self.attention_factor is not None:
            return self.attention_factor
        grown = 0.1 * math.log(self.factor)
        if self.mscale and self.mscale_all_dim:
            return (self.mscale * grown + 1.0) / (self.mscale_all_dim * grown + 1.0)
        return grown + 1.0


@dataclass(frozen=True)
class LongRope:
    """LongRoPE (Ding et al. 2024): a searched divisor per pair, ``short`` up to ``original``, ``long`` beyond it."""

    short: tuple[float, ...]
    long: tuple[float, ...]
    original: int
    factor: float | None = None  # new length / original: gives the attention factor where that is not said
    attention_factor: float | None = None

    depends_on_length = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "short", tuple(self.short))  # a list from a config file: tuples can be hashed
        object.__setattr__(self, "long", tuple(self.long))
        _at_least_one("original", self.original)
        if self.factor is None and self.attention_factor is None:
            raise BadInput("LongRope needs factor= (new length / original length) or attention_factor=: got neither")
        if self.factor is not None:
            _positive("factor", self.factor)

    @property
    def original_length(self) -> int | None:
        return self.original

    def frequencies(self, dim: int, base: float, length: int | None, device: Device = None) -> tuple[Tensor, float]:
        for name, divisors in (("short", self.short), ("long", self.long)):
            if len(divisors) != dim // 2:
                raise BadInput(f"LongRope has {len(divisors)} {name} factors for {dim // 2} pairs: give one a pair")
        freq = angles.frequencies(dim, base, device)
        divisors = self.long if length is not None and length > self.original else self.short
        return freq / torch.tensor(divisors, device=freq.device, dtype=freq.dtype), self._sharpening()

    def _sharpening(self) -> float:
        if self.attention_factor is not None:
            return self.attention_factor
        assert self.factor is not None
        return math.sqrt(1 + math.log(self.factor) / math.log(self.original)) if self.factor > 1 else 1.0


@dataclass(frozen=True)
class Llama3:
    """LLaMA-3.1: waves longer than original / low are slowed by ``factor``, those shorter than original / high
    are kept, and those between are mixed by how often they turn within the original length."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original: int

    depends_on_length = False
    original_length = None

    def __post_init__(self) -> None:
        _at_least_one("factor", self.factor)
        _at_least_one("original", self.original)
        low, high = self.low_freq_factor, self.high_freq_factor
        if not high > low > 0:
            raise BadInput(f"low_freq_factor={low}, high_freq_factor={high}: the second must be the larger")

    def frequencies(self, dim: int, base: float, length: int | None, device: Device = None) -> tuple[Tensor, float]:
        freq = angles.frequencies(dim, base, device)
        turns = self.original * freq / (2 * math.pi)
        kept = ((turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)).clamp(0, 1)
        return freq * kept + freq / self.factor * (1 - kept), 1.0


def _positive(name: str, value: float) -> None:
    if not 0 < value < math.inf:  # so written, it refuses nan
        raise BadInput(f"{name}={value}: use a positive number")


def _at_least_one(name: str, value: float) -> None:
    if not 1 <= value < math.inf:
        raise BadInput(f"{name}={value}: use 1 or more (1 changes nothing)")
