"""A layer that is a token mixer and nothing else (Mamba)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vantage.spec.parts import Context


@dataclass(frozen=True)
class NoFeedForward:
    """No feed-forward layer: nothing is added, and there is no norm before it."""

    def describe(self) -> str:
        return "none"

    def divided(self, ranks: int, width: int) -> NoFeedForward:
        return self

    def build(self, width: int) -> nn.Module:
        return AddsNothing()


class AddsNothing(nn.Module):
    adds_nothing = True

    def forward(self, x: Tensor, ctx: Context | None = None) -> Tensor:
        return torch.zeros_like(x)
