"""Keys and values in 8 or 16 bits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import torch

from vantage.cache.codecs import Codec, HalfCodec, Int8Codec
from vantage.cache.kinds.kind import LayerPlan
from vantage.cache.kinds.rounded import RoundedKind
from vantage.errors import BadInput
from vantage.spec.registry import Entry

CODECS = {8: Int8Codec, 16: HalfCodec}


@final
@dataclass(frozen=True)
class QuantisedCache(RoundedKind):
    """Another kind's arrangement, in int8 with one scale for each token and head, or in half precision."""

    bits: int = 8

    codecs: ClassVar[tuple[type[Codec], ...]] = (Int8Codec, HalfCodec)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.bits not in CODECS:
            raise BadInput(f"bits={self.bits}: keys and values are kept in 8 or 16 bits")

    def codec(self, layer: LayerPlan, dtype: torch.dtype) -> Codec:
        return CODECS[self.bits](layer.codec(dtype))


ENTRY = Entry(
    "quantised",
    QuantisedCache,
    title="Quantised",
    summary="Contiguous, in 8 bits and a scale for each token and head: about half of what 16 bits take.",
    variants={"quantised": lambda size: QuantisedCache(), "half": lambda size: QuantisedCache(bits=16)},
)
