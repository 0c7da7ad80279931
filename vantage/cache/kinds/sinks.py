"""The first tokens and the last ones (StreamingLLM, Xiao et al. 2023), whatever the model's masks would show."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from vantage.cache.kinds.forgetting import NEEDS_EVERY_KEY, ForgettingCache
from vantage.cache.policies import SinkWindow
from vantage.spec.registry import Entry, Refusal

BY_PLACE = "places in a cache that forgets are known one token after the other, and so need causal attention"


@final
@dataclass(frozen=True)
class SinkCache(ForgettingCache):
    """A query sees the first ``sinks`` tokens of its document and the last ``window``, itself included.

    ``by_place``: positions are counted within the kept tokens (the paper), so that no distance is longer than sinks and
    window together; keys are then rotated when they are read. Otherwise tokens keep their original positions.
    """

    sinks: int = 4
    window: int = 1024
    by_place: bool = False

    own_ledgers: ClassVar[bool] = False
    by_head: ClassVar[bool] = False
    not_causal: ClassVar[str] = BY_PLACE

    def policy(self) -> SinkWindow:
        return SinkWindow(self.sinks, self.window, self.by_place)


ENTRY = Entry(
    "sinks",
    SinkCache,
    title="Sinks with a window",
    summary="Keeps the first and the last tokens; those between are evicted (StreamingLLM).",
    variants={
        "sinks": lambda size: SinkCache(2, size.reach),
        "sinks-by-place": lambda size: SinkCache(2, size.reach, by_place=True),
    },
    refusals=(
        *NEEDS_EVERY_KEY,
        Refusal({"cache": ("sinks-by-place",), "mask": ("prefix", "bidirectional")}, BY_PLACE),
    ),
)
