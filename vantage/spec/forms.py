"""What a pointwise score bias is, as data: a closed set of forms that a fused or native kernel can run by itself.

A bias is one of these, or says with ``form()`` which one it is. So a kernel never asks for a bias by name, and a
user's own bias gets the fast path as well. The distance is always i - j, from the key to the query.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from vantage.errors import BadInput
from vantage.spec.parts import Dense, Pointwise, ValueBias
from vantage.spec.positions import Place


@dataclass(frozen=True, eq=False)
class Slope(Pointwise):
    """-slopes[h]·|i - j|: ALiBi."""

    slopes: Tensor  # (H,)
    numbers: tuple[float, ...] | None = None  # the same, where the host knows them

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
class RatioPieces(Pointwise):
    """slopes[h, p]·r + offsets[h, p] of the ratio r = ψ(i - j) / (ψ(max(limit, i)) + eps), ψ(x) = log(1 + |c·x|): FIRE.

    p is the number of break points below r, which all heads share. At a break point both pieces are alike: so moving
    one changes nothing, and none has a gradient. ``two_sided``: the ratio is to max(limit, i, j).
    """

    breaks: Tensor  # (K,), rising
    slopes: Tensor  # (H, K + 1)
    offsets: Tensor  # (H, K + 1)
    c: Tensor  # (1,)
    limit: Tensor  # (1,), not negative
    two_sided: bool = False
    eps: float = 1e-6

    def __call__(self, b: Tensor, h: Tensor, i: Tensor, q: Place, k: Place) -> Tensor:
        within = torch.maximum(q.pos.to(self.c.dtype), self.limit)
        within = torch.maximum(within, k.pos.to(self.c.dtype)) if self.two_sided else within
        ratio = self.psi(q.pos - k.pos) * self.share(within)
        piece = torch.searchsorted(self.breaks, ratio.detach())
        return self.slopes[h, piece] * ratio + self.offsets[h, piece]

    def psi(self, x: Tensor) -> Tensor:
        return torch.log1p((self.c * x).abs())

    def share(self, within: Tensor) -> Tensor:
        """What makes a logarithm of a distance a share of that of ``within``."""
        return 1 / (self.psi(within) + self.eps)


@dataclass(frozen=True, eq=False)
class RatioNetwork(Pointwise):
    """outer[h]·relu(inner·r + inner_bias) + outer_bias[h] of the ratio r of ``RatioPieces``: FIRE, as it is learned.

    In whatever dtype its weights have; a kernel may make the pieces of it in one of its own.
    """

    inner: Tensor  # (K,)
    inner_bias: Tensor  # (K,)
    outer: Tensor  # (H, K)
    outer_bias: Tensor  # (H,)
    c: Tensor  # (1,)
    limit: Tensor  # (1,), whose sign does not count
    two_sided: bool = False
    eps: float = 1e-6

    def __call__(self, b: Tensor, h: Tensor, i: Tensor, q: Place, k: Place) -> Tensor:
        return self.pieces()(b, h, i, q, k)

    def pieces(self) -> RatioPieces:
        """The network as the pieces that its hidden units cut: in each the same units are above 0."""
        dtype = torch.promote_types(self.c.dtype, torch.float32)
        w, b, out = self.inner.to(dtype), self.inner_bias.to(dtype), self.outer.to(dtype)
        breaks = (-b / w).detach()
        breaks = torch.where(breaks.isfinite(), breaks, 0.0).sort().values  # a unit without a weight cuts nothing
        ends = torch.cat((breaks[:1] - 1, breaks, breaks[-1:] + 1))
        middle = (ends[:-1] + ends[1:])[:, None] / 2
        active = (w * middle + b > 0).to(dtype).detach()  # (K + 1, K)
        slopes, offsets = out @ (active * w).T, out @ (active * b).T + self.outer_bias.to(dtype)[:, None]
        limit = self.limit.to(dtype).abs()
        return RatioPieces(breaks, slopes, offsets, self.c.to(dtype), limit, self.two_sided, self.eps)


def alibi_slopes(heads: int) -> tuple[float, ...]:
    """2^(-8k/h) for k = 1 … h. Where h is no power of two: those of the power below, and then every
    second one of the power above, as the paper's code has it."""
    if heads < 1:
        raise BadInput(f"{heads} heads: ALiBi has a slope for each of at least 1")
    below = 1 << (heads.bit_length() - 1)
    slopes = [2.0 ** (-8 * k / below) for k in range(1, below + 1)]
    between = [2.0 ** (-4 * k / below) for k in range(1, 2 * (heads - below), 2)]
    return tuple(slopes + between)


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


@dataclass(frozen=True, eq=False)
class CountTable:
    """by_count[b, h, i] at the sum of σ(scale·q_i·k) over the keys from j to i, for positions that run on and attention
    that looks back: CoPE. Between whole counts it is interpolated, beyond the last it is as there.

    What is counted lies between a query and a key, so that no pair can be evaluated by itself: a ``Dense`` says it.
    """

    by_count: Tensor  # (B, H, T, P)
    scale: float


@dataclass(frozen=True, eq=False)
class QueryDistances:
    """scale · (q_i + offset[h])·keys[h] at i - j, for queries as they are projected, whatever they are: Shaw's keys,
    Transformer-XL, shifted positions.

    It is what the bias of every query is made of. So a kernel can make a new query's numbers by distance (a
    ``RowTable``) where the query is.
    """

    keys: Callable[[int], Tensor]  # so many distances from 0 on: their vectors, (H or 1, n, d)
    offset: Tensor | None = None  # (H, d)
    last: int | None = None  # further out is as at this distance; ``None``: each has a vector of its own


@dataclass(frozen=True, eq=False)
class QueryCounts:
    """q_i·vectors at the count of ``CountTable``, for queries as they are projected: CoPE, whatever the queries are."""

    vectors: Tensor  # (P, d)


@dataclass(frozen=True, eq=False)
class GateSums:
    """F at the query less F at the key, where F is the sum of ln σ(gate) over a row up to a token: FoX. The sums are
    kept as a stream beside keys and values."""

    gate: nn.Module  # from what goes into the attention to a number for each head


@runtime_checkable
class HasGateSums(Protocol):
    """The module of a score bias that is such a difference."""

    def gate_sums(self) -> GateSums: ...


# of a query and a key, only where they stand
DistanceForm = Slope | LogDistance | PowerDistance | DistanceTable | RatioPieces | RatioNetwork
QueryForm = QueryDistances | QueryCounts  # of a query's numbers as well
PointwiseForm = DistanceForm | RowTable | QueryAndKey
Form = PointwiseForm | DistanceKeys | CountTable


@dataclass(frozen=True, eq=False)
class ValueTable:
    """values[i - j] is added to the value of a key, the first of them for the distance ``first``; further out is as the
    last on that side: Shaw's values."""

    values: Tensor  # (W, e)
    first: int


@runtime_checkable
class HasValueForm(Protocol):
    """A value bias that says what it is."""

    def form(self) -> ValueTable: ...


def value_form_of(value_bias: ValueBias) -> ValueTable | None:
    """The form of a value bias; ``None``: it has none that a kernel could run."""
    return value_bias.form() if isinstance(value_bias, HasValueForm) else None


@runtime_checkable
class HasForm(Protocol):
    """A bias, or the module that makes it whatever its inputs are, that says what it is; ``None``: no bias at all."""

    def form(self) -> Form | None: ...


@runtime_checkable
class HasQueryForm(Protocol):
    """A module that makes a bias of queries, and says what it makes of each."""

    def query_form(self) -> QueryForm: ...


def form_of(bias: Pointwise | Dense) -> Form | None:
    """The form of a bias; ``None``: it has none that a kernel could run."""
    if isinstance(bias, Form):
        return bias
    return bias.form() if isinstance(bias, HasForm) else None
