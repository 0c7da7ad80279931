"""Shifted absolute positions: the simplest relative encoding (S0, P7).

The attended token's sinusoidal encoding is shifted so that the current position is always ``anchor``:
a score gains scale · q_i · PE(anchor - (i - j)).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import nn

from vantage.position.angles import need_even
from vantage.position.relative import sinusoid_scores
from vantage.spec.operations import AttentionWork
from vantage.spec.parts import BiasInputs, Dense, Parts, Shape
from vantage.spec.registry import Entry, parameter


@dataclass(frozen=True)
class Shifted:
    """``anchor`` is where every query believes to stand. No parameters."""

    anchor: int = field(default=0, metadata=parameter("where every query believes to stand", -4096, 4096))
    base: float = field(default=10000.0, metadata=parameter("the slowest wave is 2π times as long", 2.0, 1e9))

    shared = True  # no annotation: not a field

    def parts(self, *, causal: bool) -> Parts:
        return Parts(bias=self)

    def build(self, shape: Shape) -> nn.Module:
        need_even(shape.key_dim, "a shifted encoding")
        return ShiftedBias(self)

    def operations(self, work: AttentionWork) -> int:
        return 2 * work.pairs * work.shape.key_dim


class ShiftedBias(nn.Module):
    """q_i · PE(anchor - i + j), PE interleaved over the width of the head."""

    def __init__(self, config: Shifted):
        super().__init__()
        self.config = config

    def at(self, inputs: BiasInputs) -> Dense:
        # PE(-δ) for δ = i - j - anchor: the sines change their sign, the cosines do not
        sines, cosines = -inputs.q_raw[..., 0::2], inputs.q_raw[..., 1::2]
        base, back = self.config.base, self.config.anchor
        return Dense(inputs.scale * sinusoid_scores(sines, cosines, inputs.q_pos, inputs.k_pos, base, back=back))


ENTRY = Entry(
    "shifted",
    Shifted,
    "Shifted",
    "The attended token's sinusoid, shifted so that the query always stands at the same place.",
    variants={"shifted": lambda size: Shifted(anchor=3)},
    compared=False,
    randomised=False,
)
