"""xPos (Sun et al. 2022): RoPE whose pairs also fade with distance.

Pair k of a query at n is scaled by ζ_k^(n/s) and of a key at m by ζ_k^(-m/s), ζ_k = (2k/d + γ) / (1 + γ), so a
score carries ζ_k^((n-m)/s): the fast pairs fade first. Meant for causal attention; into the future it grows.

Each factor alone grows with the absolute position and leaves the range of the dtype (in float32 near
36,000 for the paper's constants). Positions that do not fit are refused.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from vantage.errors import BadInput
from vantage.position.angles import angles, at_most, cos_sin, frequencies, need_even, rows
from vantage.position.rope import PAIRINGS, banded, check_pairing, join, rotate
from vantage.spec.abilities import Bands, Effect
from vantage.spec.native import HeadColumns, Program
from vantage.spec.parts import Parts, Shape
from vantage.spec.positions import Positions
from vantage.spec.registry import Entry, parameter

HEADROOM = 16.0  # queries and keys up to 16, and down to 1/16, keep their precision at the last position


@dataclass(frozen=True)
class XPos:
    """``scale_base`` is s: the distance over which pair k fades by ζ_k."""

    base: float = field(
        default=10000.0,
        metadata=parameter("the slowest pair has a wavelength of 2π times this", 2.0, 1e9),
    )
    gamma: float = field(default=0.4, metadata=parameter("larger: the fast pairs decay less", 0.01, 10.0))
    scale_base: float = field(default=512, metadata=parameter("distance over which pairs decay", 8.0, 65536.0))
    pairing: str = field(default="adjacent", metadata=parameter("which dimensions form a pair", choices=PAIRINGS))

    shared = True  # no annotation: not a field, and so below
    effect = Effect("fading rotation", linear=True)

    def __post_init__(self) -> None:
        check_pairing(self.pairing)
        for name, value in (("base", self.base), ("gamma", self.gamma), ("scale_base", self.scale_base)):
            if value <= 0:
                raise BadInput(f"{name}={value}: use a positive number")

    def last_position(self, dtype: torch.dtype) -> int:
        """The highest position whose factors fit the dtype."""
        info = torch.finfo(dtype)
        room = min(math.log(info.max), -math.log(info.tiny)) - math.log(HEADROOM)
        return int(room * self.scale_base / math.log((1 + self.gamma) / self.gamma))

    def parts(self, *, causal: bool) -> Parts:
        return Parts(qk=(self,))

    def build(self, shape: Shape) -> nn.Module:
        need_even(shape.rotary_dim, "xPos")
        return FadingRotation(self, shape.rotary_dim)


class FadingRotation(nn.Module):
    """Turns queries and keys alike, and scales them against each other."""

    def __init__(self, config: XPos, dim: int):
        super().__init__()
        self.config, self.dim = config, dim
        self.query_tables, self.key_tables = (FadingTables(config, dim, sign) for sign in (1, -1))

    def query(self, q_BHTd: Tensor, pos: Positions) -> Tensor:
        return rotate(q_BHTd, *self.query_tables.tables(pos, q_BHTd.dtype), self.config.pairing)

    def key(self, k_BGTd: Tensor, pos: Positions) -> Tensor:
        return rotate(k_BGTd, *self.key_tables.tables(pos, k_BGTd.dtype), self.config.pairing)

    def native_transform(self, program: Program, queries: HeadColumns, keys: HeadColumns) -> None:
        for tables, heads in ((self.query_tables, queries), (self.key_tables, keys)):
            program.rotate(tables, heads, self.dim, adjacent=self.config.pairing == "adjacent")

    def bands(self, pos: Positions) -> Bands:
        return Bands(frequencies(self.dim, self.config.base), banded(self.dim, self.dim, self.config.pairing))


@dataclass(frozen=True)
class FadingTables:
    """What queries (sign 1) or keys (-1) are turned and scaled by."""

    config: XPos
    dim: int
    sign: int

    def tables(self, pos: Positions, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """cos and signed sin times ζ^(sign·n/s), (R, 1, T, d), made once for all layers of a forward pass."""

        def make() -> tuple[Tensor, Tensor]:
            self._check(pos, dtype)
            c = self.config
            freq = frequencies(self.dim, c.base, pos.device)
            angle = angles(rows(pos), freq)
            pair = torch.arange(0, self.dim, 2, device=freq.device, dtype=freq.dtype) / self.dim
            fade = ((pair + c.gamma) / (1 + c.gamma)) ** angles(
                rows(pos), freq.new_full((1,), self.sign / c.scale_base)
            )
            cos, sin = (x * fade for x in cos_sin(angle))
            return join(cos, cos, c.pairing).to(dtype), join(-sin, sin, c.pairing).to(dtype)

        return pos.once((self.config, self.dim, dtype, self.sign), make)

    def last_position(self, dtype: torch.dtype) -> int:
        return self.config.last_position(dtype)

    def _check(self, pos: Positions, dtype: torch.dtype) -> None:
        last = self.last_position(dtype)
        top = at_most(pos, "xPos", last)
        if top > last:
            raise BadInput(
                f"position {top} is past {last}, the last that xPos's factors can hold in {dtype}: "
                "use a wider dtype, a larger scale_base, or shorter inputs"
            )


ENTRY = Entry("xpos", XPos, "xPos", "RoPE whose pairs also fade with distance (Sun et al. 2022).", randomised=False)
