"""Keys and values in 4, 3 or 2 bits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import torch

from vantage.cache.codecs import Codec
from vantage.cache.kinds.kind import LayerPlan
from vantage.cache.kinds.rounded import RoundedKind
from vantage.cache.low_bits import LowBitCodec, check_bits
from vantage.spec.registry import Entry


@final
@dataclass(frozen=True)
class LowBitCache(RoundedKind):
    """Another kind's arrangement, in so many bits: keys by Hadamard levels, values between smallest and largest."""

    key_bits: int = 4
    value_bits: int = 4

    codecs: ClassVar[tuple[type[Codec], ...]] = (LowBitCodec,)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_bits(self.key_bits, self.value_bits)

    def codec(self, layer: LayerPlan, dtype: torch.dtype) -> Codec:
        return LowBitCodec(layer.codec(dtype), self.key_bits, self.value_bits)


ENTRY = Entry(
    "low-bit",
    LowBitCache,
    title="Low bit",
    summary="Contiguous, in 4, 3 or 2 bits: keys turned by a Hadamard matrix, to the best levels (TurboQuant).",
    variants={"low-bit": lambda size: LowBitCache(value_bits=3)},
)
