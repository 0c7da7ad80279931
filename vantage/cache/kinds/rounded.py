"""Another kind's arrangement, with its keys and values rounded to fewer bits."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from vantage.cache.codecs import Codec, token_bytes
from vantage.cache.contiguous import Contiguous
from vantage.cache.kinds.contiguous import ContiguousCache
from vantage.cache.kinds.kind import CacheKind, LayerPlan, LedgerNeed, as_forgetting
from vantage.cache.ledger import Ledger
from vantage.spec.masks import Mask


@dataclass(frozen=True)
class RoundedKind(ABC):
    """Where tokens go and what is forgotten is the other kind's; a kind of this sort says what ``codec`` it has."""

    of: CacheKind = ContiguousCache()

    ledgers: ClassVar[tuple[type[Ledger], ...]] = (Contiguous,)
    exact: ClassVar[bool] = False
    evicts: ClassVar[bool] = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "evicts", self.of.evicts)  # as the other kind does: frozen, and no field

    @property
    def own_ledgers(self) -> bool:
        kind = as_forgetting(self.of)
        return kind is not None and kind.own_ledgers

    @property
    def mask(self) -> Mask | None:
        kind = as_forgetting(self.of)
        return None if kind is None else kind.mask

    def refuses(self, layers: Sequence[LayerPlan]) -> str | None:
        return self.of.refuses(layers)

    def ledger(self, need: LedgerNeed) -> Ledger:
        return self.of.ledger(need)

    @abstractmethod
    def codec(self, layer: LayerPlan, dtype: torch.dtype) -> Codec: ...

    def bytes(self, layer: LayerPlan, need: LedgerNeed, dtype: torch.dtype) -> int:
        plain = token_bytes(self.of.codec(layer, dtype))
        return self.of.bytes(layer, need, dtype) // plain * token_bytes(self.codec(layer, dtype))
