"""Tokens side by side, in the order they came."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, final

import torch

from vantage.cache.codecs import Codec, PlainCodec, SingleCodec, token_bytes
from vantage.cache.contiguous import Contiguous
from vantage.cache.kinds.kind import LayerPlan, LedgerNeed
from vantage.cache.ledger import Ledger
from vantage.spec.registry import Entry


@final
@dataclass(frozen=True)
class ContiguousCache:
    """``capacity`` tokens a row, or growing by doubling."""

    capacity: int | None = None

    ledgers: ClassVar[tuple[type[Ledger], ...]] = (Contiguous,)
    codecs: ClassVar[tuple[type[Codec], ...]] = (PlainCodec, SingleCodec)
    exact: ClassVar[bool] = True
    evicts: ClassVar[bool] = False

    def refuses(self, layers: Sequence[LayerPlan]) -> str | None:
        return None

    def ledger(self, need: LedgerNeed) -> Contiguous:
        capacity = self.capacity if need.capacity is None else need.capacity
        return Contiguous(need.batch, capacity=capacity, window=need.reach, device=need.device)

    def codec(self, layer: LayerPlan, dtype: torch.dtype) -> Codec:
        return layer.codec(dtype)

    def bytes(self, layer: LayerPlan, need: LedgerNeed, dtype: torch.dtype) -> int:
        assert need.capacity is not None
        return need.batch * need.capacity * token_bytes(self.codec(layer, dtype))


ENTRY = Entry(
    "contiguous",
    ContiguousCache,
    title="Contiguous",
    summary="Keys and values side by side in one buffer for each layer. Nothing is copied to read them.",
    variants={
        "contiguous": lambda size: ContiguousCache(),
        "fixed": lambda size: ContiguousCache(capacity=size.length),
    },
)
