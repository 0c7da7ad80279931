"""The last tokens of a window, round and round; layers without a window are contiguous."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, final

import torch

from vantage.cache.codecs import Codec, PlainCodec, SingleCodec, token_bytes
from vantage.cache.contiguous import Contiguous
from vantage.cache.kinds.contiguous import ContiguousCache
from vantage.cache.kinds.kind import LayerPlan, LedgerNeed
from vantage.cache.ledger import Ledger
from vantage.cache.ring import Ring
from vantage.spec.registry import Entry, Refusal


@final
@dataclass(frozen=True)
class RingCache:
    """As many places as the window has, whatever the length."""

    ledgers: ClassVar[tuple[type[Ledger], ...]] = (Ring, Contiguous)
    codecs: ClassVar[tuple[type[Codec], ...]] = (PlainCodec, SingleCodec)
    exact: ClassVar[bool] = True
    evicts: ClassVar[bool] = True

    def refuses(self, layers: Sequence[LayerPlan]) -> str | None:
        if all(layer.reach is None for layer in layers):
            return "a ring keeps a window, and no layer of this model has one: use kind='contiguous' or 'paged'"
        return None

    def ledger(self, need: LedgerNeed) -> Ledger:
        if need.reach is None:
            return ContiguousCache().ledger(need)
        return Ring(need.batch, window=need.reach, draft=need.draft or 0, device=need.device)

    def codec(self, layer: LayerPlan, dtype: torch.dtype) -> Codec:
        return layer.codec(dtype)

    def bytes(self, layer: LayerPlan, need: LedgerNeed, dtype: torch.dtype) -> int:
        if layer.reach is None:
            return ContiguousCache().bytes(layer, need, dtype)
        # one place more, which nobody reads, for what is not kept
        return need.batch * (layer.reach + (need.draft or 0) + 1) * token_bytes(self.codec(layer, dtype))


ENTRY = Entry(
    "ring",
    RingCache,
    title="Ring",
    summary="Layers with a window keep as many tokens as it shows; older ones are overwritten.",
    refusals=(Refusal({"mask": ("causal", "prefix", "bidirectional")}, "window"),),
)
