"""The tokens that got most weight, head by head, and the last ones (H2O, Zhang et al. 2023)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, final

import torch

from vantage.cache.codecs import Codec, PlainCodec, SingleCodec, token_bytes
from vantage.cache.contiguous import Contiguous
from vantage.cache.kinds.contiguous import ContiguousCache
from vantage.cache.kinds.kind import EVERY_KEY, LayerPlan, LedgerNeed
from vantage.cache.ledger import Ledger
from vantage.cache.policies import HeavyHitters
from vantage.cache.selective import Selective
from vantage.spec.masks import Mask
from vantage.spec.registry import Entry, Refusal

NOT_CAUSAL = "weights decide what is kept one token after the other, and so need causal attention"


@final
@dataclass(frozen=True)
class HeavyHitterCache:
    """``heavy`` tokens that got most weight from all queries so far, and the last ``recent``, the query included.

    Every key/value head of every layer decides for itself; query heads that share keys add their weights. Past heavy +
    recent tokens the model runs one at a time, since each decides what the next one sees, and the weights are formed.
    """

    heavy: int = 512
    recent: int = 512

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
        if not all(layer.mask.causal for layer in layers if layer.kv_heads):
            return NOT_CAUSAL
        if any(stream.heads % layer.kv_heads for layer in layers for stream in layer.streams if layer.kv_heads):
            return "each key/value head keeps tokens of its own, and a layer keeps streams that heads share"
        return None

    def ledger(self, need: LedgerNeed) -> Ledger:
        if not need.kv_heads:
            return ContiguousCache().ledger(need)
        return Selective(need.batch, self._policy(), heads=need.kv_heads, device=need.device)

    def codec(self, layer: LayerPlan, dtype: torch.dtype) -> Codec:
        return layer.codec(dtype)

    def bytes(self, layer: LayerPlan, need: LedgerNeed, dtype: torch.dtype) -> int:
        places = Selective(need.batch, self._policy()).places
        return need.batch * places * token_bytes(self.codec(layer, dtype))

    def _policy(self) -> HeavyHitters:
        return HeavyHitters(self.heavy, self.recent)


ENTRY = Entry(
    "heavy-hitters",
    HeavyHitterCache,
    title="Heavy hitters",
    summary="The tokens that got most weight so far, head by head, and the last ones (H2O).",
    variants={"heavy-hitters": lambda size: HeavyHitterCache(3, 2)},
    refusals=(
        Refusal({"encoding": ("cope",)}, EVERY_KEY),
        Refusal({"attention": ("indexer", "indexer-shared")}, EVERY_KEY),
        Refusal({"mask": ("prefix", "bidirectional")}, NOT_CAUSAL),
        Refusal({"kernel": ("sdpa", "flex")}, "hand back"),
        Refusal({"scenario": ("rollback",)}, "later queries have had a say in what is kept"),
    ),
)
