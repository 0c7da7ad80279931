"""The relative bank (Inkling 2026): each query mixes a few learned curves over the distance into one of its own.

r = W x for each head, a few numbers; the score of query i and key j gains (r_i · bank)[i - j], and nothing beyond the
bank's end or for a later key. It is Shaw's query term with a small query of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vantage.errors import BadInput
from vantage.position.angles import need_whole
from vantage.spec.forms import RowTable
from vantage.spec.operations import AttentionWork
from vantage.spec.parts import INIT_STD, BiasInputs, Parts, Pointwise, Shape
from vantage.spec.positions import Place
from vantage.spec.registry import Entry, parameter


@dataclass(frozen=True)
class RelativeBank:
    """``curves`` curves over ``extent`` distances, shared by the heads of a layer."""

    extent: int = field(default=128, metadata=parameter("distances that each curve covers", 1, 65_536))
    curves: int = field(default=16, metadata=parameter("learned curves over the distance", 1, 1_024))

    shared = False  # no annotation: not a field

    def __post_init__(self) -> None:
        for name, number in (("extent", self.extent), ("curves", self.curves)):
            if number < 1:
                raise BadInput(f"{name}={number}: use 1 or more")

    def describe(self) -> str:
        return f"relative bank of {self.extent}"

    def parts(self, *, causal: bool) -> Parts:
        return Parts(bias=self)

    def build(self, shape: Shape) -> nn.Module:
        return BankedDistances(self, shape)

    def operations(self, work: AttentionWork) -> int:
        return 2 * work.rows * self.curves * (work.shape.width + self.extent)


@dataclass(frozen=True, eq=False)
class BankBias(Pointwise):
    """What each query has to say to each distance, read at i - j; 0 elsewhere."""

    by_distance: Tensor  # (B, H, T, extent)

    def __call__(self, b: Tensor, h: Tensor, i: Tensor, q: Place, k: Place) -> Tensor:
        distance, last = q.pos - k.pos, self.by_distance.shape[-1] - 1
        value = self.by_distance[b, h, i, distance.clamp(0, last)]
        return torch.where((distance >= 0) & (distance <= last), value, 0.0)

    def form(self) -> RowTable:
        return RowTable(F.pad(self.by_distance, (1, 1)), first=-1)


class BankedDistances(nn.Module):
    def __init__(self, config: RelativeBank, shape: Shape):
        super().__init__()
        self.heads = shape.heads
        self.query = nn.Linear(shape.width, shape.heads * config.curves, bias=False)
        self.bank = nn.Parameter(torch.empty(config.curves, config.extent))
        for weight in (self.query.weight, self.bank):
            nn.init.normal_(weight, std=INIT_STD)

    def at(self, inputs: BiasInputs) -> BankBias:
        need_whole(inputs.q_pos, "a relative bank")
        need_whole(inputs.k_pos, "a relative bank")
        assert inputs.x is not None
        small = self.query(inputs.x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        return BankBias(small @ self.bank)


ENTRY = Entry(
    "bank",
    RelativeBank,
    "Relative bank",
    "Each query mixes learned curves over the distance (Inkling 2026).",
    variants={"bank": lambda size: RelativeBank(extent=6, curves=3)},
)
