"""What a pointwise score bias is, as data: a closed set of forms that a fused or native kernel can run by itself.

A bias is one of these, or says with ``form()`` which one it is. So a kernel never asks for a bias by name, and a
user's own bias gets the fast path as well. The distance is always i - j, from the key to the query.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from vantage.spec.parts import Dense, Pointwise
from vantage.spec.positions import Place


@dataclass(frozen=True, eq=False)
class Slope(Pointwise):
    """-slopes[h]·|i - j|: ALiBi."""

    slopes: Tensor  # (H,)

    def __call__(self, b: Tensor, h: Tensor, i: Tensor, q: Place, k: Place) -> Tensor:
        return -self.slopes[h] * (q.pos - k.pos).abs()


@dataclass(frozen=True, eq=False)
class LogDistance(Pointwise):
    """-a[h]·log(1 + p[h]·|i - j|): KERPLE's logarithm."""

    a: Tensor  # (H,)
    p: Tensor  # (H,)

    def __call__(self, b: Tensor, h: Tensor, i: Tensor, q: Place, k: Place) -> Tensor:
        return -self.a[h] * torch.log1p(self.p[h] * (q.pos - k.pos).abs())


@dataclass(frozen=True, eq=False)
class PowerDistance(Pointwise):
    """-a[h]·|i - j|^p[h]: KERPLE's power."""

    a: Tensor  # (H,)
    p: Tensor  # (H,)

    def __call__(self, b: Tensor, h: Tensor, i: Tensor, q: Place, k: Place) -> Tensor:
        return -self.a[h] * (q.pos - k.pos).abs().to(self.p.dtype) ** self.p[h]


@dataclass(frozen=True, eq=False)
class DistanceTable(Pointwise):
    """values[h] at i - j, the first of them for the distance ``first``: T5. Further out is as the last on that side."""

    values: Tensor  # (H, W)
    first: int

    def __call__(self, b: Tensor, h: Tensor, i: Tensor, q: Place, k: Place) -> Tensor:
        return self.values[h, (q.pos - k.pos - self.first).clamp(0, self.values.shape[-1] - 1)]


@dataclass(frozen=True, eq=False)
class RowTable(Pointwise):
    """A table of distances for each query, read like ``DistanceTable``: Shaw's keys, a relative bank."""

    values: Tensor  # (B, H, T, W)
    first: int

    def __call__(self, b: Tensor, h: Tensor, i: Tensor, q: Place, k: Place) -> Tensor:
        return self.values[b, h, i, (q.pos - k.pos - self.first).clamp(0, self.values.shape[-1] - 1)]


@dataclass(frozen=True, eq=False)
class QueryAndKey(Pointwise):
    """A number of the query plus one of the key: FoX."""

    by_query: Tensor  # (B, H, T)
    by_key: Tensor  # (B, H, S)

    def __call__(self, b: Tensor, h: Tensor, i: Tensor, q: Place, k: Place) -> Tensor:
        assert k.column is not None
        return self.by_query[b, h, i] + self.by_key[b, h, k.column]


@dataclass(frozen=True, eq=False)
class DistanceKeys:
    """factor · queries[b, h, i] · keys[h] at i - j, for positions that run on: Transformer-XL, shifted positions.

    Evaluated pair by pair it would be far larger than the scores; a ``Dense`` says it beside a tensor of its own. A
    kernel may ask for vectors of distances that do not occur, up to a tile beyond those that do, and does not use them.
    """

    queries: Tensor | None  # (B, H, T, f); ``None``: the attention's own, which saves a product on the way back
    keys: Callable[[int, int], Tensor]  # a distance and how many, falling from there: their vectors, (H or 1, n, f)
    factor: float
    offset: Tensor | None = None  # (H, f): what is added to the attention's own queries


PointwiseForm = Slope | LogDistance | PowerDistance | DistanceTable | RowTable | QueryAndKey
Form = PointwiseForm | DistanceKeys


@runtime_checkable
class HasForm(Protocol):
    """A bias, or the module that makes it whatever its inputs are, that says what it is; ``None``: no bias at all."""

    def form(self) -> Form | None: ...


def form_of(bias: Pointwise | Dense) -> Form | None:
    """The form of a bias; ``None``: it has none that a kernel could run."""
    if isinstance(bias, Form):
        return bias
    return bias.form() if isinstance(bias, HasForm) else None
