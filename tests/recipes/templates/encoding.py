"""Fading: a score loses s_h · √|i - j|, with a learned slope s_h a head."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from vantage.errors import BadInput
from vantage.spec.parts import BiasInputs, Parts, Pointwise, Shape
from vantage.spec.positions import Place
from vantage.spec.registry import Entry, parameter


@dataclass(frozen=True)
class Fading:
    """``start`` is every head's slope before training."""

    start: float = field(default=0.5, metadata=parameter("how fast scores fade, at first", 0.0, 8.0))

    shared = False  # no annotation: not a field

    def __post_init__(self) -> None:
        if self.start < 0:
            raise BadInput(f"start={self.start}: use 0 or more, or scores grow with the distance")

    def parts(self, *, causal: bool) -> Parts:
        return Parts(bias=self)

    def build(self, shape: Shape) -> nn.Module:
        return FadingSlopes(self, shape.heads)


@dataclass(frozen=True, eq=False)
class FadingBias(Pointwise):
    """-slopes[h] · √|i - j|."""

    slopes: Tensor  # (H,)

    def __call__(self, b: Tensor, h: Tensor, i: Tensor, q: Place, k: Place) -> Tensor:
        return -self.slopes[h] * (q.pos - k.pos).abs().to(self.slopes.dtype).sqrt()


class FadingSlopes(nn.Module):
    def __init__(self, config: Fading, heads: int):
        super().__init__()
        self.slopes = nn.Parameter(torch.full((heads,), config.start))

    def at(self, inputs: BiasInputs) -> FadingBias:
        return FadingBias(self.slopes)


ENTRY = Entry("fading", Fading, "Fading", "A score loses a learned slope times the root of the distance.")
