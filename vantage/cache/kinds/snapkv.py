"""The tokens that a window of late queries gave most weight, head by head, and that window (SnapKV, Li et al. 2024)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from vantage.cache.kinds.forgetting import BY_WEIGHT, ForgettingCache
from vantage.cache.policies import ObservedByLast
from vantage.spec.registry import Entry


@final
@dataclass(frozen=True)
class SnapKVCache(ForgettingCache):
    """Whenever a row holds ``size`` + ``window`` tokens, ``size`` stay: the last ``window``, and those to which the
    queries of that window gave most weight, averaged over ``pool`` neighbours.

    The paper selects once, after the whole prompt, with all of it in memory. Here tokens are selected as they arrive,
    ``window`` at a time, in the prompt and in what is generated: memory is bounded, and how a prompt is chunked makes
    no difference. A prompt of size + window tokens is the paper's case. Every key/value head selects separately.
    """

    size: int = 1024
    window: int = 32
    pool: int = 5

    own_ledgers: ClassVar[bool] = True
    by_head: ClassVar[bool] = True

    def policy(self) -> ObservedByLast:
        return ObservedByLast(self.size, self.window, self.pool)


ENTRY = Entry(
    "snapkv",
    SnapKVCache,
    title="SnapKV",
    summary="The tokens that a window of late queries gave most weight, head by head, and that window.",
    variants={"snapkv": lambda size: SnapKVCache(5, 2, 3)},
    refusals=BY_WEIGHT,
)
