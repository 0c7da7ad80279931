"""The tokens that the last query gave most weight, for all heads of a layer together (TOVA, Oren et al. 2024)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, final

import torch

from vantage.cache.codecs import Codec, PlainCodec, SingleCodec, token_bytes
from vantage.cache.contiguous import Contiguous
from vantage.cache.kinds.contiguous import ContiguousCache
from vantage.cache.kinds.heavy_hitters import NOT_CAUSAL
from vantage.cache.kinds.kind import EVERY_KEY, LayerPlan, LedgerNeed
from vantage.cache.ledger import Ledger
from vantage.cache.policies import LastWeights
from vantage.cache.selective import Selective
from vantage.spec.masks import Mask
from vantage.spec.registry import Entry, Refusal


@final
@dataclass(frozen=True)
class TovaCache:
    """``size`` tokens: past that, each new one drives out the one that it gave least weight, over all heads. It stays
    itself until the next one comes.

    Every layer decides for itself. Past ``size`` tokens the model runs one at a time, since each decides what the next
    one sees, and the weights are formed.
    """

    size: int = 1024

    ledgers: ClassVar[tuple[type[Ledger], ...]] = (Selective, Contiguous)
    codecs: ClassVar[tuple[type[Codec], ...]] = (PlainCodec, SingleCodec)
    exact: ClassVar[bool] = True
    evicts: ClassVar[bool] = True
    own_ledgers: ClassVar[bool] = True
    mask: ClassVar[Mask | None] = None  # no mask knows the weights

    def __post_init__(self) -> None:
        self._policy()

    def refuses(self, layers: Sequence[LayerPlan]) -> str | None:
        if any(layer.every_key for layer in layers):
            return EVERY_KEY
        return None if all(layer.mask.causal for layer in layers if layer.kv_heads) else NOT_CAUSAL

    def ledger(self, need: LedgerNeed) -> Ledger:
        if not need.kv_heads:
            return ContiguousCache().ledger(need)
        return Selective(need.batch, self._policy(), device=need.device)

    def codec(self, layer: LayerPlan, dtype: torch.dtype) -> Codec:
        return layer.codec(dtype)

    def bytes(self, layer: LayerPlan, need: LedgerNeed, dtype: torch.dtype) -> int:
        places = Selective(need.batch, self._policy()).places
        return need.batch * places * token_bytes(self.codec(layer, dtype))

    def _policy(self) -> LastWeights:
        return LastWeights(self.size)


ENTRY = Entry(
    "tova",
    TovaCache,
    title="TOVA",
    summary="The tokens that the last query gave most weight, for all heads of a layer together.",
    variants={"tova": lambda size: TovaCache(5)},
    refusals=(
        Refusal({"encoding": ("cope",)}, EVERY_KEY),
        Refusal({"attention": ("indexer", "indexer-shared")}, EVERY_KEY),
        Refusal({"mask": ("prefix", "bidirectional")}, NOT_CAUSAL),
        Refusal({"kernel": ("sdpa", "flex")}, "hand back"),
        Refusal({"scenario": ("rollback",)}, "later queries have had a say in what is kept"),
    ),
)
