"""What FSDP2 sends and holds where it shares weights out: each unit is gathered when it runs, forwards and back."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from vantage.model import Model
from vantage.spec.mesh import MeshShape
from vantage.training.distributed import blocks_of, expert_units, unshared

FLOAT32_BYTES = 4  # bytes: weights are kept, and gradients summed, in float32 at least


@final
@dataclass(frozen=True)
class ShardCost:
    """Of one device: how many numbers it holds of all weights, and the bytes of that; what a pass sends, forwards and
    back; and the most that is gathered at a time."""

    numbers: int
    held: int
    forward: int
    backward: int
    largest: int


def shard_cost(share: Model, mesh: MeshShape, dtype: torch.dtype) -> ShardCost:
    """Of a device's share of a model (its heads, its experts)."""
    if not mesh.trains:  # it has all of it
        numbers = sum(p.numel() for p in share.parameters())
        return ShardCost(numbers, numbers * dtype.itemsize, 0, 0, 0)
    experts = [list(unit.parameters()) for unit in expert_units(share)]
    taken = {p for unit in experts for p in unit}
    blocks = [[p for p in block.parameters() if p not in taken] for block in unshared(blocks_of(share))]
    taken |= {p for block in blocks for p in block}
    rest = [p for p in share.parameters() if p not in taken]
    units = [(unit, mesh.shards) for unit in blocks] + [(unit, mesh.expert_shards) for unit in experts]
    numbers = forward = backward = 0
    for unit, ranks in [*units, (rest, mesh.shards)]:
        each = sum(shard_numbers(p, ranks) for p in unit)
        numbers += sum(shard_numbers(p, ranks, padded=False) for p in unit)
        forward += (ranks - 1) * each * dtype.itemsize
        # what is outside of blocks stays gathered between the two
        again = 0 if unit is rest else dtype.itemsize
        backward += (ranks - 1) * each * (again + wide(dtype))
    largest = max((_bytes(unit, dtype) for unit, _ in units), default=0) + _bytes(rest, dtype)
    return ShardCost(numbers, numbers * wide(dtype), forward, backward, largest if mesh.shards > 1 else 0)


def shard_numbers(p: Tensor, ranks: int, *, padded: bool = True) -> int:
    """How many numbers of a parameter the first of so many processes has; what is sent is padded to equal shards."""
    rows = p.shape[0]
    each = -(-rows // ranks)
    return (each if padded else min(each, rows)) * (p.numel() // rows)


def wide(dtype: torch.dtype) -> int:
    return max(FLOAT32_BYTES, dtype.itemsize)


def _bytes(unit: Iterable[Tensor], dtype: torch.dtype) -> int:
    return sum(p.numel() for p in unit) * dtype.itemsize
