"""Sinusoidal positions (Vaswani et al. 2017): PE(t, 2i) = sin(t / base^(2i/d)), PE(t, 2i+1) = cos(the same)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vantage.errors import BadInput
from vantage.position.angles import frequencies, rows
from vantage.spec.parts import Parts, Shape
from vantage.spec.positions import Positions
from vantage.spec.registry import Entry, parameter

LAYOUTS = ("interleaved", "halves")


def sinusoid(pos: Tensor, dim: int, base: float = 10000.0, layout: str = "interleaved") -> Tensor:
    """(…) to (…, dim). "interleaved": sine, cosine, sine, …; "halves": all sines, then all cosines (Marian)."""
    _check_layout(layout)
    freq = frequencies(dim, base, pos.device)
    angle = pos[..., None].to(freq.dtype) * freq
    sines, cosines = angle.sin(), angle[..., : dim // 2].cos()
    if layout == "halves":
        return torch.cat((sines, cosines), dim=-1)
    if dim % 2:
        cosines = F.pad(cosines, (0, 1))
    return torch.stack((sines, cosines), dim=-1).flatten(-2)[..., :dim]


@dataclass(frozen=True)
class Sinusoidal:
    """Added to the embeddings; ``dropout`` acts on the sum. No parameters, no last position."""

    layout: str = field(
        default="interleaved",
        metadata=parameter("sines and cosines alternating, or all sines first", choices=LAYOUTS),
    )
    base: float = field(default=10000.0, metadata=parameter("the longest wavelength is 2π times this", 2.0, 1e9))
    dropout: float = 0.0

    shared = True  # no annotation: not a field

    def __post_init__(self) -> None:
        _check_layout(self.layout)
        if not 0 < self.base < math.inf:  # so written, it refuses nan
            raise BadInput(f"base={self.base}: use a positive number (the paper's is 10000)")
        if not 0.0 <= self.dropout < 1.0:
            raise BadInput(f"dropout={self.dropout}: use a share from 0 up to, not including, 1")

    def describe(self) -> str:
        return "sinusoidal"

    def parts(self, *, causal: bool) -> Parts:
        return Parts(inputs=(self,), unit=True)

    def build(self, shape: Shape) -> nn.Module:
        return SinusoidalInput(self)


class SinusoidalInput(nn.Module):
    """x + PE(pos)."""

    def __init__(self, config: Sinusoidal):
        super().__init__()
        self.config = config

    def forward(self, x_BTD: Tensor, pos: Positions) -> Tensor:
        encoded = sinusoid(rows(pos), x_BTD.shape[-1], self.config.base, self.config.layout)
        return F.dropout(x_BTD + encoded.to(x_BTD.dtype), self.config.dropout, self.training)


def _check_layout(layout: str) -> None:
    if layout not in LAYOUTS:
        raise BadInput(f"layout={layout!r}: use one of {', '.join(map(repr, LAYOUTS))}")


ENTRY = Entry(
    "sinusoidal",
    Sinusoidal,
    "Sinusoidal",
    "Sines and cosines of the position, from fast to slow, are added to the embeddings (Vaswani et al. 2017).",
    variants={"sinusoidal": lambda size: Sinusoidal(), "sinusoidal-halves": lambda size: Sinusoidal(layout="halves")},
)
