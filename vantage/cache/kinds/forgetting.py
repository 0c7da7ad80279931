"""What kinds of caches share that forget what masks still show."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import torch

from vantage.cache.codecs import Codec, PlainCodec, SingleCodec, token_bytes
from vantage.cache.contiguous import Contiguous
from vantage.cache.kinds.contiguous import ContiguousCache
from vantage.cache.kinds.kind import LayerPlan, LedgerNeed
from vantage.cache.ledger import Ledger
from vantage.cache.policies import Policy
from vantage.cache.selective import Selective
from vantage.spec.masks import Mask
from vantage.spec.registry import Refusal

EVERY_KEY = "this model looks at every key before a query, and a cache that forgets does not have them all"
NEEDS_EVERY_KEY = (
    Refusal({"encoding": ("cope", "path", "dape", "selective-rope")}, EVERY_KEY),
    Refusal({"attention": ("indexer", "indexer-shared", "hca", "hca-turned", "csa", "csa-turned")}, EVERY_KEY),
)
NOT_CAUSAL = "weights decide what is kept one token after the other, and so need causal attention"
# of every kind that goes by weights
BY_WEIGHT = (
    *NEEDS_EVERY_KEY,
    Refusal({"mask": ("prefix", "bidirectional")}, NOT_CAUSAL),
    Refusal({"kernel": ("sdpa", "flex", "blocks-of-2")}, "hand back"),
    Refusal({"scenario": ("rollback",)}, "later queries have had a say in what is kept"),
)


class ForgettingCache(ABC):
    """A kind is a frozen dataclass that says its policy."""

    ledgers: ClassVar[tuple[type[Ledger], ...]] = (Selective, Contiguous)
    codecs: ClassVar[tuple[type[Codec], ...]] = (PlainCodec, SingleCodec)
    exact: ClassVar[bool] = True
    evicts: ClassVar[bool] = True
    own_ledgers: ClassVar[bool]  # every layer decides for itself
    by_head: ClassVar[bool]  # and so does every key/value head
    not_causal: ClassVar[str] = NOT_CAUSAL  # why it needs causal attention, where it does

    def __post_init__(self) -> None:
        self.policy()  # which refuses numbers that cannot be

    @abstractmethod
    def policy(self) -> Policy: ...

    @property
    def mask(self) -> Mask | None:
        """No mask knows weights, nor places."""
        policy = self.policy()
        return None if policy.observes or policy.by_place else policy.mask

    def refuses(self, layers: Sequence[LayerPlan]) -> str | None:
        if any(layer.every_key for layer in layers):
            return EVERY_KEY
        if self.mask is None and not all(layer.mask.causal for layer in layers if layer.kv_heads):
            return self.not_causal
        keyed = [layer for layer in layers if layer.kv_heads]
        if self.by_head and any(stream.heads % layer.kv_heads for layer in keyed for stream in layer.streams):
            return "each key/value head keeps tokens of its own, and a layer keeps streams that heads share"
        return None

    def ledger(self, need: LedgerNeed) -> Ledger:
        if not need.kv_heads:
            return ContiguousCache().ledger(need)
        heads = need.kv_heads if self.by_head else 1
        return Selective(need.batch, self.policy(), heads=heads, draft=self._draft(need), device=need.device)

    def codec(self, layer: LayerPlan, dtype: torch.dtype) -> Codec:
        return layer.codec(dtype)

    def bytes(self, layer: LayerPlan, need: LedgerNeed, dtype: torch.dtype) -> int:
        places = Selective(need.batch, self.policy(), draft=self._draft(need)).places
        return need.batch * places * token_bytes(self.codec(layer, dtype))

    def _draft(self, need: LedgerNeed) -> int:
        """What goes by weights is never taken back."""
        return 0 if self.policy().observes else need.draft or 0
