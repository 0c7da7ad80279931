"""A learned table over a square of places, stretched to the patches of each image (Qwen3-VL's tower, 2025)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vantage.errors import BadInput, Refused
from vantage.position.angles import precise
from vantage.spec.parts import INIT_STD, Shape
from vantage.spec.positions import Positions
from vantage.spec.registry import Entry

AXES = 2  # row and column


@dataclass(frozen=True)
class LearnedGrid:
    """``side`` places by ``side``. The corners of an image stand on the corners of the table, and a patch between four
    places gets of each by how near it is. One row of a batch is one image, whose size its positions tell."""

    side: int

    shared = False  # no annotation: not a field

    def __post_init__(self) -> None:
        if self.side < 1:
            raise BadInput(f"side={self.side}: a grid needs at least one place")

    def describe(self) -> str:
        return f"learned grid, {self.side} × {self.side}"

    def build(self, shape: Shape) -> nn.Module:
        return GridTable(self, shape.width)


class GridTable(nn.Module):
    """Added to the embeddings."""

    def __init__(self, config: LearnedGrid, width: int):
        super().__init__()
        self.config = config
        self.table = nn.Parameter(torch.empty(config.side**2, width))
        nn.init.normal_(self.table, std=INIT_STD)

    def forward(self, x_BTD: Tensor, pos: Positions) -> Tensor:
        if pos.axes is None or len(pos.axes) != AXES:
            raise BadInput("a learned grid reads the row and the column of each patch: use Positions.of_axes")
        if pos.segment is not None:
            raise Refused("a learned grid takes one image a row: give each a row of its own")
        return x_BTD + self._stretched(pos.axes).to(x_BTD.dtype)

    def _stretched(self, axes_2BT: Tensor) -> Tensor:
        """(B, T, D): what the table has at each patch."""
        side, dtype = self.config.side, torch.promote_types(self.table.dtype, torch.float32)
        steps = axes_2BT.amax(-1, keepdim=True).clamp(min=1)  # one row or column stands at the first place
        place = axes_2BT.clamp(min=0).to(precise(axes_2BT.device)) * (side - 1) / steps
        low = place.floor().long()
        share = (place - low).to(dtype)
        high = (low + 1).clamp(max=side - 1)
        rows = ((low[0], 1 - share[0]), (high[0], share[0]))
        columns = ((low[1], 1 - share[1]), (high[1], share[1]))
        corners = ((row * side + column, a * b) for row, a in rows for column, b in columns)
        parts = [self.table[index].to(dtype) * weight[..., None] for index, weight in corners]
        return sum(parts[1:], parts[0])


ENTRY = Entry("learned-grid", LearnedGrid, "Learned grid", components={"inputs": (LearnedGrid,)})
