"""From what a model's layers need to the caches that serve them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from vantage.cache.codecs import Codec, GroupCodec, rounded
from vantage.cache.contiguous import Contiguous
from vantage.cache.kinds import CacheKind, LayerPlan, LedgerNeed, as_forgetting, cache_kind
from vantage.cache.layer_cache import LayerCache, NoCache
from vantage.cache.ledger import Ledger
from vantage.cache.model_cache import ModelCache
from vantage.cache.paged import Paged
from vantage.cache.states import StateRows
from vantage.cache.stores import Store
from vantage.errors import BadInput, Refused
from vantage.spec.model import ModelSpec

BLOCKS = 4  # after so many a row of a pool keeps a state that others may start from


def make_cache(
    plan: Sequence[LayerPlan],
    *,
    batch: int = 1,
    kind: str | CacheKind = "contiguous",
    capacity: int | None = None,
    length: int | None = None,
    owner: object = None,
    device: torch.device | str | None = None,
    dtype: torch.dtype = torch.float32,
    cross: Sequence[LayerPlan] = (),
    draft: int | None = None,
    block: int | None = None,
    kv_dtype: str | None = None,
) -> ModelCache:
    """A cache for a model.

    ``kind``: a kind by name ("contiguous", "ring", "paged", "quantised", or one that was registered) or as an object.
    ``capacity``: tokens a row can hold, or ``None`` to grow. ``draft``: how many tokens a windowed layer must be able
    to take back, 0 for a ring if not said; a paged cache lets go of what left the window only if it is said.
    ``block``: tokens per block of a paged cache, or ``None`` for its own default. ``kv_dtype``: "float16" or "int8" for
    keys and values in fewer bits than ``dtype`` has, where the kind does not say so itself.
    """
    kind = cache_kind(kind)
    _check(plan, kind, capacity, length, draft)
    ledgers: dict[object, Ledger] = {}
    layers = []
    forgets = as_forgetting(kind)
    for index, layer in enumerate(plan):
        reach = layer.reach
        own = forgets is not None and forgets.own_ledgers
        shares = index if own else (reach, forgets is not None and layer.kv_heads > 0)
        if shares not in ledgers:
            need = LedgerNeed(batch, reach, capacity, draft, block, device, layer.kv_heads)
            ledgers[shares] = kind.ledger(need)
        ledger = ledgers[shares]
        store = Store(rounded(kind.codec(layer, dtype), kv_dtype), ledger, layer.stream_shapes(dtype))
        states = None
        if layer.states:
            # rows of a pool are cut where others have begun alike
            every = BLOCKS * ledger.pool.block if isinstance(ledger, Paged) else None
            back = max(1, draft or 0)  # one token can always be taken back
            states = StateRows(layer.states, batch, dtype=dtype, device=ledger.device, draft=back, every=every)
        layers.append(LayerCache(ledger, store, states))
    # what cross-attention reads is written once and never taken back
    source = Contiguous(batch, device=device, follows=0)
    across = [LayerCache(source, Store(_written_once(kind.codec(layer, dtype)), source)) for layer in cross]
    return ModelCache(layers, across, masks=[layer.mask for layer in plan], owner=owner, length=length)


def _written_once(codec: Codec) -> Codec:
    """For a source, which never grows: groups are for rows that do, so it is kept as it comes."""
    return codec.exact if isinstance(codec, GroupCodec) else codec


def no_caches(spec: ModelSpec, kv_dtype: str | None, dtype: torch.dtype) -> list[NoCache]:
    """For a pass without a cache: one for each layer, which rounds keys and values as a cache of ``kv_dtype`` would."""
    caches = []
    for layer in spec.layers:
        shape = layer.cache_shape(spec.width)
        if shape is None:
            caches.append(NoCache())
        else:
            codec = LayerPlan.of(shape, layer.mask).codec(dtype)
            rounds = None if kv_dtype is None else rounded(codec, kv_dtype)
            caches.append(NoCache(shape.streams, shape.states, rounds))
    return caches


def _check(
    plan: Sequence[LayerPlan], kind: CacheKind, capacity: int | None, length: int | None, draft: int | None
) -> None:
    if not plan:
        raise BadInput("a cache for no layers: give the plan of at least one")
    for name, value in (("capacity", capacity), ("length", length)):
        if value is not None and value < 1:
            raise BadInput(f"{name}={value}: give at least 1, or None")
    if draft is not None and draft < 0:
        raise BadInput(f"draft={draft}: give 0 or more, or None")
    if (why := kind.refuses(plan)) is not None:
        raise Refused(why)
