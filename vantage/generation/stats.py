"""What the engine has done and what it holds."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, final

from vantage.cache import ModelCache


def paths_of(cache: ModelCache) -> dict[str, int]:
    """Tokens that a cache took in, by the path that computed them."""
    return dict(max((layer.store for layer in cache.layers), key=lambda store: store.written).paths)


@final
@dataclass
class Counters:
    """Counted while the engine runs."""

    prefilled: int = 0  # tokens of prompts, computed for the first time
    reused: int = 0  # tokens that a prefix or a fork already had
    generated: int = 0
    recomputed: int = 0  # tokens computed again: after a preemption, for a longer declared length, without a cache
    preemptions: int = 0
    evictions: int = 0
    steps: int = 0
    calls: int = 0  # forward passes
    proposed: int = 0  # tokens that a draft guessed ahead
    accepted: int = 0  # and those of them that were right
    beyond_context: int = 0  # tokens generated from past the context that the model was made for
    milliseconds: dict[str, float] = field(default_factory=dict)  # by part

    @contextlib.contextmanager
    def timed(self, part: str) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self.milliseconds[part] = self.milliseconds.get(part, 0.0) + 1e3 * (time.perf_counter() - began)


@final
@dataclass(frozen=True)
class Stats:
    """The counters, and what is held, at one moment."""

    prefilled: int
    reused: int
    generated: int
    recomputed: int
    preemptions: int
    evictions: int
    steps: int
    calls: int
    proposed: int
    accepted: int
    beyond_context: int
    milliseconds: dict[str, float]
    projections: tuple[int, ...]  # keys projected in each layer, counted where the caches take them in
    bytes_held: int  # keys and values of all blocks in use, and what cross-attention looks at
    blocks_used: int
    blocks_free: int  # of those allocated; a growing pool allocates more when it needs them
    prefixes: int  # caches kept for requests to come
    paths: dict[str, int]  # tokens computed by "native" steps, by "native fast" ones, by a "graph", or by "modules"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {ms:,.1f} ms" for name, ms in self.milliseconds.items())
        paths = ", ".join(f"{tokens:,} tokens {name}" for name, tokens in self.paths.items())
        beyond = f"context      {self.beyond_context:,} tokens generated past it"
        draft = f"draft        {self.proposed:,} tokens proposed, {self.accepted:,} accepted"
        return "\n".join(
            [
                f"tokens       {self.prefilled:,} prefilled, {self.reused:,} reused, {self.generated:,} generated, "
                f"{self.recomputed:,} recomputed",
                *([beyond] if self.beyond_context else []),
                *([draft] if "draft" in self.milliseconds else []),
                f"projections  {max(self.projections):,} keys a layer, in {self.calls:,} calls",
                f"path         {paths or 'none'}",
                f"held         {self.bytes_held:,} bytes, {self.blocks_used:,} blocks used, {self.blocks_free:,} free, "
                f"{self.prefixes:,} prefixes",
                f"events       {self.preemptions:,} preemptions, {self.evictions:,} evictions",
                f"time         {parts or 'none'}",
            ]
        )
