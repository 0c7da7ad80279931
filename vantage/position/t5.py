"""T5's relative positions (Raffel et al. 2020): a learned number per head and bucket of distance.

Half of the buckets hold one distance each, the other half grow logarithmically up to ``max_distance``.
Bidirectional attention splits them between the past and the future.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from vantage.errors import BadInput
from vantage.position.angles import need_whole
from vantage.spec.forms import DistanceTable
from vantage.spec.parts import BiasInputs, Parts, Pointwise, Shape
from vantage.spec.positions import Place
from vantage.spec.registry import Entry, parameter


def t5_bucket(distance: Tensor, *, bidirectional: bool, buckets: int = 32, max_distance: int = 128) -> Tensor:
    """The bucket of ``distance`` = key position - query position."""
    first = torch.zeros_like(distance)
    if bidirectional:
        buckets //= 2
        first = torch.where(distance > 0, buckets, first)
        far = distance.abs()
    else:
        far = (-distance).clamp_min(0)
    exact = buckets // 2
    # float32 on purpose: the checkpoints were trained with the rounding of the original at bucket edges
    growth = torch.log(far.clamp_min(exact).float() / exact) / math.log(max_distance / exact)
    large = (exact + (growth * (buckets - exact)).long()).clamp_max(buckets - 1)
    return first + torch.where(far < exact, far, large)


@dataclass(frozen=True)
class T5:
    """``bidirectional=None``: as the attention is. ``shared``: one table for all layers, as in T5."""

    buckets: int = field(default=32, metadata=parameter("number of buckets", 4, 256))
    max_distance: int = field(default=128, metadata=parameter("larger distances share the last bucket", 3, 4096))
    bidirectional: bool | None = field(
        default=None, metadata=parameter("half of the buckets are for keys after the query")
    )
    shared: bool = True

    def __post_init__(self) -> None:
        if self.buckets < 4 or self.buckets % 2:
            raise BadInput(f"buckets={self.buckets}: use an even number, 4 or more")
        exact = self.buckets // 4 if self.bidirectional else self.buckets // 2
        if self.bidirectional is not None and self.max_distance <= exact:
            raise BadInput(
                f"max_distance={self.max_distance} leaves nothing to grow: {exact} of the {self.buckets} buckets "
                f"on a side hold one distance each, so use more than {exact}"
            )

    def describe(self) -> str:
        return f"T5 buckets, {self.buckets}" + (", one table" if self.shared else "")

    def parts(self, *, causal: bool) -> Parts:
        return Parts(bias=self if self.bidirectional is not None else replace(self, bidirectional=not causal))

    def build(self, shape: Shape) -> nn.Module:
        if self.bidirectional is None:
            raise BadInput("T5 does not know if attention is bidirectional: say so, or build what parts() returns")
        return T5Table(self, shape, self.bidirectional)


@dataclass(frozen=True, eq=False)
class T5Bias(Pointwise):
    """table[bucket(j - i), h]."""

    table: Tensor  # (buckets, H)
    lookup: Tensor  # (2n + 1,): the bucket of each distance from -n to n; those further out are as n

    def __call__(self, b: Tensor, h: Tensor, i: Tensor, q: Place, k: Place) -> Tensor:
        n = self.lookup.shape[0] // 2
        return self.table[self.lookup[(k.pos - q.pos).clamp(-n, n) + n], h]

    def form(self) -> DistanceTable:
        return DistanceTable(self.table[self.lookup.flip(0)].T, first=-(self.lookup.shape[0] // 2))


class T5Table(nn.Module):
    """The learned table."""

    def __init__(self, config: T5, shape: Shape, bidirectional: bool):
        super().__init__()
        self.config, self.bidirectional = config, bidirectional
        self.table = nn.Parameter(torch.empty(config.buckets, shape.heads))
        nn.init.normal_(self.table, std=shape.width**-0.5)

    def bucket(self, distance: Tensor) -> Tensor:
        c = self.config
        return t5_bucket(distance, bidirectional=self.bidirectional, buckets=c.buckets, max_distance=c.max_distance)

    def lookup(self) -> Tensor:
        """The bucket of each distance up to the largest on either side."""
        n = self.config.max_distance
        return self.bucket(torch.arange(-n, n + 1, device=self.table.device))

    def form(self) -> DistanceTable:
        return T5Bias(self.table, self.lookup()).form()

    def at(self, inputs: BiasInputs) -> T5Bias:
        need_whole(inputs.q_pos, "T5's table")
        need_whole(inputs.k_pos, "T5's table")
        return T5Bias(self.table, inputs.q_pos.once(("t5", self.config), self.lookup))


ENTRY = Entry(
    "t5",
    T5,
    "T5",
    "A learned number for each head and bucket of distances (Raffel et al. 2020).",
    variants={"t5": lambda size: T5(buckets=8, max_distance=10)},
)
