"""What every attention module asks of a kernel, put together in one place."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from vantage.spec.attention import PositionParts
from vantage.spec.model import BuildContext, Scores
from vantage.spec.parts import Need, Shape
from vantage.spec.positions import Positions


class Scorer(nn.Module):
    """From queries and keys to a ``Need``. Holds the biases and the sinks."""

    def __init__(self, scores: Scores, shape: Shape, context: BuildContext):
        super().__init__()
        self.scores = scores
        self.scale = shape.key_dim**-0.5 if scores.scale is None else scores.scale
        self.mask = context.mask
        self.bias = context.bias
        self.value_bias = context.value_bias
        self.sinks = nn.Parameter(torch.zeros(shape.heads)) if scores.sinks else None

    def need(self, q_raw: Tensor, q: Tensor, k: Tensor, q_pos: Positions, k_pos: Positions) -> Need:
        return Need(
            mask=self.mask,
            scale=self.scale,
            softcap=self.scores.softcap,
            bias=self.bias.at(q_raw, q, k, q_pos, k_pos, self.scale),
            sinks=self.sinks,
            normalise=self.scores.normalise,
            dropout=self.scores.dropout if self.training else 0.0,
            value_bias=self.value_bias,
        )

    def position_parts(self, qk: nn.ModuleList) -> PositionParts:
        transforms: list[Any] = list(qk)
        return PositionParts(transforms, self.bias, self.value_bias)


class NoBias:
    """No score bias."""

    def at(self, q_raw: Tensor, q: Tensor, k: Tensor, q_pos: Positions, k_pos: Positions, scale: float) -> None:
        return None


def merge_heads(x_BHTd: Tensor) -> Tensor:
    """(B, H, T, d) to (B, T, H·d)."""
    return x_BHTd.transpose(1, 2).flatten(2)
