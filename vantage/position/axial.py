"""Axial 2D RoPE: half of the pairs of a head turn by the row of a patch, half by its column (vision towers, 2024).

Each axis has the same d/4 frequencies, base^(-4k/d). M-RoPE has one row of frequencies for all axes instead, and with
two axes in turns it is what NeoMME calls axial. In text both axes are the position.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from vantage.errors import BadInput
from vantage.position.mrope import along_axes
from vantage.position.rope import Rope, Rotation, banded, rotate
from vantage.spec.abilities import Bands
from vantage.spec.native import CannotLower, HeadColumns, Program
from vantage.spec.parts import Parts, Shape
from vantage.spec.positions import Positions
from vantage.spec.registry import Entry, parameter

AXES = 2  # row and column
LAYOUTS = ("whole", "split")


@dataclass(frozen=True)
class AxialRope:
    """Layout "whole": dimension k with k + d/2, rows and columns in each half of the head (Qwen2-VL); "split": the
    first half of the head turns by the row, the second by the column, each as a head of its own (Gemma 4)."""

    base: float = field(
        default=10000.0,
        metadata=parameter("the slowest pair has a wavelength of 2π times this, in rows or columns", 2.0, 1e9),
    )
    layout: str = field(default="whole", metadata=parameter("which dimensions each axis uses", choices=LAYOUTS))

    shared = True  # no annotation: not a field, and so below
    effect = Rope.effect

    def __post_init__(self) -> None:
        if self.layout not in LAYOUTS:
            raise BadInput(f"layout={self.layout!r}: use one of {', '.join(LAYOUTS)}")
        if not 0 < self.base < math.inf:  # so written, it refuses nan
            raise BadInput(f"base={self.base}: use a positive number (Qwen2-VL's is 10000)")

    def describe(self) -> str:
        return f"axial RoPE, base {self.base:,.0f}"

    def parts(self, *, causal: bool) -> Parts:
        return Parts(qk=(self,))

    def build(self, shape: Shape) -> nn.Module:
        return AxialRotation(self, shape.rotary_dim)


class AxialRotation(nn.Module):
    """Turns queries and keys alike."""

    def __init__(self, config: AxialRope, dim: int):
        super().__init__()
        if dim % (2 * AXES):
            raise BadInput(
                f"axial RoPE turns a pair for each of {AXES} axes, and a head has {dim}: give a multiple of 4"
            )
        self.config, self.dim = config, dim
        self.rotation = Rotation(Rope(config.base), dim // AXES)  # of one axis

    def query(self, q_BHTd: Tensor, pos: Positions) -> Tensor:
        return self.turn(q_BHTd, pos)

    def key(self, k_BGTd: Tensor, pos: Positions) -> Tensor:
        return self.turn(k_BGTd, pos)

    def turn(self, x_BHTd: Tensor, pos: Positions) -> Tensor:
        cos, sin = self.tables(pos, x_BHTd.dtype)
        if self.config.layout == "whole":
            return rotate(x_BHTd, cos, sin, "halves")
        x, cos, sin = (side.unflatten(-1, (AXES, -1)) for side in (x_BHTd, cos, sin))
        return rotate(x, cos, sin, "halves").flatten(-2)

    def bands(self, pos: Positions) -> Bands:
        rate, _ = self.rotation.rates(pos)
        of = banded(self.dim // AXES, self.dim // AXES, "halves")
        both = torch.stack((of, of + len(rate)))
        return Bands(rate.repeat(AXES), self._lay_out(both).to(of))

    def native_transform(self, program: Program, queries: HeadColumns, keys: HeadColumns) -> None:
        if self.config.layout != "whole":
            raise CannotLower("axial RoPE that splits a head has no native form")
        for heads in (queries, keys):
            program.rotate(self, heads, self.dim, adjacent=False)

    def tables(self, pos: Positions, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """cos and signed sin, (R, 1, T, d), made once for all layers of a forward pass."""
        axes = pos.axes
        if axes is not None and len(axes) != AXES:
            raise BadInput(f"positions with {len(axes)} axes for axial RoPE: give {AXES}, the row and the column")
        return pos.once((self.config, self.dim, dtype), lambda: self._by_axis(pos, axes, dtype))

    def _by_axis(self, pos: Positions, axes_ABT: Tensor | None, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        along = [pos] * AXES if axes_ABT is None else along_axes(pos, axes_ABT)
        tables = [self.rotation.tables(p, dtype) for p in along]
        cos, sin = (self._lay_out(torch.stack(side)) for side in zip(*tables, strict=True))
        return cos, sin

    def _lay_out(self, of_axes: Tensor) -> Tensor:
        """(A, …, d / A), both members of each pair in halves, to (…, d) as the layout has them."""
        by_member = of_axes.movedim(0, -2).unflatten(-1, (2, -1))  # (…, axis, member, pair)
        return (by_member.transpose(-3, -2) if self.config.layout == "whole" else by_member).flatten(-3)


ENTRY = Entry(
    "axial",
    AxialRope,
    "Axial RoPE",
    "RoPE for patches of an image: half of the pairs turn by the row, half by the column (vision towers).",
    variants={
        "axial": lambda size: AxialRope(),
        "axial-split": lambda size: AxialRope(layout="split"),
    },
    compared=False,  # it is for images; on text it is RoPE with half the frequencies
    randomised=False,
)
