"""FIRE (Li et al. 2023): a learned function of the distance as a share of the query's position.

b(i, j) = f(ψ(i - j) / ψ(max(L, i))), ψ(x) = log(c·x + 1); f is a small network with an output per head, and
c and L are learned. Bidirectional attention uses |i - j| and max(L, i, j).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import cast

import torch
from torch import Tensor, nn

from vantage.errors import BadInput
from vantage.position.angles import wide
from vantage.spec.forms import RatioNetwork
from vantage.spec.operations import AttentionWork
from vantage.spec.parts import BiasInputs, Dense, Parts, Shape
from vantage.spec.positions import Pair
from vantage.spec.registry import Entry, parameter

EPS = 1e-6  # keeps the first position, where ψ is 0, from dividing by it


@dataclass(frozen=True)
class Fire:
    """``init_L``: below this position the distance counts as it is. ``bidirectional=None``: as the attention is."""

    hidden: int = field(default=32, metadata=parameter("hidden width of the learned network", 1, 256))
    init_c: float = field(default=0.1, metadata=parameter("initial c in log(c·distance + 1)", 1e-4, 100.0))
    init_L: float = field(
        default=512.0, metadata=parameter("initial threshold below which distances are not normalised", 1.0, 65536.0)
    )
    bidirectional: bool | None = field(default=None, metadata=parameter("also for keys after the query"))

    shared = False  # no annotation: not a field

    def __post_init__(self) -> None:
        if self.hidden < 1:
            raise BadInput(f"hidden={self.hidden}: use 1 or more")
        for name, value in (("init_c", self.init_c), ("init_L", self.init_L)):
            if value <= 0:
                raise BadInput(f"{name}={value}: use a positive number")

    def parts(self, *, causal: bool) -> Parts:
        return Parts(bias=self if self.bidirectional is not None else replace(self, bidirectional=not causal))

    def build(self, shape: Shape) -> nn.Module:
        if self.bidirectional is None:
            raise BadInput("FIRE does not know if attention is bidirectional: say so, or build what parts() returns")
        return FireBias(self, shape.heads, self.bidirectional)

    def operations(self, work: AttentionWork) -> int:
        pairs = work.size.queries * work.keys  # one row for all: positions are the same in each
        return 2 * pairs * self.hidden * (1 + work.shape.heads)


class FireBias(nn.Module):
    """The network f, and c and L (as a multiple of ``init_L``)."""

    def __init__(self, config: Fire, heads: int, bidirectional: bool):
        super().__init__()
        self.config, self.bidirectional = config, bidirectional
        self.c = nn.Parameter(torch.tensor([config.init_c]))  # not a bare number: FSDP2 cannot share one out
        self.L_multiple = nn.Parameter(torch.tensor([1.0]))
        self.f = nn.Sequential(nn.Linear(1, config.hidden), nn.ReLU(), nn.Linear(config.hidden, heads))

    def at(self, inputs: BiasInputs) -> Dense:
        return inputs.dense(lambda some: self.whole(some.q_pos.against(some.k_pos)), self.form, pairwise=True)

    def whole(self, pair: Pair) -> Tensor:
        """(R, H, T, S)."""
        i, j = (place.pos[:, 0] for place in pair.places())  # (R, T, 1) and (R, 1, S)
        dtype = wide(self.c.dtype)
        within = torch.maximum(i.to(dtype), self.limit(dtype))
        within = torch.maximum(within, j.to(dtype)) if self.bidirectional else within
        ratio = self.psi((i - j).to(dtype)) / (self.psi(within) + EPS)
        return self.f(ratio[..., None].to(self.c.dtype)).permute(0, 3, 1, 2)

    def limit(self, dtype: torch.dtype) -> Tensor:
        return (self.L_multiple.to(dtype) * self.config.init_L).abs()

    def form(self) -> RatioNetwork:
        inner, outer = cast(nn.Linear, self.f[0]), cast(nn.Linear, self.f[2])
        limit = self.L_multiple.to(wide(self.c.dtype)) * self.config.init_L
        weights = (inner.weight[:, 0], inner.bias, outer.weight, outer.bias)
        return RatioNetwork(*weights, self.c, limit, self.bidirectional, EPS)

    def psi(self, x: Tensor) -> Tensor:
        """log(|c·x| + 1): the sign of the distance does not count, nor that of c, which is free to cross 0."""
        return torch.log1p((self.c.to(x.dtype) * x).abs())


ENTRY = Entry(
    "fire",
    Fire,
    "FIRE",
    "A learned function of the distance as a share of the query's position (Li et al. 2023).",
)
