"""Grok-2's temperature: past some length a query's scores grow with the logarithm of its position, after the softcap.

The fixed order of a kernel has nothing between softcap and bias, so the growth is written as a bias: with t_i the
temperature and s the capped score, t·s = s + (t - 1)·s. Up to the length t is 1 and there is no bias at all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vantage.errors import BadInput
from vantage.position.angles import highest, rows, wide
from vantage.spec.operations import AttentionWork
from vantage.spec.parts import BiasInputs, Dense, Shape
from vantage.spec.positions import Positions
from vantage.spec.registry import Entry


@dataclass(frozen=True)
class LateTemperature:
    """t_i = log(i) / log(length) for positions i past ``length``; ``softcap`` is that of the scores."""

    length: int
    softcap: float

    shared = True  # no annotation: not a field

    def __post_init__(self) -> None:
        if self.length < 2:
            raise BadInput(f"length={self.length}: its logarithm is divided by, so give 2 or more")
        if self.softcap <= 0:
            raise BadInput(f"softcap={self.softcap}: use the positive number that caps the scores")

    def describe(self) -> str:
        return f"temperature from {self.length:,}"

    def build(self, shape: Shape) -> nn.Module:
        return _LateTemperature(self)

    def operations(self, work: AttentionWork) -> int:
        return 2 * work.pairs * work.score_width if work.keys - 1 > self.length else 0


class _LateTemperature(nn.Module):
    def __init__(self, config: LateTemperature):
        super().__init__()
        self.config = config

    def at(self, inputs: BiasInputs) -> Dense | None:
        top = highest(inputs.q_pos)
        if top is not None and top <= self.config.length:
            return None
        return inputs.dense(self.whole, pairwise=True)

    def whole(self, inputs: BiasInputs) -> Tensor:
        grouped = inputs.q.unflatten(1, (inputs.k.shape[1], -1)).to(wide(inputs.q.dtype))
        scores = (grouped @ inputs.k[:, :, None].transpose(-1, -2).to(grouped.dtype)).flatten(1, 2)
        capped = self.config.softcap * torch.tanh(scores * (inputs.scale / self.config.softcap))
        return self.growth(inputs.q_pos, capped.dtype) * capped

    def growth(self, pos: Positions, dtype: torch.dtype) -> Tensor:
        """t - 1, (R, 1, T, 1)."""
        at_least = rows(pos).clamp_min(self.config.length).to(dtype)  # from the length down: log gives exactly t = 1
        return (at_least.log() / math.log(self.config.length) - 1).clamp_min(0)[:, None, :, None]


ENTRY = Entry(
    "late-temperature",
    LateTemperature,
    "Late temperature",
    "Past some length a query's scores grow with the logarithm of its position (Grok-2).",
    components={"bias": (LateTemperature,)},
    variants={},
)
