"""Keys and values in 4, 3 or 2 bits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, final

import torch

from vantage.cache.codecs import Codec, token_bytes
from vantage.cache.contiguous import Contiguous
from vantage.cache.kinds.contiguous import ContiguousCache
from vantage.cache.kinds.kind import CacheKind, ForgettingKind, LayerPlan, LedgerNeed
from vantage.cache.ledger import Ledger
from vantage.cache.low_bits import LowBitCodec, check_bits
from vantage.spec.masks import Mask
from vantage.spec.registry import Entry


@final
@dataclass(frozen=True)
class LowBitCache:
    """Another kind's arrangement, in so many bits: keys by Hadamard levels, values between smallest and largest."""

    of: CacheKind = ContiguousCache()
    key_bits: int = 4
    value_bits: int = 4

    ledgers: ClassVar[tuple[type[Ledger], ...]] = (Contiguous,)
    codecs: ClassVar[tuple[type[Codec], ...]] = (LowBitCodec,)
    exact: ClassVar[bool] = False
    evicts: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_bits(self.key_bits, self.value_bits)

    @property
    def own_ledgers(self) -> bool:
        return isinstance(self.of, ForgettingKind) and self.of.own_ledgers

    @property
    def mask(self) -> Mask | None:
        return self.of.mask if isinstance(self.of, ForgettingKind) else None

    def refuses(self, layers: Sequence[LayerPlan]) -> str | None:
        return self.of.refuses(layers)

    def ledger(self, need: LedgerNeed) -> Ledger:
        return self.of.ledger(need)

    def codec(self, layer: LayerPlan, dtype: torch.dtype) -> Codec:
        return LowBitCodec(layer.codec(dtype), self.key_bits, self.value_bits)

    def bytes(self, layer: LayerPlan, need: LedgerNeed, dtype: torch.dtype) -> int:
        plain = token_bytes(self.of.codec(layer, dtype))
        return self.of.bytes(layer, need, dtype) // plain * token_bytes(self.codec(layer, dtype))


ENTRY = Entry(
    "low-bit",
    LowBitCache,
    title="Low bit",
    summary="Contiguous, in 4, 3 or 2 bits: keys turned by a Hadamard matrix, to the best levels (TurboQuant).",
    variants={"low-bit": lambda size: LowBitCache(value_bits=3)},
)
