"""The first tokens and the last ones (StreamingLLM, Xiao et al. 2023), whatever the model's masks would show."""

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
from vantage.cache.policies import SinkWindow
from vantage.cache.selective import Selective
from vantage.spec.masks import Mask
from vantage.spec.registry import Entry, Refusal

NOT_CAUSAL = "places in a cache that forgets are known one token after the other, and so need causal attention"


@final
@dataclass(frozen=True)
class SinkCache:
    """A query sees the first ``sinks`` tokens of its document and the last ``window``, itself included.

    ``by_place``: tokens stand at their places among those (the paper), so that no distance is ever longer than sinks
    and window together; keys are then turned when they are read. Otherwise they stand where they stood.
    """

    sinks: int = 4
    window: int = 1024
    by_place: bool = False

    ledgers: ClassVar[tuple[type[Ledger], ...]] = (Selective, Contiguous)
    codecs: ClassVar[tuple[type[Codec], ...]] = (PlainCodec, SingleCodec)
    exact: ClassVar[bool] = True
    evicts: ClassVar[bool] = True
    own_ledgers: ClassVar[bool] = False

    def __post_init__(self) -> None:
        self._policy()

    @property
    def mask(self) -> Mask | None:
        return None if self.by_place else self._policy().mask

    def refuses(self, layers: Sequence[LayerPlan]) -> str | None:
        if any(layer.every_key for layer in layers):
            return EVERY_KEY
        if self.by_place and not all(layer.mask.causal for layer in layers if layer.kv_heads):
            return NOT_CAUSAL
        return None

    def ledger(self, need: LedgerNeed) -> Ledger:
        if not need.kv_heads:
            return ContiguousCache().ledger(need)
        return Selective(need.batch, self._policy(), draft=need.draft or 0, device=need.device)

    def codec(self, layer: LayerPlan, dtype: torch.dtype) -> Codec:
        return layer.codec(dtype)

    def bytes(self, layer: LayerPlan, need: LedgerNeed, dtype: torch.dtype) -> int:
        places = Selective(need.batch, self._policy(), draft=need.draft or 0).places
        return need.batch * places * token_bytes(self.codec(layer, dtype))

    def _policy(self) -> SinkWindow:
        return SinkWindow(self.sinks, self.window, self.by_place)


ENTRY = Entry(
    "sinks",
    SinkCache,
    title="Sinks with a window",
    summary="The first tokens and the last ones; what lies between is forgotten (StreamingLLM).",
    variants={
        "sinks": lambda size: SinkCache(2, size.reach),
        "sinks-by-place": lambda size: SinkCache(2, size.reach, by_place=True),
    },
    refusals=(
        Refusal({"encoding": ("cope",)}, EVERY_KEY),
        Refusal({"attention": ("indexer", "indexer-shared")}, EVERY_KEY),
        Refusal({"cache": ("sinks-by-place",), "mask": ("prefix", "bidirectional")}, NOT_CAUSAL),
    ),
)
