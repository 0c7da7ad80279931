"""Watching a model while it writes: the attention of the token at hand, the cache, and what was computed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, final

import torch
from torch import Tensor

from vantage.generation.cached_sequence import CachedSequence
from vantage.inspect.select import choose_sites
from vantage.inspect.sites import KernelCall, observing, sites_of
from vantage.inspect.tiles import tiles
from vantage.model import Model

SHOWN = 32  # of the largest weights


@final
class AttentionWatch:
    """The weights of the newest query, as the mean over heads, of one layer or as the mean over all of them."""

    def __init__(self, model: Model, layer: int | None):
        self._sites = choose_sites(sites_of(model), "self", layer)
        self._sum: Tensor | None = None

    @contextlib.contextmanager
    def on(self) -> Iterator[None]:
        """Inside, passes are seen; native whole steps stand aside for that long."""
        with observing(self._sites, self._see):
            yield

    def _see(self, seen: KernelCall) -> None:
        last = seen.q.shape[2] - 1
        order = seen.pair.k.order
        width = int(order.max()) + 1
        line = torch.zeros(width, dtype=torch.float32)
        for tile in tiles(seen, range(seen.site.heads), [last]):
            weights = tile.weights[0, :, 0].mean(0).float().cpu()
            # empty places have weight 0, so adding them at 0 adds nothing
            line.index_add_(0, tile.pair.k.order[0].clamp_min(0).cpu(), weights)
        self._sum = line if self._sum is None else self._sum + line

    def take(self, images: Sequence[Mapping[str, int]] = ()) -> list[dict[str, Any]]:
        """The largest weights since the last time, the largest first. Keys are numbers of tokens, from 0.

        ``images``: where those of the text stand. All of an image's weight is told at its first token.
        """
        line, self._sum = self._sum, None
        if line is None:
            return []
        for place in images:
            start, end = place["start"], place["start"] + place["tokens"]
            whole = line[start:end].sum()
            line[start:end] = 0.0
            line[start] = whole
        best = (line / len(self._sites)).topk(min(SHOWN, len(line)))
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
