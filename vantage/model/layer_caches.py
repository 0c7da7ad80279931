"""Which cache each layer of a pass gets: its own of a model's cache, or one that keeps nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import final

import torch

from vantage.cache import LayerPlan, NoCache, no_caches
from vantage.spec.masks import Everything
from vantage.spec.model import ModelSpec
from vantage.spec.parts import Cache


def cache_plans(spec: ModelSpec) -> tuple[list[LayerPlan], list[LayerPlan]]:
    """What the layers keep, of those that keep something; and what those keep that look at a source."""
    own = [LayerPlan.of(shape, mask) for shape, mask in spec.caches]
    crossing = (layer.cross for layer in spec.layers if layer.cross is not None)
    return own, [LayerPlan.of(cross.cache_shape(spec.width), Everything()) for cross in crossing]


@final
class LayerCaches:
    """For each layer of a spec two caches: for its attention, and for the attention that looks at a source."""

    def __init__(self, spec: ModelSpec):
        self._spec = spec
        self._no_cross = [NoCache()] * len(spec.layers)
        self._kept: dict[tuple[str, torch.dtype] | None, list[NoCache]] = {None: no_caches(spec, None, torch.float32)}

    def without_cache(self, kv_dtype: str | None, dtype: torch.dtype) -> tuple[Sequence[Cache], Sequence[Cache]]:
        """For a pass without a cache, which rounds as a cache would."""
        how = None if kv_dtype is None else (kv_dtype, dtype)
        if how not in self._kept:
            self._kept[how] = no_caches(self._spec, kv_dtype, dtype)
        return self._kept[how], self._no_cross

    def of(self, kept: Sequence[Cache], cross: Sequence[Cache] = ()) -> tuple[Sequence[Cache], Sequence[Cache]]:
        """From one for each layer that keeps something to one for each layer."""
        layers, every = self._spec.layers, kept
        if len(kept) < len(layers):
            own = iter(kept)
            every = [_next(own, layer.source is None) for layer in layers]
        if not cross:
            return every, self._no_cross
        across = iter(cross)
        return every, [_next(across, layer.cross is not None) for layer in layers]


def _next(caches: Iterator[Cache], some: bool) -> Cache:
    return next(caches) if some else NoCache()
