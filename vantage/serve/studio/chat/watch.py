"""Watching a model while it writes: the attention of the token at hand, the cache, and what was computed."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any, final

import torch
from torch import Tensor

from vantage.generation.cached_sequence import CachedSequence
from vantage.inspect.last_query import LastQuery, LastQueryWatch
from vantage.inspect.select import choose_sites
from vantage.inspect.sites import sites_of
from vantage.model import Model

MAX_SHOWN = 32  # of the largest weights


@final
class AttentionWatch:
    """The weights of the newest query, as the mean over heads, of one layer or as the mean over all of them."""

    def __init__(self, model: Model, layer: int | None):
        sites = choose_sites(sites_of(model), "self", layer)
        self._watch = LastQueryWatch(model, sites, self._see)
        self._seen: dict[int, tuple[Tensor, Tensor]] = {}  # by layer: the orders of keys, and their weights

    def on(self) -> contextlib.AbstractContextManager[None]:
        """Inside, passes are seen."""
        return self._watch.on()

    @property
    def slowed(self) -> str | None:
        """Why the last pass ran module by module; ``None``: it ran natively, as it would have without a watcher."""
        return self._watch.by_modules

    def _see(self, seen: LastQuery) -> None:
        self._seen[seen.site.layer] = seen.order[0], seen.weights[0].mean(0)

    def take(self, images: Sequence[Mapping[str, int]] = ()) -> list[dict[str, Any]]:
        """The largest weights since the last time, the largest first. Keys are numbers of tokens, from 0.

        ``images``: where those of the text stand. All of an image's weight is told at its first token.
        """
        seen, self._seen = [*self._seen.values()], {}
        if not seen:
            return []
        line = torch.zeros(1 + max(int(order.max()) for order, _ in seen))
        for order, weights in seen:
            # empty places have weight 0, so adding them at 0 adds nothing
            line.index_add_(0, order.clamp_min(0), weights)
        for place in images:
            start, end = place["start"], place["start"] + place["tokens"]
            whole = line[start:end].sum()
            line[start:end] = 0.0
            line[start] = whole
        best = (line / len(seen)).topk(min(MAX_SHOWN, len(line)))
        largest = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        return [{"key": key, "weight": weight} for key, weight in largest if weight > 0]


@final
class ProjectionCounter:
    """Keys projected, counted where the cache takes them in; and what as many passes without a cache would project."""

    def __init__(self, row: CachedSequence):
        self._row, self._layers = row, len(row.cache.layers)
        self._base = sum(row.projections)
        self.cached = self.uncached = 0

    def passed(self) -> None:
        """After a pass whose token was asked for: without a cache it would have gone over the whole text."""
        self.uncached += self._layers * len(self._row.tokens)
        self.count()

    def count(self) -> None:
        self.cached = sum(self._row.projections) - self._base

    def counts(self) -> dict[str, int]:
        return {"projections_cached": self.cached, "projections_uncached": self.uncached}


def cache_report(row: CachedSequence, reused: int) -> dict[str, Any]:
    """What each layer holds. ``reused``: how many tokens from the front were there before this turn."""
    report = row.cache.holds()
    layers = []
    for holding in report.layers:
        (one,) = holding.rows
        old = sum(max(0, min(int(last), reused - 1) - int(first) + 1) for first, last in one.order)
        layers.append({"length": len(row.tokens), "held": one.tokens, "reused": old})
    return {"layers": layers, "bytes": report.bytes}
