"""The tokens that got most weight, head by head, and the last ones (H2O, Zhang et al. 2023)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from vantage.cache.kinds.forgetting import BY_WEIGHT, ForgettingCache
from vantage.cache.policies import HeavyHitters
from vantage.spec.registry import Entry


@final
@dataclass(frozen=True)
class HeavyHitterCache(ForgettingCache):
    """``heavy`` tokens that got most weight from all queries so far, and the last ``recent``, the query included.

    Every key/value head of every layer selects separately; query heads that share keys add their weights. Beyond
    heavy + recent tokens the model runs one token at a time, since each decides what the next one sees, and the
    attention weights are formed.
    """

    heavy: int = 512
    recent: int = 512

    own_ledgers: ClassVar[bool] = True
    by_head: ClassVar[bool] = True

    def policy(self) -> HeavyHitters:
        return HeavyHitters(self.heavy, self.recent)


ENTRY = Entry(
    "heavy-hitters",
    HeavyHitterCache,
    title="Heavy hitters",
    summary="The tokens that got most weight so far, head by head, and the last ones (H2O).",
    variants={"heavy-hitters": lambda size: HeavyHitterCache(3, 2)},
    refusals=BY_WEIGHT,
)
