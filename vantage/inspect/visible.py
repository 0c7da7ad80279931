"""How many pairs of a query and a key a mask lets through, at contexts far too long to ask about every pair.

What a query sees changes only at a few keys: where a window starts, at the query itself, at the end of a chunk. So the
mask is asked once for each stretch between two such places. Of very many queries only some are asked, evenly spread
and each in the middle of its share, so that what grows steadily comes out as it is.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from vantage.inspect.operations import Pass
from vantage.spec.masks import And, Causal, Chunked, Everything, Filled, Mask, Nothing, Or, Prefix, SameSegment, Window
from vantage.spec.positions import Place

# Queries and keys that are asked one by one. The first is prime, so that no chunk comes round with the queries asked.
MOST_QUERIES, MOST_KEYS, AT_ONCE = 262_139, 2**16, 2**22


@functools.cache
def visible(mask: Mask, at: Pass, keys: int) -> int:
    """Pairs that the mask lets through, of the last ``queries`` of ``keys`` tokens."""
    low = at.keys - keys
    if _edges(mask, torch.tensor([0])) is None:  # a mask that is not ours: keys are asked one by one, or some of them
        key, query = _spread(low, keys, MOST_KEYS), _spread(at.keys - at.queries, at.queries, 2**26 // MOST_KEYS)
        found = sum(int(_asked(mask, some[:, None], key[None]).sum()) for some in query.split(AT_ONCE // MOST_KEYS))
        return found * keys * at.queries // (len(key) * len(query))
    query = _spread(at.keys - at.queries, at.queries, MOST_QUERIES)
    found = sum(_seen(mask, some[:, None], low, at.keys) for some in query.split(AT_ONCE // 16))
    return found * at.queries // len(query)


def _spread(start: int, count: int, most: int) -> Tensor:
    """Of ``count`` numbers from ``start`` on all, or ``most``, each in the middle of its share."""
    if count <= most:
        return torch.arange(start, start + count)
    return torch.tensor([start + (2 * i + 1) * count // (2 * most) for i in range(most)])


def _seen(mask: Mask, query: Tensor, low: int, high: int) -> int:
    """Pairs of these queries (t, 1) and all keys from ``low`` to ``high``, stretch by stretch."""
    edges = [torch.full_like(query, low), *(_edges(mask, query) or ()), torch.full_like(query, high)]
    edge = torch.cat(edges, 1).clamp(low, high).sort(1).values
    start, size = edge[:, :-1], edge.diff(dim=1)
    return int((_asked(mask, query, start) * size).sum())


def _asked(mask: Mask, query: Tensor, key: Tensor) -> Tensor:
    return mask(Place(query, query, None), Place(key, key, None))


def _edges(mask: Mask, query: Tensor) -> list[Tensor] | None:
    """Keys from which on a query may see something else; ``None``: nobody knows. There are no documents here, and no
    empty places."""
    if isinstance(mask, (And, Or)):
        a, b = _edges(mask.a, query), _edges(mask.b, query)
        return None if a is None or b is None else a + b
    if isinstance(mask, Causal):
        return [query + 1]
    if isinstance(mask, Window):
        return [query - mask.n + 1, query + mask.n]
    if isinstance(mask, Chunked):
        start = query - query % mask.n
        return [start, start + mask.n]
    if isinstance(mask, Prefix):
        return [torch.full_like(query, mask.n)]
    return [] if isinstance(mask, (Everything, Nothing, SameSegment, Filled)) else None
