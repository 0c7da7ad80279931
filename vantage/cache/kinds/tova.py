"""The tokens that the last query gave most weight, for all heads of a layer together (TOVA, Oren et al. 2024)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from vantage.cache.kinds.forgetting import BY_WEIGHT, ForgettingCache
from vantage.cache.policies import LastWeights
from vantage.spec.registry import Entry


@final
@dataclass(frozen=True)
class TovaCache(ForgettingCache):
    """``size`` tokens: beyond that, each new token evicts the one to which it gave the least weight, over all heads. It
    stays itself until the next one comes.

    Every layer selects separately. Beyond ``size`` tokens the model runs one token at a time, since each decides what
    the next one sees, and the attention weights are formed.
    """

    size: int = 1024

    own_ledgers: ClassVar[bool] = True
    by_head: ClassVar[bool] = False

    def policy(self) -> LastWeights:
        return LastWeights(self.size)


ENTRY = Entry(
    "tova",
    TovaCache,
    title="TOVA",
    summary="The tokens that the last query gave most weight, for all heads of a layer together.",
    variants={"tova": lambda size: TovaCache(5)},
    refusals=BY_WEIGHT,
)
