"""Which part of each parameter a process has: from the shapes of the whole model and of a process's own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vantage.model import Model
from vantage.model.maps import rows_of


@dataclass(frozen=True)
class MapCut:
    """Rows of one map inside a parameter: ``whole`` of them from ``first`` on, ``own`` of which a process has."""

    first: int
    whole: int
    own: int

    @property
    def shards(self) -> int:
        """How many processes have different ones: fewer than there are, where some have the same."""
        return self.whole // self.own

    def start(self, rank: int, ranks: int) -> int:
        return self.first + rank * self.shards // ranks * self.own


@dataclass(frozen=True)
class ParameterCut:
    """What a process has of one parameter: along ``dim`` a share of each of its maps; all of it where there is none."""

    shape: tuple[int, ...]  # of the whole
    dim: int = 0
    maps: tuple[MapCut, ...] = ()
    inside: bool = False  # a sublayer, where a gradient is that of this process's heads or columns alone
    owner: int | None = None  # the only process that has it, all of it (an expert's)

    def take(self, x: Tensor, rank: int, ranks: int) -> Tensor:
        """A process's share of the whole."""
        parts = [x.narrow(self.dim, m.start(rank, ranks), m.own) for m in self.maps]
        return x if not parts else parts[0] if len(parts) == 1 else torch.cat(parts, self.dim)

    def put(self, share: Tensor, into: Tensor, rank: int, ranks: int) -> None:
        """A process's share into its place in the whole."""
        if not self.maps:
            into.copy_(share)
        for m, own in zip(self.maps, self.split(share), strict=True):
            into.narrow(self.dim, m.start(rank, ranks), m.own).copy_(own)

    def split(self, share: Tensor) -> list[Tensor]:
        """The maps of a share."""
        return list(share.split([m.own for m in self.maps], self.dim)) if self.maps else []


def sublayers(model: Model) -> list[nn.Module]:
    """Attention, cross-attention and feed-forward of every block, an encoder's as well."""
    own = [sublayer for block in model.blocks for sublayer in getattr(block, "sublayers")]  # noqa: B009 (of a module)
    return own if model.encoder is None else [*own, *sublayers(model.encoder)]


def parameter_cuts(whole: Model, own: Model, owners: Mapping[str, int] = {}) -> dict[str, ParameterCut]:
    """For every parameter of the whole model what a process has of it. ``owners``: of those that one process has."""
    rows, own_rows = rows_of(whole), rows_of(own)
    shapes = {name: tuple(p.shape) for name, p in own.named_parameters()}
    inside = {id(p) for sublayer in sublayers(whole) for p in sublayer.parameters()}
    cuts: dict[str, ParameterCut] = {}
    for name, p in whole.named_parameters():
        weight = f"{name.rpartition('.')[0]}.weight"  # a bias has the rows of its map
        if name in owners:
            cuts[name] = ParameterCut(tuple(p.shape), inside=True, owner=owners[name])
            continue
        shape, share = tuple(p.shape), shapes[name]
        differing = [dim for dim, (n, m) in enumerate(zip(shape, share, strict=True)) if n != m]
        assert len(differing) < 2, f"{name} is cut along {differing}"
        if not differing:
            cuts[name] = ParameterCut(shape, inside=id(p) in inside)
            continue
        dim = differing[0]
        sizes = ((shape[dim],), (share[dim],))
        if dim == 0 and weight in rows:
            sizes = rows[weight], own_rows[weight]
        firsts = (sum(sizes[0][:i]) for i in range(len(sizes[0])))
        maps = tuple(MapCut(first, n, m) for first, n, m in zip(firsts, *sizes, strict=True))
        cuts[name] = ParameterCut(shape, dim, maps, id(p) in inside)
    return cuts
