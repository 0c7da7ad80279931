"""How many bytes a cache takes (K5), from the spec alone: by kind of cache, and for other kinds of attention."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch

from vantage.attention import GroupedQuery, Latent
from vantage.cache import KINDS
from vantage.cache.contiguous import LEAST
from vantage.errors import BadInput, unknown
from vantage.model.norms import RMSNorm
from vantage.spec.masks import Mask
from vantage.spec.model import CacheShape, ModelSpec
from vantage.spec.parts import Shape

BLOCK = 16  # tokens of a page


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
        if self.kind not in KINDS:
            raise BadInput(unknown("kind of cache", self.kind, KINDS))


def cache_bytes(spec: ModelSpec, settings: CacheSettings) -> int:
    """What ``model.new_cache(batch, kind=kind, capacity=context)`` allocates, and what reading a source adds."""
    own = sum(layer_bytes(layer.attention.cache_shape(spec.width), layer.mask, settings) for layer in spec.layers)
    across = [layer.cross.cache_shape(spec.width) for layer in spec.layers if layer.cross is not None]
    places = max(settings.source, LEAST) if settings.source else 0  # a memory's cache grows, from a least size on
    return own + sum(settings.batch * places * token_bytes(kept, settings) for kept in across)


def layer_bytes(kept: CacheShape, mask: Mask, settings: CacheSettings) -> int:
    """One layer. A ring and a pool have a place (a block) that nobody reads, for what is not kept."""
    each = token_bytes(kept, settings)
    reach = mask.reach()
    if settings.kind == "ring" and reach is not None:
        return settings.batch * (max(1, reach) + 1) * each
    if settings.kind == "paged":
        return (settings.batch * -(-settings.context // BLOCK) + 1) * BLOCK * each
    return settings.batch * settings.context * each


def token_bytes(kept: CacheShape, settings: CacheSettings) -> int:
    """What a layer keeps of one token."""
    widths = (kept.key_dim,) if kept.single else (kept.key_dim, kept.value_dim)
    if settings.kind == "quantised":  # whole numbers of 8 bits, and a scale for each head
        scale = torch.promote_types(torch.float32, settings.dtype).itemsize
        return kept.kv_heads * sum(width + scale for width in widths)
    return kept.kv_heads * sum(widths) * settings.dtype.itemsize


def alternatives(spec: ModelSpec, settings: CacheSettings, window: int) -> dict[str, int]:
    """Bytes if every layer were of one kind, heads and widths as they are (A7).

    MLA is sized as in DeepSeek-V2: a latent of four heads' width and a rotary key of half a head's.
    """
    shapes = [layer.attention.shape(spec.width) for layer in spec.layers]

    def total(kept_of: Callable[[Shape], CacheShape], places: int) -> int:
        return sum(settings.batch * places * token_bytes(kept_of(s), settings) for s in shapes)

    def grouped(kv_heads: int | None) -> Callable[[Shape], CacheShape]:
        def kept(s: Shape) -> CacheShape:
            g = s.heads if kv_heads is None else min(kv_heads, s.heads)
            return GroupedQuery(s.heads, g, s.key_dim, s.value_dim).cache_shape(spec.width)

        return kept

    def latent(s: Shape) -> CacheShape:
        rope = max(2, s.value_dim // 2 // 2 * 2)
        return Latent(s.heads, 4 * s.value_dim, s.value_dim, rope, s.value_dim, norm=RMSNorm()).cache_shape(spec.width)

    heads = shapes[0].heads
    between = [n for n in range(2, heads) if heads % n == 0]  # as near a quarter of the heads as divides them
    some = min(between, key=lambda n: abs(n - heads / 4), default=None)
    near = min(window, settings.context)
    return {
        "MHA": total(grouped(None), settings.context),
        **({} if some is None else {f"GQA ({some})": total(grouped(some), settings.context)}),
        "MQA": total(grouped(1), settings.context),
        "MLA": total(latent, settings.context),
        f"MHA, window {near:,}": total(grouped(None), near),
    }
