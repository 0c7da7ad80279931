"""M-RoPE (Qwen2-VL 2024): a token stands on several axes, and each pair of a head turns by one of them.

A patch of an image has a time, a row and a column; text has all three equal, and then this is RoPE, to the bit. Which
pair belongs to which axis: in runs (Qwen2-VL: 16, 24, 24 pairs), or in turns until an axis has all of its own
(Qwen3-VL: 24, 20, 20). Masks go by the order of tokens, never by an axis.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from vantage.errors import BadInput
from vantage.position.rope import Rope, Rotation, in_one_launch, join, rotate_both
from vantage.spec.abilities import Bands
from vantage.spec.native import HeadColumns, Program
from vantage.spec.parts import Parts, Shape
from vantage.spec.positions import Positions
from vantage.spec.registry import Entry, parameter

AXES = 3  # time, row and column, where ``sections`` do not say otherwise


@dataclass(frozen=True)
class MultiAxisRope:
    """``sections``: how many pairs each axis has; none: three axes, in equal parts."""

    sections: tuple[int, ...] = ()
    interleaved: bool = field(default=False, metadata=parameter("pairs of the axes interleaved instead of in blocks"))
    rope: Rope = Rope()

    shared = True  # no annotation: not a field, and so below
    effect = Rope.effect

    def __post_init__(self) -> None:
        object.__setattr__(self, "sections", tuple(self.sections))
        if any(n < 0 for n in self.sections):
            raise BadInput(f"sections={self.sections}: give the number of pairs of each axis, 0 or more")

    @property
    def original_length(self) -> int | None:
        return self.rope.original_length

    def describe(self) -> str:
        return f"M-{self.rope.describe()}"

    def parts(self, *, causal: bool) -> Parts:
        return Parts(qk=(self,))

    def build(self, shape: Shape) -> nn.Module:
        return AxisRotation(self, Rotation(self.rope, shape.rotary_dim))


def axis_of_pairs(pairs: int, sections: tuple[int, ...], interleaved: bool) -> list[int]:
    """The axis of each pair."""
    if not sections:
        sections = (pairs - (AXES - 1) * (pairs // AXES), *(pairs // AXES,) * (AXES - 1))
    if sum(sections) != pairs:
        raise BadInput(
            f"sections={sections} are {sum(sections)} pairs, and {pairs} pairs of a head turn: they must agree"
        )
    if not interleaved:
        return [axis for axis, n in enumerate(sections) for _ in range(n)]
    axes, count = [0] * pairs, len(sections)
    for axis, n in enumerate(sections[1:], 1):
        if axis + (n - 1) * count >= pairs:
            raise BadInput(f"sections={sections} cannot take turns: axis {axis} has more pairs than turns")
        axes[axis : axis + n * count : count] = [axis] * n
    return axes


class AxisRotation(nn.Module):
    """Turns queries and keys alike."""

    def __init__(self, config: MultiAxisRope, rotation: Rotation):
        super().__init__()
        self.config, self.rotation = config, rotation
        # no tensor: a model that is filled from a checkpoint is built without memory
        self.axis_of_pair = axis_of_pairs(rotation.turned // 2, config.sections, config.interleaved)
        self.count = len(config.sections) or AXES

    def query(self, q_BHTd: Tensor, pos: Positions) -> Tensor:
        return self.rotation.turn_by(q_BHTd, *self.tables(pos, q_BHTd.dtype))

    def key(self, k_BGTd: Tensor, pos: Positions) -> Tensor:
        return self.rotation.turn_by(k_BGTd, *self.tables(pos, k_BGTd.dtype))

    def query_and_key(self, q_BHTd: Tensor, k_BGTd: Tensor, pos: Positions) -> tuple[Tensor, Tensor]:
        if not in_one_launch(q_BHTd, k_BGTd):
            return self.query(q_BHTd, pos), self.key(k_BGTd, pos)
        return rotate_both(q_BHTd, k_BGTd, *self.tables(pos, q_BHTd.dtype), self.config.rope.pairing)

    def bands(self, pos: Positions) -> Bands:
        return self.rotation.bands(pos)

    def native_transform(self, program: Program, queries: HeadColumns, keys: HeadColumns) -> None:
        for heads in (queries, keys):
            program.rotate(self, heads, self.rotation.turned, adjacent=self.config.rope.pairing == "adjacent")

    def tables(self, pos: Positions, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """cos and signed sin, (R, 1, T, turned), made once for all layers of a forward pass."""
        axes = pos.axes
        if axes is None:
            return self.rotation.tables(pos, dtype)
        if len(axes) != self.count:
            raise BadInput(f"positions with {len(axes)} axes for a rotation by {self.count}: give {self.count}")
        return pos.once((self.config, self.rotation.turned, dtype), lambda: self._by_axis(pos, axes, dtype))

    def _by_axis(self, pos: Positions, axes_ABT: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        tables = [self.rotation.tables(p, dtype) for p in along_axes(pos, axes_ABT)]
        cos, sin = (torch.stack(side) for side in zip(*tables, strict=True))
        axes = torch.tensor(self.axis_of_pair, device=cos.device)
        index = join(axes, axes, self.config.rope.pairing).expand(1, *cos.shape[1:])
        return cos.gather(0, index)[0], sin.gather(0, index)[0]


def along_axes(pos: Positions, axes_ABT: Tensor) -> list[Positions]:
    """The same tokens as each axis has them. Rules that depend on the length still go by the highest axis, which
    ``known`` tells of."""
    return [Positions(axis, pos.order, pos.segment, pos.known, pos.length) for axis in axes_ABT]


ENTRY = Entry(
    "mrope",
    MultiAxisRope,
    "M-RoPE",
    "RoPE for tokens with several axes, such as image patches: each pair is rotated by one axis (Qwen2-VL 2024).",
    variants={
        "mrope": lambda size: MultiAxisRope(),
        "mrope-interleaved": lambda size: MultiAxisRope(interleaved=True),
    },
    compared=False,  # on text it is RoPE
    randomised=False,
)
