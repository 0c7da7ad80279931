"""A program under construction: steps over named buffers of rows."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from vantage.kernels.native import Kind, Matrix, Op
from vantage.position.rope import Rotation
from vantage.spec.parts import Shape


@dataclass(frozen=True)
class Site:
    """An attention layer that appends to a cache."""

    index: int
    shape: Shape
    needs_run: bool  # its bias reads positions: rows must be plain runs


@dataclass
class Program:
    """Steps, and what they hold on to. ``tensors`` are read where they lie, so they must stay there."""

    ops: list[Op] = field(default_factory=list)
    widths: list[int] = field(default_factory=list)  # of the buffers
    names: dict[tuple[str, int], int] = field(default_factory=dict)
    tensors: list[Tensor] = field(default_factory=list)
    matrices: list[Matrix] = field(default_factory=list)
    rotations: list[Rotation] = field(default_factory=list)
    sites: list[Site] = field(default_factory=list)
    dense: bool = False  # some weights are plain float32: for many rows torch's own products are faster

    def buffer(self, name: str, width: int) -> int:
        """Rows of this width; the same name and width is the same buffer."""
        if (name, width) not in self.names:
            self.names[name, width] = len(self.widths)
            self.widths.append(width)
        return self.names[name, width]

    def emit(
        self,
        kind: Kind,
        dst: int,
        src: int = 0,
        other: int = 0,
        *,
        n: Sequence[int] = (),
        f: Sequence[float] = (),
        p: Sequence[Tensor | Matrix | None] = (),
    ) -> None:
        op = Op(int(kind), dst, src, other)
        op.n[: len(n)] = [int(i) for i in n]
        op.f[: len(f)] = list(f)
        for i, what in enumerate(p):
            if isinstance(what, Tensor):
                op.p[i] = self.hold(what).data_ptr()
            elif what is not None:
                self.matrices.append(what)
                op.p[i] = ctypes.addressof(what)
        self.ops.append(op)

    def hold(self, tensor: Tensor) -> Tensor:
        self.tensors.append(tensor)
        return tensor

    def numbers(self, values: Sequence[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float32)

    def rotation(self, module: Rotation) -> int:
        """Which of the tables of a call this one's angles are."""
        if module not in self.rotations:
            self.rotations.append(module)
        return self.rotations.index(module)
