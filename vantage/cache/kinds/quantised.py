"""Keys and values in 8 or 16 bits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, final

import torch

from vantage.cache.codecs import Codec, HalfCodec, Int8Codec, token_bytes
from vantage.cache.contiguous import Contiguous
from vantage.cache.kinds.contiguous import ContiguousCache
from vantage.cache.kinds.kind import CacheKind, ForgettingKind, LayerPlan, LedgerNeed
from vantage.cache.ledger import Ledger
from vantage.errors import BadInput
from vantage.spec.masks import Mask
from vantage.spec.registry import Entry

CODECS = {8: Int8Codec, 16: HalfCodec}


@final
@dataclass(frozen=True)
class QuantisedCache:
    """Another kind's arrangement, in int8 with one scale for each token and head, or in half precision."""

    of: CacheKind = ContiguousCache()
    bits: int = 8

    ledgers: ClassVar[tuple[type[Ledger], ...]] = (Contiguous,)
    codecs: ClassVar[tuple[type[Codec], ...]] = (Int8Codec, HalfCodec)
    exact: ClassVar[bool] = False
    evicts: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.bits not in CODECS:
            raise BadInput(f"bits={self.bits}: keys and values are kept in 8 or 16 bits")

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
        return CODECS[self.bits](layer.codec(dtype))

    def bytes(self, layer: LayerPlan, need: LedgerNeed, dtype: torch.dtype) -> int:
        plain = token_bytes(self.of.codec(layer, dtype))
        return self.of.bytes(layer, need, dtype) // plain * token_bytes(self.codec(layer, dtype))


ENTRY = Entry(
    "quantised",
    QuantisedCache,
    title="Quantised",
    summary="Contiguous, in 8 bits and a scale for each token and head: about half of what 16 bits take.",
    variants={"quantised": lambda size: QuantisedCache(), "half": lambda size: QuantisedCache(bits=16)},
)
