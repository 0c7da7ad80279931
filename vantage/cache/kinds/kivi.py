"""Keys and values in 4 or 2 bits, in groups; the newest tokens as they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, final

import torch

from vantage.cache.codecs import Codec, PlainCodec, SingleCodec, token_bytes
from vantage.cache.contiguous import Contiguous
from vantage.cache.grouped import SEGMENTS, Grouped, Grouping
from vantage.cache.kinds.kind import LayerPlan, LedgerNeed
from vantage.cache.kivi import KiviCodec, check_groups, grouped
from vantage.cache.ledger import Ledger
from vantage.spec.registry import Entry, Refusal

NOT_CAUSAL = "a prompt is read in pieces, between which groups are packed, and so needs causal attention"


@final
@dataclass(frozen=True)
class KiviCache:
    """``group`` tokens are packed together once ``newest`` later ones are there, values by ``channels`` channels."""

    bits: int = 2
    group: int = 32
    newest: int = 128
    channels: int = 32

    ledgers: ClassVar[tuple[type[Ledger], ...]] = (Grouped, Contiguous)
    codecs: ClassVar[tuple[type[Codec], ...]] = (KiviCodec, PlainCodec, SingleCodec)
    exact: ClassVar[bool] = False
    evicts: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_groups(self.bits, self.group, self.channels)
        _ = self.grouping  # which refuses numbers that cannot be

    @property
    def grouping(self) -> Grouping:
        return Grouping(self.group, self.newest)

    def refuses(self, layers: Sequence[LayerPlan]) -> str | None:
        return None if all(layer.mask.causal for layer in layers if layer.kv_heads) else NOT_CAUSAL

    def ledger(self, need: LedgerNeed) -> Grouped:
        return Grouped(need.batch, self.grouping, draft=need.draft or 0, capacity=need.capacity, device=need.device)

    def codec(self, layer: LayerPlan, dtype: torch.dtype) -> Codec:
        return grouped(layer.codec(dtype), self.bits, self.group, self.channels)

    def bytes(self, layer: LayerPlan, need: LedgerNeed, dtype: torch.dtype) -> int:
        assert need.capacity is not None
        # one place more of each kind, which nobody reads, for what is not kept
        exact = (self.grouping.exact_places(need.draft or 0) + 1) * token_bytes(layer.codec(dtype))
        return need.batch * ((need.capacity + 1) * token_bytes(self.codec(layer, dtype)) + exact)


ENTRY = Entry(
    "kivi",
    KiviCache,
    title="KIVI",
    summary="In 2 or 4 bits: keys by channel over groups of tokens, values by token; the newest stay as they are.",
    variants={"kivi": lambda size: KiviCache(bits=4, group=2, newest=3, channels=4)},
    refusals=(
        Refusal({"mask": ("prefix", "bidirectional")}, NOT_CAUSAL),
        Refusal({"scenario": ("packed",)}, SEGMENTS),
    ),
)
