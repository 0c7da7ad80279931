"""Learned absolute positions (GPT-1/2/3, BERT): one trained row per position, and none past the last (P6)."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vantage.errors import BadInput
from vantage.position.angles import at_most, need_whole, rows
from vantage.spec.parts import INIT_STD, Parts, Shape
from vantage.spec.positions import Positions
from vantage.spec.registry import Entry, parameter

EXTENSIONS = (None, "last", "wrap")


@dataclass(frozen=True)
class Learned:
    """Added to the embeddings. A table longer than what was trained on is allowed: its rows are just untrained."""

    max_length: int = field(metadata=parameter("rows of the table", 1, 16384, default=512))
    extend: str | None = field(  # past the end: None refuses, "last" repeats the last row, "wrap" starts again
        default=None,
        metadata=parameter(
            "past the last row",
            choices=("refuse", "last", "wrap"),
            default="refuse",
            read=lambda word, fit: None if word == "refuse" else word,
        ),
    )
    offset: int = field(default=0, metadata=parameter("unused rows at the start of the table", 0, 64))  # OPT: 2

    shared = True  # no annotation: not a field

    def __post_init__(self) -> None:
        if self.max_length < 1:
            raise BadInput(f"max_length={self.max_length}: a learned table needs at least 1 row")
        if self.offset < 0:
            raise BadInput(f"offset={self.offset}: use 0, or the number of unused rows in front")
        if self.extend not in EXTENSIONS:
            raise BadInput(f"extend={self.extend!r}: use one of {', '.join(map(repr, EXTENSIONS))}")

    def describe(self) -> str:
        return f"learned, {self.max_length:,}"

    @property
    def max_positions(self) -> int | None:
        return self.max_length if self.extend is None else None

    def parts(self, *, causal: bool) -> Parts:
        return Parts(inputs=(self,))

    def build(self, shape: Shape) -> nn.Module:
        return LearnedInput(self, shape.width)


class LearnedInput(nn.Module):
    """x + table[pos]."""

    def __init__(self, config: Learned, width: int):
        super().__init__()
        self.config = config
        self.table = nn.Parameter(torch.empty(config.offset + config.max_length, width))
        nn.init.normal_(self.table, std=INIT_STD)

    def forward(self, x_BTD: Tensor, pos: Positions) -> Tensor:
        need_whole(pos, "a learned table")
        row = rows(pos).clamp_min(0)  # an empty place, -1, reads some row; nobody sees it
        n = self.config.max_length
        if self.config.extend is None:
            self._check(pos)
        elif self.config.extend == "last":
            row = row.clamp_max(n - 1)
        else:
            row = row % n
        return x_BTD + F.embedding(row + self.config.offset, self.table).to(x_BTD.dtype)

    def _check(self, pos: Positions) -> None:
        n = self.config.max_length
        if pos.known.pos is not None and pos.known.pos[0] < 0:
            raise BadInput(f"position {pos.known.pos[0]} has no row in a learned table: positions start at 0")
        top = at_most(pos, "a learned table", n - 1)
        if top >= n:
            raise BadInput(
                f"position {top} is past the end of a learned table of {n} rows (0 to {n - 1}): shorten the input, "
                'build with a longer max_length, or choose extend="last" or extend="wrap"'
            )


def _default(max_length: int | None) -> Learned:
    if max_length is None:
        raise BadInput('position="learned" needs max_length=, the number of rows of its table')
    return Learned(max_length)


ENTRY = Entry(
    "learned",
    Learned,
    "Learned",
    "One trained row a position is added to the embeddings; past the last row there is none (GPT-2, BERT).",
    default=_default,
    variants={"learned": lambda size: Learned(max_length=64)},
)
