"""What acts on queries and keys before they meet, and how several of them are applied."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from vantage.spec.positions import Positions


class QKTransform(Protocol):
    """Acts on queries and keys before they meet: RoPE, xPos, q/k norm, temperature."""

    def query(self, q_BHTd: Tensor, pos: Positions) -> Tensor: ...
    def key(self, k_BGTd: Tensor, pos: Positions) -> Tensor: ...


@runtime_checkable
class TransformsBoth(Protocol):
    """A q/k transform that takes the queries and keys of the same tokens in one pass."""

    def query_and_key(self, q_BHTd: Tensor, k_BGTd: Tensor, pos: Positions) -> tuple[Tensor, Tensor]:
        """What ``query`` and ``key`` give."""
        ...


@runtime_checkable
class ShiftsQueries(Protocol):
    """A q/k transform that does nothing but add one vector of each head to its queries."""

    def query_shift(self) -> Tensor:
        """(H, d)"""
        ...


@runtime_checkable
class WidensKeys(Protocol):
    """A q/k transform that makes queries and keys wider. Keys are kept as they come and transformed when they are read.

    Both the config and what it builds say so.
    """

    widens: int  # so many times


def acts_on_reading(transforms: Iterable[Any]) -> bool:
    """Whether keys are kept before these transforms, whatever the cache is."""
    return any(isinstance(transform, WidensKeys) for transform in transforms)


def widened(transforms: Iterable[Any], key_dim: int) -> int:
    """How wide queries and keys are behind these transforms."""
    return key_dim * prod(transform.widens for transform in transforms if isinstance(transform, WidensKeys))


def chain(transforms: Iterable[Any], side: str, x: Tensor, pos: Positions) -> Tensor:
    """Apply q/k transforms (``QKTransform``, in a ModuleList) in order; ``side`` is "query" or "key"."""
    for transform in transforms:
        x = transform.query(x, pos) if side == "query" else transform.key(x, pos)
    return x


def chain_both(transforms: Iterable[Any], q: Tensor, k: Tensor, pos: Positions) -> tuple[Tensor, Tensor]:
    """Apply q/k transforms in order to the queries and keys of the same tokens, to both at once where one can."""
    for transform in transforms:
        if torch.compiler.is_compiling() or not isinstance(transform, TransformsBoth):
            q, k = transform.query(q, pos), transform.key(k, pos)
        else:
            q, k = transform.query_and_key(q, k, pos)
    return q, k


def shift_of(transforms: Sequence[Any]) -> Tensor | None:
    """All that q/k transforms do to a query, where that is to add something; ``None``: they do more, or nothing."""
    return transforms[0].query_shift() if len(transforms) == 1 and isinstance(transforms[0], ShiftsQueries) else None
