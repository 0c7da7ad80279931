"""How many bytes a cache takes, from the spec alone, by kind of cache."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import torch

from vantage.cache import LayerPlan, LedgerNeed, cache_kind
from vantage.cache.codecs import token_bytes as codec_bytes
from vantage.spec.masks import Everything, Mask
from vantage.spec.model import CacheShape, ModelSpec


@final
@dataclass(frozen=True)
class CacheSettings:
    """How much is kept of a context."""

    context: int
    batch: int
    dtype: torch.dtype
    kind: str = "contiguous"
    source: int = 0

    def __post_init__(self) -> None:
        cache_kind(self.kind)  # a kind that is not known is refused here


def cache_bytes(spec: ModelSpec, settings: CacheSettings) -> int:
    """What ``model.new_cache(batch, kind=kind, capacity=context)`` allocates, and what reading a source adds."""
    own = sum(layer_bytes(shape, mask, settings) for shape, mask in spec.caches)
    across = [layer.cross.cache_shape(spec.width) for layer in spec.layers if layer.cross is not None]
    return own + sum(settings.batch * settings.source * token_bytes(kept, settings) for kept in across)


def layer_bytes(kept: CacheShape, mask: Mask, settings: CacheSettings) -> int:
    """One layer."""
    states = 2 * settings.batch * state_bytes(kept, settings.dtype)  # the one before is kept, to take a token back
    if not kept.kv_heads:
        return states
    layer, kind = LayerPlan.of(kept, mask), cache_kind(settings.kind)
    need = LedgerNeed(settings.batch, layer.reach, settings.context, kv_heads=layer.kv_heads)
    ledger = kind.ledger(need)
    places = ledger.places if ledger.pooled else settings.batch * ledger.places
    beside = token_bytes(kept, settings) - codec_bytes(kind.codec(layer, settings.dtype))  # the streams
    return kind.bytes(layer, need, settings.dtype) + places * beside + states


def state_bytes(kept: CacheShape, dtype: torch.dtype) -> int:
    """What a layer keeps of a row, whatever its length."""
    return sum(math.prod(state.shape) * state.dtype(dtype).itemsize for state in kept.states)


def token_bytes(kept: CacheShape, settings: CacheSettings) -> int:
    """What a layer keeps of one token."""
    layer = LayerPlan.of(kept, Everything())
    return codec_bytes(cache_kind(settings.kind).codec(layer, settings.dtype), layer.stream_shapes(settings.dtype))
