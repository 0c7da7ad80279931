"""How many pairs of a query and a key a mask lets through, at contexts far too long to ask about every pair.

What a query sees changes only at a few keys: where a window starts, at the query itself, at the end of a chunk. So the
mask is asked once for each stretch between two such places. Of very many queries only some are asked, evenly spread
and each in the middle of its share, so that what grows steadily comes out as it is.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from vantage.spec.masks import Mask
from vantage.spec.operations import PassSize
from vantage.spec.positions import Place

# Queries and keys that are asked one by one. The first is prime, so that no chunk comes round with the queries asked.
MOST_QUERIES, MOST_KEYS, AT_ONCE = 262_139, 2**16, 2**22


@functools.cache
def visible(mask: Mask, size: PassSize, keys: int) -> int:
    """Pairs that the mask lets through, of the last ``queries`` of ``keys`` tokens."""
    low = size.keys - keys
    if mask.edges(torch.tensor([0])) is None:  # a mask that does not say: keys are asked one by one, or some of them
        key, query = _spread(low, keys, MOST_KEYS), _spread(size.keys - size.queries, size.queries, 2**26 // MOST_KEYS)
        count = sum(int(_shown(mask, some[:, None], key[None]).sum()) for some in query.split(AT_ONCE // MOST_KEYS))
        return count * keys * size.queries // (len(key) * len(query))
    query = _spread(size.keys - size.queries, size.queries, MOST_QUERIES)
    count = sum(_visible_pairs(mask, some[:, None], low, size.keys) for some in query.split(AT_ONCE // 16))
    return count * size.queries // len(query)


def _spread(start: int, count: int, most: int) -> Tensor:
    """Of ``count`` numbers from ``start`` on all, or ``most``, each in the middle of its share."""
    if count <= most:
        return torch.arange(start, start + count)
    return torch.tensor([start + (2 * i + 1) * count // (2 * most) for i in range(most)])


def _visible_pairs(mask: Mask, query: Tensor, low: int, high: int) -> int:
    """Pairs of these queries (t, 1) and all keys from ``low`` to ``high``, stretch by stretch."""
    edges = [torch.full_like(query, low), *(mask.edges(query) or ()), torch.full_like(query, high)]
    edge = torch.cat(edges, 1).clamp(low, high).sort(1).values
    start, size = edge[:, :-1], edge.diff(dim=1)
    return int((_shown(mask, query, start) * size).sum())


def _shown(mask: Mask, query: Tensor, key: Tensor) -> Tensor:
    return mask(Place(query, query, None), Place(key, key, None))
