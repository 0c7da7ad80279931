"""RMSNorm and LayerNorm."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vantage.spec.model import NormConfig


@dataclass(frozen=True)
class RMSNorm:
    """x / rms(x) · (offset + weight). Gemma stores weights around 0: offset 1."""

    eps: float = 1e-6
    offset: float = 0.0

    def build(self, width: int) -> nn.Module:
        return _RMSNorm(self, width)


class _RMSNorm(nn.Module):
    def __init__(self, config: RMSNorm, width: int):
        super().__init__()
        self.config = config
        self.weight = nn.Parameter(torch.full((width,), 1.0 - config.offset))

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight if self.config.offset == 0.0 else self.weight + self.config.offset
        return F.rms_norm(x, (x.shape[-1],), weight, self.config.eps)


@dataclass(frozen=True)
class LayerNorm:
    """(x - mean) / deviation · weight + bias."""

    eps: float = 1e-5
    bias: bool = True

    def build(self, width: int) -> nn.Module:
        return nn.LayerNorm(width, self.eps, bias=self.bias)


NORMS: dict[str, NormConfig] = {"rms": RMSNorm(), "layer": LayerNorm()}
