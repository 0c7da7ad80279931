"""How the columns of a pass are cut over processes, and positions with them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from vantage.errors import BadInput
from vantage.spec.positions import EMPTY, Known, Positions

KINDS = ("contiguous", "zigzag")


@dataclass(frozen=True)
class Cut:
    """``width`` columns over ``ranks`` processes. What is missing to equal shares is padding at the end.

    "contiguous": each has one run. "zigzag": each has one piece from the front and one from the back, so that under a
    causal mask all see as many keys (Llama 3's training; Brandon et al. 2023).
    """

    width: int
    ranks: int
    kind: str = "contiguous"

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise BadInput(f"cut={self.kind!r}: use {' or '.join(map(repr, KINDS))}")

    @property
    def pieces(self) -> int:
        return self.ranks * (2 if self.kind == "zigzag" else 1)

    @property
    def padded(self) -> int:
        return -(-self.width // self.pieces) * self.pieces

    def columns(self, rank: int) -> list[int]:
        """Which columns a process has, rising."""
        each = self.padded // self.pieces
        held = [rank] if self.kind == "contiguous" else [rank, self.pieces - 1 - rank]
        return [piece * each + i for piece in held for i in range(each)]

    def sequence(self) -> Tensor | None:
        """Where each column stands among the shares one after the other; ``None``: where it stands anyway."""
        if self.kind == "contiguous":
            return None
        held = torch.tensor([c for rank in range(self.ranks) for c in self.columns(rank)])
        return held.argsort()

    def take(self, x: Tensor, rank: int, dim: int = 1, fill: float = 0) -> Tensor:
        """A process's share of a tensor that has all columns along ``dim``."""
        if x.shape[dim] != self.width:
            raise BadInput(f"a tensor of {x.shape[dim]} columns where {self.width} are cut")
        if self.padded > self.width:
            tail = [0, 0] * (x.dim() - 1 - dim % x.dim())
            x = F.pad(x, (*tail, 0, self.padded - self.width), value=fill)
        return x.index_select(dim, torch.tensor(self.columns(rank), device=x.device))

    def positions(self, pos: Positions, rank: int) -> Positions:
        """A process's share. What the host knows of the highest position is said of all: rules may depend on it."""
        own, order = self.take(pos.pos, rank, fill=EMPTY), self.take(pos.order, rank, fill=EMPTY)
        segment = None if pos.segment is None else self.take(pos.segment, rank, fill=EMPTY)
        axes = None if pos.axes is None else self.take(pos.axes, rank, 2, fill=EMPTY)
        share = Positions.of(own, order=order, segment=segment)
        known = replace(share.known, pos=pos.known.pos, same_rows=share.known.same_rows and axes is None)
        return replace(share, known=known, axes=axes, length=pos.length)


def joined(shares: list[Positions], sequence: Tensor | None) -> Positions:
    """The shares of all processes, in the order of the sequence."""

    def put(tensors: list[Tensor], dim: int = 1) -> Tensor:
        x = torch.cat(tensors, dim)
        return x if sequence is None else x.index_select(dim, sequence.to(x.device))

    first = shares[0]
    segment = None if first.segment is None else put([s.segment for s in shares if s.segment is not None])
    axes = None if first.axes is None else put([s.axes for s in shares if s.axes is not None], 2)
    whole = Positions.of(put([s.pos for s in shares]), order=put([s.order for s in shares]), segment=segment)
    known = whole.known if axes is None else replace(whole.known, first=None, same_rows=False, runs=False, rising=False)
    if known == Known():  # on a device from where nothing is read
        known = replace(known, pos=first.known.pos)
    return replace(whole, known=known, axes=axes, length=first.length)
