"""From what a model's layers need to the caches that serve them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch

from vantage.cache.contiguous import Contiguous
from vantage.cache.layer_cache import LayerCache
from vantage.cache.ledger import Ledger
from vantage.cache.model_cache import ModelCache
from vantage.cache.paged import Paged
from vantage.cache.pool import Pool
from vantage.cache.ring import Ring
from vantage.cache.stores import Codec, Int8, Plain, Single, Store
from vantage.errors import BadInput, Refused, unknown
from vantage.spec.masks import Mask

KINDS = ("contiguous", "ring", "paged", "quantised")


@final
@dataclass(frozen=True)
class LayerPlan:
    """What one attention layer asks of a cache."""

    kv_heads: int
    key_dim: int
    value_dim: int
    mask: Mask
    single_stream: bool = False  # MLA: the value is the front of the key

    @property
    def reach(self) -> int | None:
        """How many keys back a query sees at most, itself included."""
        reach = self.mask.reach()
        return None if reach is None else max(1, reach)

    def codec(self, dtype: torch.dtype, quantise: bool) -> Codec:
        kind = Single if self.single_stream else Plain
        plain = kind(self.kv_heads, self.key_dim, self.value_dim, dtype)
        return Int8(plain) if quantise else plain


def make_cache(
    plan: Sequence[LayerPlan],
    *,
    batch: int = 1,
    kind: str = "contiguous",
    capacity: int | None = None,
    length: int | None = None,
    owner: object = None,
    device: torch.device | str | None = None,
    dtype: torch.dtype = torch.float32,
    cross: Sequence[LayerPlan] = (),
    draft: int | None = None,
    block: int = 16,
    quantise: bool = False,
) -> ModelCache:
    """A cache for a model.

    ``kind``: "contiguous", "ring" (for layers with a window; the others are contiguous), "paged" or
    "quantised" (contiguous in int8). ``capacity``: tokens a row can hold, or ``None`` to grow.
    ``draft``: how many tokens a windowed layer must be able to take back, 0 for a ring if not
    said; a paged cache lets go of what left the window only if it is said. ``block``: tokens per
    block of a paged cache. ``quantise``: int8 with any kind.
    """
    _check(plan, kind, capacity, length, draft)
    ledgers: dict[int | None, Ledger] = {}
    layers = []
    for layer in plan:
        reach = layer.reach
        if reach not in ledgers:
            ledgers[reach] = _ledger(kind, batch, reach, capacity, draft, block, device)
        codec = layer.codec(dtype, quantise or kind == "quantised")
        layers.append(LayerCache(ledgers[reach], Store(codec, ledgers[reach])))
    memory = Contiguous(batch, device=device)
    others = [LayerCache(memory, Store(layer.codec(dtype, quantise or kind == "quantised"), memory)) for layer in cross]
    return ModelCache(layers, others, masks=[layer.mask for layer in plan], owner=owner, length=length)


def _ledger(
    kind: str,
    batch: int,
    reach: int | None,
    capacity: int | None,
    draft: int | None,
    block: int,
    device: torch.device | str | None,
) -> Ledger:
    if kind == "ring" and reach is not None:
        return Ring(batch, window=reach, draft=draft or 0, device=device)
    if kind == "paged":
        # whole blocks a row, so that every row can hold what was asked for
        pool = Pool(None if capacity is None else batch * -(-capacity // block) * block, block)
        return Paged(batch, pool, window=reach, draft=None if reach is None else draft, device=device)
    return Contiguous(batch, capacity=capacity, window=reach, device=device)


def _check(plan: Sequence[LayerPlan], kind: str, capacity: int | None, length: int | None, draft: int | None) -> None:
    if kind not in KINDS:
        raise BadInput(unknown("kind of cache", kind, KINDS))
    if not plan:
        raise BadInput("a cache for no layers: give the plan of at least one")
    for name, value in (("capacity", capacity), ("length", length)):
        if value is not None and value < 1:
            raise BadInput(f"{name}={value}: give at least 1, or None")
    if draft is not None and draft < 0:
        raise BadInput(f"draft={draft}: give 0 or more, or None")
    if kind == "ring" and all(layer.reach is None for layer in plan):
        raise Refused("a ring keeps a window, and no layer of this model has one: use kind='contiguous' or 'paged'")
