"""Shifted absolute positions: the simplest relative encoding (S0, P7).

The attended token's sinusoidal encoding is shifted so that the current position is always ``anchor``:
a score gains scale · q_i · PE(anchor - (i - j)).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from vantage.position.angles import need_even
from vantage.position.relative import distance_waves, runs, sinusoid_scores, waves
from vantage.spec.forms import DistanceKeys, QueryDistances
from vantage.spec.operations import AttentionWork
from vantage.spec.parts import BiasInputs, Dense, Parts, Shape
from vantage.spec.registry import Entry, parameter


@dataclass(frozen=True)
class Shifted:
    """``anchor`` is the position that every query is given. No parameters."""

    anchor: int = field(default=0, metadata=parameter("position assigned to every query", -4096, 4096))
    base: float = field(default=10000.0, metadata=parameter("the longest wavelength is 2π times this", 2.0, 1e9))

    shared = True  # no annotation: not a field

    def parts(self, *, causal: bool) -> Parts:
        return Parts(bias=self)

    def build(self, shape: Shape) -> nn.Module:
        need_even(shape.key_dim, "a shifted encoding")
        return ShiftedBias(self, shape.key_dim)

    def operations(self, work: AttentionWork) -> int:
        return 2 * work.pairs * work.shape.key_dim


class ShiftedBias(nn.Module):
    """q_i · PE(anchor - i + j), PE interleaved over the width of the head."""

    def __init__(self, config: Shifted, key_dim: int):
        super().__init__()
        self.config, self.key_dim = config, key_dim

    def at(self, inputs: BiasInputs) -> Dense:
        q, base, back = inputs.q_raw, self.config.base, self.config.anchor

        def whole(some: BiasInputs) -> Tensor:
            # PE(-δ) for δ = i - j - anchor: the sines change their sign, the cosines do not
            sines, cosines = -some.q_raw[..., 0::2], some.q_raw[..., 1::2]
            return some.scale * sinusoid_scores(sines, cosines, some.q_pos, some.k_pos, base, back=back)

        def keys(highest: int, n: int) -> Tensor:
            return _interleaved(distance_waves(inputs.q_pos, highest - back, n, q.shape[-1], base, q.dtype))

        if not runs(inputs.q_pos, inputs.k_pos):
            return inputs.dense(whole, pairwise=True)
        return inputs.dense(
            whole, lambda: DistanceKeys(None if inputs.q is q else q, keys, inputs.scale), pairwise=True
        )

    def query_form(self) -> QueryDistances:
        return QueryDistances(self.distance_keys)

    def distance_keys(self, n: int) -> Tensor:
        """(1, n, d), from the distance 0 on."""
        distances = torch.arange(n) - self.config.anchor
        return _interleaved(waves(distances, self.key_dim, self.config.base, torch.float32))


def _interleaved(waves_nd: Tensor) -> Tensor:
    """(1, n, d): PE(-δ) of sines and cosines of δ."""
    sines, cosines = waves_nd.chunk(2, -1)
    return torch.stack((-sines, cosines), -1).flatten(-2)[None]


ENTRY = Entry(
    "shifted",
    Shifted,
    "Shifted",
    "The key's sinusoid, shifted so that the query is always at the same position.",
    variants={"shifted": lambda size: Shifted(anchor=3)},
    compared=False,
    randomised=False,
)
