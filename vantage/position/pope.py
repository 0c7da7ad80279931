"""PoPE (Gopalakrishnan et al. 2025): queries and keys as radii, position as the angle between them.

The score is Σ_c softplus(q_c) softplus(k_c) cos((i - j) ω_c - δ_c): what a token is sets the radii, which cannot be
negative, and where it stands sets the angle alone; δ, between -2π and 0, is learned for each key head and number.
There is a frequency for every number of a head, ω_c = base^(-c/d), where RoPE has one for every two. So that one
product makes the score, each number becomes two, radius times cosine and radius times sine. Keys are kept as they come
and widened when they are read: a cache holds no more than it does for RoPE.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import pi

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vantage.errors import BadInput, Refused
from vantage.position.angles import angles, precise, rows, wide
from vantage.spec.abilities import Effect
from vantage.spec.parts import Parts, Shape
from vantage.spec.positions import Positions
from vantage.spec.registry import Entry, Refusal, parameter

NOT_WHOLE = (
    "PoPE takes whole queries and keys to radii, and latent attention keeps none: only {} of {} numbers of a key are "
    "the position's. Use grouped-query attention, or another encoding"
)


@dataclass(frozen=True)
class PoPE:
    """``uniform``: δ is drawn between -2π and 0 at first, and else begins at 0."""

    base: float = field(
        default=10000.0, metadata=parameter("the slowest number turns once in 2π·base tokens", 2.0, 1e9)
    )
    uniform: bool = field(default=False, metadata=parameter("draw the learned angles at first, instead of 0"))

    shared = False  # no annotation: not a field, and so below
    widens = 2
    effect = Effect("PoPE")

    def __post_init__(self) -> None:
        if self.base <= 1:
            raise BadInput(f"base={self.base}: give more than 1, so that later numbers turn more slowly")

    def describe(self) -> str:
        return f"PoPE, base {self.base:,.0f}"

    def parts(self, *, causal: bool) -> Parts:
        return Parts(qk=(self,))

    def build(self, shape: Shape) -> nn.Module:
        if shape.rotary_dim != shape.key_dim:
            raise Refused(NOT_WHOLE.format(shape.rotary_dim, shape.key_dim))
        return PolarTransform(self, shape)


class PolarTransform(nn.Module):
    widens = PoPE.widens

    def __init__(self, config: PoPE, shape: Shape):
        super().__init__()
        self.config, self.dim = config, shape.key_dim
        self.delta = nn.Parameter(torch.zeros(shape.kv_heads, shape.key_dim))
        if config.uniform:
            nn.init.uniform_(self.delta, -2 * pi, 0.0)

    def query(self, q_BHTd: Tensor, pos: Positions) -> Tensor:
        return _polar(q_BHTd, self.turned(pos))

    def key(self, k_BGTd: Tensor, pos: Positions) -> Tensor:
        delta = self.delta.clamp(-2 * pi, 0.0)
        return _polar(k_BGTd, self.turned(pos) + delta[:, None].to(precise(k_BGTd.device)))

    def turned(self, pos: Positions) -> Tensor:
        """(R, 1, T, d): position times frequency, once for all layers of a pass."""

        def make() -> Tensor:
            number = torch.arange(self.dim, device=pos.device, dtype=precise(pos.device))
            return angles(rows(pos), self.config.base ** (-number / self.dim))

        return pos.once((PoPE, self.config.base, self.dim), make)


def _polar(x_BHTd: Tensor, angle: Tensor) -> Tensor:
    """(B, H, T, 2d)"""
    dtype = wide(x_BHTd.dtype)
    radius = F.softplus(x_BHTd.to(dtype))
    return torch.cat((radius * angle.cos().to(dtype), radius * angle.sin().to(dtype)), -1).to(x_BHTd.dtype)


ENTRY = Entry(
    "pope",
    PoPE,
    "PoPE",
    "Queries and keys are radii, and position is the angle between them (Gopalakrishnan et al. 2025).",
    refusals=(
        Refusal({"attention": ("latent",)}, "PoPE takes whole queries and keys to radii"),
        Refusal({"attention": ("hca", "hca-turned", "csa", "csa-turned")}, "windows of keys stand in their place"),
    ),
)
