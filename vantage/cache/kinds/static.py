"""Buffers of a fixed size that are read whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, final

import torch

from vantage.cache.codecs import Codec, PlainCodec, SingleCodec, token_bytes
from vantage.cache.kinds.kind import LayerPlan, LedgerNeed
from vantage.cache.ledger import Ledger
from vantage.cache.static import Static
from vantage.spec.registry import Entry, parameter


@final
@dataclass(frozen=True)
class StaticCache:
    """``capacity`` tokens a row, all of which every pass reads. Nothing is let go."""

    capacity: int = field(default=2048, metadata=parameter("tokens that a row can hold", low=1))

    ledgers: ClassVar[tuple[type[Ledger], ...]] = (Static,)
    codecs: ClassVar[tuple[type[Codec], ...]] = (PlainCodec, SingleCodec)
    exact: ClassVar[bool] = True
    evicts: ClassVar[bool] = False

    def refuses(self, layers: Sequence[LayerPlan]) -> str | None:
        return None

    def ledger(self, need: LedgerNeed) -> Static:
        return Static(need.batch, self._size(need), device=need.device)

    def codec(self, layer: LayerPlan, dtype: torch.dtype) -> Codec:
        return layer.codec(dtype)

    def bytes(self, layer: LayerPlan, need: LedgerNeed, dtype: torch.dtype) -> int:
        # one place more, which nobody reads, for what is not kept
        return need.batch * (self._size(need) + 1) * token_bytes(self.codec(layer, dtype))

    def _size(self, need: LedgerNeed) -> int:
        return self.capacity if need.capacity is None else need.capacity


ENTRY = Entry(
    "static",
    StaticCache,
    title="Static",
    summary="Buffers of a fixed size, read whole; empty places have no position. One CUDA graph serves all steps.",
    variants={"static": lambda size: StaticCache(capacity=size.length)},
)
