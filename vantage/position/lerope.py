"""LeRoPE (Mistral Large 4, 2026): RoPE whose frequencies are learned, ω_k·exp(α_k), from α = 0 on.

α is applied to what the frequency rule gives, so YaRN comes first. The frequencies are weights: no table is kept from
one pass to the next.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vantage.position.angles import rows
from vantage.position.rope import Rope, Rotation, rotate_by, turns
from vantage.spec.abilities import Bands
from vantage.spec.parts import Parts, Shape
from vantage.spec.positions import Positions
from vantage.spec.registry import Entry


@dataclass(frozen=True)
class LeRope:
    """One α for each pair, the same in all layers that share a ``rope``."""

    rope: Rope = Rope()

    shared = True  # no annotation: not a field, and so below
    effect = Rope.effect

    @property
    def original_length(self) -> int | None:
        return self.rope.original_length

    def describe(self) -> str:
        return f"learned {self.rope.describe()}"

    def parts(self, *, causal: bool) -> Parts:
        return Parts(qk=(self,))

    def build(self, shape: Shape) -> nn.Module:
        return LearnedRotation(Rotation(self.rope, shape.rotary_dim))


class LearnedRotation(nn.Module):
    """Turns queries and keys alike."""

    def __init__(self, rotation: Rotation):
        super().__init__()
        self.rotation = rotation
        self.alpha = nn.Parameter(torch.zeros(rotation.turned // 2))

    def query(self, q_BHTd: Tensor, pos: Positions) -> Tensor:
        return self.turn(q_BHTd, pos)

    def key(self, k_BGTd: Tensor, pos: Positions) -> Tensor:
        return self.turn(k_BGTd, pos)

    def back(self, x_BHTd: Tensor, pos: Positions) -> Tensor:
        return self.turn(x_BHTd, pos, sign=-1)

    def turn(self, x_BHTd: Tensor, pos: Positions, sign: int = 1) -> Tensor:
        freq, factor = self.rotation.rates(pos)
        pairing = self.rotation.config.pairing
        cos, sin = turns(rows(pos), freq * self.alpha.to(freq.dtype).exp(), factor, pairing, x_BHTd.dtype)
        turning, still = x_BHTd.split((self.rotation.turned, self.rotation.dim - self.rotation.turned), dim=-1)
        return torch.cat((rotate_by(turning, cos, sign * sin, pairing), still), dim=-1)

    def bands(self, pos: Positions) -> Bands:
        plain = self.rotation.bands(pos)
        return Bands(plain.frequency * self.alpha.detach().to(plain.frequency).exp(), plain.of)


ENTRY = Entry(
    "lerope",
    LeRope,
    "LeRoPE",
    "RoPE whose frequencies are learned: each is multiplied by exp(α), from α = 0 on (Mistral Large 4, 2026).",
)
