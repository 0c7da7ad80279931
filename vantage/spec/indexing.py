"""Choosing the keys that a query attends to before any score is made: what an indexer is, and what it is given."""

from __future__ import annotations

from typing import NamedTuple, Protocol, runtime_checkable

from torch import Tensor

from vantage.spec.masks import Mask
from vantage.spec.positions import Pair


class IndexerInputs(NamedTuple):
    """What an indexer may look at."""

    x: Tensor  # (B, T, D): the layer's input
    low: Tensor | None  # (B, T, r): the small form of x that queries are made of, in latent attention
    streams: tuple[Tensor, ...]  # what it keeps of each key: (B, heads, S, width)
    pair: Pair  # the queries, and all keys there are
    mask: Mask  # of the layer: only what it shows can be chosen


class Indexer(Protocol):
    """What the config in ``Layer.indexer`` builds. It keeps ``kept`` streams, as a ``StreamSource`` does."""

    kept: int
    rank: int | None  # of the small form that it reads; None: it reads x

    def choose(self, inputs: IndexerInputs) -> Tensor | None:
        """(B, T, K): the columns of the keys that a query attends to, the same for all heads, no key twice;
        ``None``: to all it sees. What the mask hides stays hidden, and may be among them. -1: none."""
        ...


@runtime_checkable
class FollowsLayer(Protocol):
    """The config of an indexer that takes over what an earlier layer has chosen."""

    layer: int
