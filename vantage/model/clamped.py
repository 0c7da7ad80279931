"""GPT-OSS's feed-forward layer: a SwiGLU whose gate is steeper, whose inputs are clamped and whose up is shifted."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from vantage.errors import BadInput
from vantage.model.feed_forward import columns_each
from vantage.model.linear import dense
from vantage.spec.parts import Context


@dataclass(frozen=True)
class ClampedSwiGLU:
    """down((up + 1) · gate · σ(alpha · gate)), with gate ≤ limit and |up| ≤ limit.

    The rows of ``gate_up`` alternate, gate before up, as the checkpoints have them.
    """

    hidden: int
    alpha: float = 1.702  # x·σ(1.702·x) is near GELU
    limit: float = 7.0
    bias: bool = True

    def __post_init__(self) -> None:
        if self.hidden < 1:
            raise BadInput(f"hidden={self.hidden}: a feed-forward layer needs at least 1")
        if self.limit <= 0:
            raise BadInput(f"limit={self.limit}: use a positive number, as everything beyond it is cut off")

    def describe(self) -> str:
        return f"clamped SwiGLU, {self.hidden:,}"

    def divided(self, ranks: int, width: int) -> ClampedSwiGLU:
        return replace(self, hidden=columns_each(self.hidden, ranks))

    def build(self, width: int) -> nn.Module:
        return _ClampedSwiGLU(self, width)


class _ClampedSwiGLU(nn.Module):
    def __init__(self, config: ClampedSwiGLU, width: int):
        super().__init__()
        self.alpha, self.limit = config.alpha, config.limit
        self.gate_up = dense(width, 2 * config.hidden, config.bias)
        self.down = dense(config.hidden, width, config.bias)

    def forward(self, x: Tensor, ctx: Context | None = None) -> Tensor:
        gate, up = self.gate_up(x).unflatten(-1, (-1, 2)).unbind(-1)
        gate, up = gate.clamp(max=self.limit), up.clamp(-self.limit, self.limit)
        return self.down((up + 1) * gate * torch.sigmoid(self.alpha * gate))
