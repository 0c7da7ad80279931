"""Blocks of a pool: rows of any length, and prefixes that several rows share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, final

import torch

from vantage.cache.codecs import Codec, PlainCodec, SingleCodec, token_bytes
from vantage.cache.kinds.kind import LayerPlan, LedgerNeed
from vantage.cache.ledger import Ledger
from vantage.cache.paged import Paged
from vantage.cache.pool import BLOCK, Pool
from vantage.spec.registry import Entry


@final
@dataclass(frozen=True)
class PagedCache:
    """``block`` tokens in a block. What left a window is let go only if a draft is asked for."""

    block: int = BLOCK

    ledgers: ClassVar[tuple[type[Ledger], ...]] = (Paged,)
    codecs: ClassVar[tuple[type[Codec], ...]] = (PlainCodec, SingleCodec)
    exact: ClassVar[bool] = True
    evicts: ClassVar[bool] = False

    def refuses(self, layers: Sequence[LayerPlan]) -> str | None:
        return None

    def ledger(self, need: LedgerNeed) -> Paged:
        block = self._block(need)
        pool = Pool(None if need.capacity is None else self._blocks(need) * block, block)
        draft = None if need.reach is None else need.draft
        return Paged(need.batch, pool, window=need.reach, draft=draft, device=need.device)

    def codec(self, layer: LayerPlan, dtype: torch.dtype) -> Codec:
        return layer.codec(dtype)

    def bytes(self, layer: LayerPlan, need: LedgerNeed, dtype: torch.dtype) -> int:
        # one block more, which nobody reads, for what is not kept
        return (self._blocks(need) + 1) * self._block(need) * token_bytes(self.codec(layer, dtype))

    def _block(self, need: LedgerNeed) -> int:
        return self.block if need.block is None else need.block

    def _blocks(self, need: LedgerNeed) -> int:
        """Whole blocks a row, so that every row can hold what was asked for."""
        assert need.capacity is not None
        return need.batch * -(-need.capacity // self._block(need))


ENTRY = Entry(
    "paged",
    PagedCache,
    title="Paged",
    summary="Blocks of a pool that rows share: no room is kept free for the longest row (PagedAttention).",
    variants={"paged": lambda size: PagedCache(block=4)},
)
