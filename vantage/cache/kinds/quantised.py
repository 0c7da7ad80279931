"""Keys and values in 8 bits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, final

import torch

from vantage.cache.codecs import Codec, Int8Codec, token_bytes
from vantage.cache.contiguous import Contiguous
from vantage.cache.kinds.contiguous import ContiguousCache
from vantage.cache.kinds.kind import CacheKind, ForgettingKind, LayerPlan, LedgerNeed
from vantage.cache.ledger import Ledger
from vantage.spec.masks import Mask
from vantage.spec.registry import Entry


@final
@dataclass(frozen=True)
class QuantisedCache:
    """Another kind's arrangement, in int8 with one scale for each token and head."""

    of: CacheKind = ContiguousCache()

    ledgers: ClassVar[tuple[type[Ledger], ...]] = (Contiguous,)
    codecs: ClassVar[tuple[type[Codec], ...]] = (Int8Codec,)
    exact: ClassVar[bool] = False
    evicts: ClassVar[bool] = False

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
        return Int8Codec(layer.codec(dtype))

    def bytes(self, layer: LayerPlan, need: LedgerNeed, dtype: torch.dtype) -> int:
        plain = token_bytes(self.of.codec(layer, dtype))
        return self.of.bytes(layer, need, dtype) // plain * token_bytes(self.codec(layer, dtype))


ENTRY = Entry(
    "quantised",
    QuantisedCache,
    title="Quantised",
    summary="Contiguous, in 8 bits and a scale for each token and head: about half of what 16 bits take.",
)
