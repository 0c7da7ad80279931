"""How many bytes a cache would take with other kinds of attention (K5); what it takes is in ``cache/spec_bytes.py``."""

from __future__ import annotations

from collections.abc import Callable

from vantage.attention import GroupedQuery, Latent
from vantage.cache.spec_bytes import CacheSettings, cache_bytes, layer_bytes, state_bytes, token_bytes
from vantage.model.norms import RMSNorm
from vantage.spec.model import CacheShape, ModelSpec
from vantage.spec.parts import Shape

__all__ = ["CacheSettings", "alternatives", "cache_bytes", "layer_bytes", "state_bytes", "token_bytes"]


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
