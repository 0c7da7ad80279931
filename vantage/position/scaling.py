"""Frequency rules: how RoPE rotates at lengths it was not trained for (P9).

A rule is frozen data. ``frequencies`` gives one frequency per pair of dimensions and a factor for
cosines and sines alike (so scores grow with its square). Two rules look at the length of the context.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from vantage.errors import BadInput
from vantage.position import angles
from vantage.spec.registry import Entry, Fit, MatrixSize, Registry, parameter

Device = torch.device | str | None
LONGER = parameter("new length / trained length", 1.0, 256.0, default=4.0)
SHARPENING = parameter(
    "attention temperature; 0: the rule's own", 0.0, 16.0, default=0.0, read=lambda factor, fit: factor or None
)


def _ramp(slowest: float, fit: Fit) -> tuple[float, ...]:
    """Divisors that rise from 1 to that of the slowest pair."""
    pairs = max(1, fit.rotary_dim // 2)
    return tuple(1 + (slowest - 1) * k / max(1, pairs - 1) for k in range(pairs))


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

    factor: float = field(metadata=parameter("positions are divided by it", 1.0, 256.0, default=4.0))

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

    share: float = field(
        default=1.0,
        metadata=parameter(
            "fraction of the pairs that are rotated, the fastest first", 0.0, 1.0, default=0.5, name="turning"
        ),
    )
    factor: float = field(default=1.0, metadata=parameter("positions are divided by it", 1.0, 256.0))

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

    factor: float = field(
        metadata=parameter("how fast the base grows beyond the original length", 1.0, 256.0, default=4.0)
    )
    original: int = field(metadata=parameter("trained length", 2, 2**20, default=512))

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

    factor: float = field(metadata=LONGER)
    original: int = field(metadata=parameter("trained length", 2, 2**20, default=512))
    beta_fast: float = field(
        default=32,
        metadata=parameter("pairs with more turns than this within the trained length are not slowed", 0.1, 1024.0),
    )
    beta_slow: float = field(
        default=1, metadata=parameter("pairs with fewer turns than this are slowed by the full factor", 0.01, 512.0)
    )
    attention_factor: float | None = field(default=None, metadata=SHARPENING)
    mscale: float | None = None  # these two are for checkpoints that carry the number
    mscale_all_dim: float | None = None
    truncate: bool = field(default=True, metadata=parameter("round the ends of the ramp to whole pairs"))

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

    short: tuple[float, ...] = field(
        metadata=parameter(
            "slowest pair's factor up to the trained length; it rises from 1 over the pairs",
            1.0,
            256.0,
            default=1.0,
            read=_ramp,
        )
    )
    long: tuple[float, ...] = field(
        metadata=parameter("slowest pair's factor beyond the trained length", 1.0, 256.0, default=4.0, read=_ramp)
    )
    original: int = field(
        metadata=parameter("trained length: beyond it the long factors are used", 2, 2**20, default=512)
    )
    factor: float | None = field(default=None, metadata=LONGER)  # where the attention factor is not said, it gives it
    attention_factor: float | None = field(default=None, metadata=SHARPENING)

    depends_on_length = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "short", tuple(self.short))  # a list from a config file: tuples can be hashed
        object.__setattr__(self, "long", tuple(self.long))
        _at_least_one("original", self.original)
        if self.factor is None and self.attention_factor is None:
            raise BadInput("LongRope needs factor= (new length / original length) or attention_factor=: got neither")
        if self.factor is not None:
            _positive("factor", self.factor)
        if self.attention_factor is None and self.original == 1:
            raise BadInput("original=1: the attention factor is divided by its logarithm, so give 2 or more, or say it")

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

    factor: float = field(metadata=parameter("factor for long wavelengths", 1.0, 256.0, default=8.0))
    low_freq_factor: float = field(
        metadata=parameter("wavelengths longer than original / this are slowed", 0.01, 64.0, default=1.0)
    )
    high_freq_factor: float = field(
        metadata=parameter("wavelengths shorter than original / this are kept", 0.02, 128.0, default=4.0)
    )
    original: int = field(metadata=parameter("trained length", 2, 2**20, default=512))

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


def _longrope(size: MatrixSize) -> LongRope:
    short = tuple(1.0 + 0.25 * i for i in range(size.head_dim // 2))
    return LongRope(short, tuple(4.0 * f for f in short), original=size.original, factor=4.0)


# What RoPE can be scaled by; "rope-linear" and so on are RoPE with that rule.
SCALINGS: Registry[Rule] = Registry(
    "frequency rule",
    (
        Entry(
            "linear",
            Linear,
            "linear",
            "All positions are pressed together (Chen et al. 2023).",
            variants={"linear": lambda size: Linear(2.0)},
        ),
        Entry(
            "proportional",
            Proportional,
            "proportional",
            "Only the fastest pairs turn (Gemma's global layers).",
            variants={"proportional": lambda size: Proportional(0.5)},
        ),
        Entry(
            "ntk",
            DynamicNTK,
            "dynamic NTK",
            "Past the original length the base rises (bloc97, emozilla).",
            variants={"ntk": lambda size: DynamicNTK(2.0, original=size.original)},
        ),
        Entry(
            "yarn",
            YaRN,
            "YaRN",
            "Fast pairs are kept, slow ones interpolated (Peng et al. 2023).",
            variants={"yarn": lambda size: YaRN(4.0, original=size.original)},
        ),
        Entry(
            "longrope",
            LongRope,
            "LongRoPE",
            "A divisor for each pair; here a ramp for the searched ones.",
            variants={"longrope": _longrope},
        ),
        Entry(
            "llama3",
            Llama3,
            "LLaMA 3",
            "Long waves are slowed, short ones kept, a ramp between.",
            variants={"llama3": lambda size: Llama3(4.0, 1.0, 4.0, original=size.original)},
        ),
    ),
    needs=("depends_on_length", "original_length", "frequencies"),
)
