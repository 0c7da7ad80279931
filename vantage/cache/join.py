"""Rows of several caches as the rows of one, and back: how requests that come and go share one pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from vantage.cache.ledger import Ledger
from vantage.cache.paged import Paged
from vantage.errors import BadInput, CacheError, Refused
from vantage.spec.positions import EMPTY, Positions

if TYPE_CHECKING:
    from vantage.cache.model_cache import ModelCache


def joined(caches: Sequence[ModelCache]) -> ModelCache:
    _check(caches)
    one = caches[0]
    columns = [[_paged(ledger) for ledger in column] for column in zip(*(c.ledgers for c in caches), strict=True)]
    for column in columns:
        Paged.check_join(column)
    memories = [_memory(c) for c in caches]
    ledgers: dict[int, Ledger] = {id(a): Paged.join(b) for a, b in zip(one.ledgers, columns, strict=True)}
    whole = _like(one, ledgers, sum(c.batch for c in caches))
    _remember(whole, [row for memory in memories for row in memory])
    for states, parts in zip(whole.states, zip(*(c.states for c in caches), strict=True), strict=True):
        states.rows = [row for part in parts for row in part.rows]
    if any(c.ahead is not None for c in caches):
        device = one.ledgers[0].device
        rows = [torch.zeros(c.batch, dtype=torch.int64, device=device) if c.ahead is None else c.ahead for c in caches]
        whole.ahead = torch.cat(rows)
    for cache in caches:
        cache.free()
    whole.recomputed = sum(c.recomputed for c in caches)
    return whole


def apart(cache: ModelCache) -> list[ModelCache]:
    columns = [_paged(ledger).split() for ledger in cache.ledgers]
    memory = _memory(cache)
    alone = []
    for b, (row, remembered) in enumerate(zip(zip(*columns, strict=True), memory, strict=True)):
        one = _like(cache, {id(old): new for old, new in zip(cache.ledgers, row, strict=True)}, 1)
        _remember(one, [remembered])
        for mine, states in zip(one.states, cache.states, strict=True):
            mine.rows = [states.rows[b]]
        one.ahead = None if cache.ahead is None else cache.ahead[b : b + 1]
        alone.append(one)
    cache.free()
    return alone


def _check(caches: Sequence[ModelCache]) -> None:
    if not caches:
        raise BadInput("no caches to join: give at least one")
    one = caches[0]
    if len({id(cache) for cache in caches}) < len(caches):
        raise BadInput("a cache cannot be joined with itself: use cache.fork()")
    for cache in caches[1:]:
        cache.belongs_to(one.owner)
        if cache.length != one.length:
            raise CacheError(
                f"caches declared for lengths {one.length} and {cache.length} cannot share a pass: "
                "their frequencies differ; join those of one length"
            )
        if cache.has_memory != one.has_memory:
            raise CacheError("a cache with a source and one without cannot be joined: run the first pass of each alone")


def _paged(ledger: Ledger) -> Paged:
    if not isinstance(ledger, Paged):
        raise Refused(f"only paged caches can be joined and split, this one is {ledger.name}: use kind='paged'")
    return ledger


def _like(cache: ModelCache, ledgers: dict[int, Ledger], batch: int) -> ModelCache:
    """The same layers on these ledgers, with room for so many rows of memory."""
    new = ledgers | {id(ledger): ledger.fresh(batch) for ledger in cache.cross_ledgers}
    return cache.like([c.fresh(new[id(c.ledger)]) for c in (*cache.layers, *cache.cross)])


# ---- what cross-attention looks at


class _Row(NamedTuple):
    """One row's memory: where it stands, (S,), and the keys and values (G, S, d) of every layer."""

    pos: Tensor
    order: Tensor
    layers: tuple[tuple[Tensor, Tensor], ...]


def _memory(cache: ModelCache) -> list[_Row]:
    if not cache.has_memory:
        return [_Row(torch.empty(0), torch.empty(0), ())] * cache.batch
    views = [layer.view() for layer in cache.cross]
    where = views[0].pos
    if where.segment is not None:
        raise Refused("a source of several documents cannot be joined or split")
    rows = []
    for b in range(cache.batch):
        held = where.filled[b]
        rows.append(
            _Row(where.pos[b, held], where.order[b, held], tuple((v.k[b, :, held], v.v[b, :, held]) for v in views))
        )
    return rows


def _remember(cache: ModelCache, rows: Sequence[_Row]) -> None:
    """Give the rows to the cross-attention layers, padded where they are of unequal length."""
    if not any(row.layers for row in rows):
        return
    width = max(len(row.pos) for row in rows)
    pos = torch.stack([_padded(row.pos, width, EMPTY) for row in rows])
    order = torch.stack([_padded(row.order, width, EMPTY) for row in rows])
    where = Positions.of(pos, order=order)
    for i, layer in enumerate(cache.cross):
        k = torch.stack([_padded(row.layers[i][0].transpose(1, 2), width) for row in rows])
        v = torch.stack([_padded(row.layers[i][1].transpose(1, 2), width) for row in rows])
        layer.append(where, k.transpose(2, 3), v.transpose(2, 3))
        layer.store.settle()
    for ledger in cache.cross_ledgers:
        ledger.commit()


def _padded(t: Tensor, width: int, value: float | None = None) -> Tensor:
    """With so many columns, the new ones holding the value, or 0."""
    return functional.pad(t, (0, width - t.shape[-1]), value=value)
