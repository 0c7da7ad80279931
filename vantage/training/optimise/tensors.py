"""Tensors that may be sharded: gathered, spread like another, and their gathered copies dropped.

torch's sharding takes most of a second to import, so it is imported when the first tensor is looked at: whoever only
reads settings, as the studio does at its start, need not wait for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn


def like(target: Tensor, value: Tensor) -> Tensor:
    """The value, sharded as the target is."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    if not isinstance(target, DTensor):
        return whole(value)
    if isinstance(value, DTensor):
        return value.redistribute(target.device_mesh, target.placements)
    # every process holds the whole value, so nothing is sent
    return distribute_tensor(value.to(target.device), target.device_mesh, target.placements, src_data_rank=None)


def whole(value: Tensor) -> Tensor:
    """The value, gathered if it is sharded."""
    from torch.distributed.tensor import DTensor

    return value.full_tensor() if isinstance(value, DTensor) else value


def by_mesh(tensors: Sequence[Tensor]) -> list[list[Tensor]]:
    """The same in lists of those that are sharded over the same processes: one operation takes no others."""
    from torch.distributed.tensor import DTensor

    lists: dict[Any, list[Tensor]] = {}
    for x in tensors:
        lists.setdefault(x.device_mesh if isinstance(x, DTensor) else None, []).append(x)
    return list(lists.values()) or [[]]


def local(value: Tensor) -> Tensor:
    """What this process has of a value that is sharded; the value, if it is not."""
    from torch.distributed.tensor import DTensor

    return value.to_local() if isinstance(value, DTensor) else value


def reshard(model: nn.Module) -> None:
    """Drop gathered copies of sharded parameters, which a pass without a backward one leaves behind.

    Whoever writes to the shards, or asks the model for its parameters, would meet the copies instead.
    """
    from torch.distributed.fsdp import FSDPModule

    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()
