"""What is kept of each row of weights: all of it, its largest entries, or a few numbers."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Protocol, final, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor

from vantage.errors import BadInput
from vantage.inspect.tiles import Tile

STATS = ("entropy", "peak", "at", "distance", "first", "previous", "itself", "nowhere")


@runtime_checkable
class Reduction(Protocol):
    """Makes of a tile what is kept: tensors (B, H', t, …), put one after another along t."""

    @property
    def name(self) -> str: ...

    def of(self, tile: Tile, width: int) -> dict[str, Tensor]:
        """``width``: one more than the highest order of a key in this pass."""
        ...

    def bytes(self, cells: int, width: int, itemsize: int) -> int:
        """What so many rows over so many keys will take, if a weight takes ``itemsize`` bytes."""
        ...


@final
@dataclass(frozen=True)
class AllWeights:
    """Every weight. Columns are keys by their order, wherever a cache had them."""

    name: str = "weights"

    def of(self, tile: Tile, width: int) -> dict[str, Tensor]:
        first = tile.pair.k.known.first
        if first is not None:
            size = tile.weights.shape[-1]
            return {"weights": F.pad(tile.weights, (first, width - first - size))}
        order = tile.pair.k.order.clamp_min(0)[:, None, None].expand_as(tile.weights)
        # empty places have weight 0, so adding them at 0 adds nothing
        empty = tile.weights.new_zeros(*tile.weights.shape[:-1], width)
        return {"weights": empty.scatter_add_(-1, order, tile.weights)}

    def bytes(self, cells: int, width: int, itemsize: int) -> int:
        return cells * width * itemsize


@final
@dataclass(frozen=True)
class TopWeights:
    """The ``k`` largest weights of a row and the order of the keys they lie on (-1: there were not so many)."""

    k: int

    @property
    def name(self) -> str:
        return f"top{self.k}"

    def of(self, tile: Tile, width: int) -> dict[str, Tensor]:
        values, index = tile.top(self.k)
        first = tile.pair.k.known.first
        whole = _whole(width)
        if first is not None:
            order = (index + first).to(whole)
        else:
            order = tile.pair.k.order[:, None, None].expand(*index.shape[:3], -1).gather(-1, index).to(whole)
        order = order.masked_fill_(values == 0, -1)
        missing = self.k - values.shape[-1]
        return {"weights": F.pad(values, (0, missing)), "keys": F.pad(order, (0, missing), value=-1)}

    def bytes(self, cells: int, width: int, itemsize: int) -> int:
        return cells * self.k * (itemsize + _whole(width).itemsize)


@final
@dataclass(frozen=True)
class RowStatistics:
    """Of each row: entropy (nats), the largest weight and the order of its key, the mean distance, and the weight on
    the first token, the one before, the token itself, and nowhere (what a sink took)."""

    name: str = "stats"

    def of(self, tile: Tile, width: int) -> dict[str, Tensor]:
        w = tile.weights
        q, k = tile.pair.q.order[:, None, :, None], tile.pair.k.order[:, None, None, :]
        peak, at = w.max(-1)
        at = k.expand(w.shape[0], 1, 1, -1)[:, 0, 0].gather(-1, at.flatten(1)).view(at.shape)
        weighed = (w * (q - k).abs()).sum(-1)
        total = w.sum(-1)
        return {
            "entropy": torch.special.entr(w).sum(-1),
            "peak": peak,
            "at": at.masked_fill(peak == 0, -1).to(torch.int32),
            "distance": weighed / total.clamp_min(torch.finfo(w.dtype).tiny),
            "first": (w * (k == 0)).sum(-1),
            "previous": (w * (k == q - 1)).sum(-1),
            "itself": (w * (k == q)).sum(-1),
            "nowhere": (1 - total).clamp_min(0),
        }

    def bytes(self, cells: int, width: int, itemsize: int) -> int:
        return cells * ((len(STATS) - 1) * itemsize + torch.int32.itemsize)


def _whole(width: int) -> torch.dtype:
    """Small enough to keep, large enough for the order of any key."""
    return torch.int16 if width <= torch.iinfo(torch.int16).max else torch.int32


def parse(keep: str | Reduction) -> Reduction:
    """ "weights", "stats", or "top" and a number, as in "top32"."""
    if isinstance(keep, Reduction) and not isinstance(keep, (str, type)):
        return keep
    if keep in ("weights", "stats"):
        return AllWeights() if keep == "weights" else RowStatistics()
    match = re.fullmatch(r"top([1-9]\d{0,5})", keep) if isinstance(keep, str) else None
    if match is None:
        raise BadInput(f'keep={keep!r}: use "weights", "stats", or "top" and a number, as in "top32"')
    return TopWeights(int(match[1]))
