"""Biases of every form that attention over a cache has, and their numbers."""

from __future__ import annotations

import torch
from torch import Tensor

from vantage.spec.forms import (
    DistanceForm,
    DistanceTable,
    LogDistance,
    PowerDistance,
    RatioNetwork,
    Slope,
)
from vantage.spec.parts import materialise
from vantage.spec.positions import Positions


def forms(heads: int) -> dict[str, DistanceForm]:
    draw = torch.Generator().manual_seed(heads)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=draw, dtype=torch.float64)

    def positive(*shape: int) -> Tensor:
        return torch.rand(shape, generator=draw, dtype=torch.float64) + 0.1

    network = (normal(5), normal(5), normal(heads, 5), normal(heads))
    breaks = torch.linspace(0.0, 0.99, 20, dtype=torch.float64)
    many = (torch.ones(20, dtype=torch.float64), -breaks, normal(heads, 20), normal(heads))
    return {
        "slopes": Slope(positive(heads)),
        "logarithm": LogDistance(positive(heads), positive(heads)),
        "power": PowerDistance(positive(heads), positive(heads)),
        "table": DistanceTable(normal(heads, 13), first=-6),
        "table from 3 on": DistanceTable(normal(heads, 4), first=3),
        "ratio": RatioNetwork(*network, positive(1), torch.tensor([9.0], dtype=torch.float64)),
        "ratio in 21 pieces": RatioNetwork(*many, positive(1), torch.tensor([9.0], dtype=torch.float64)),
    }


def bias_values(form: DistanceForm, heads: int, tokens: int) -> Tensor:
    """(H, tokens, tokens) in float64, of positions from 0 on."""
    at = Positions.arange(1, tokens)
    value = materialise(form, at.against(at), heads, torch.float64)
    assert value is not None
    return value[0]
