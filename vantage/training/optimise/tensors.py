"""State as tensors by name: read, and written back to the bit, whole or sharded."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, distribute_tensor

from vantage.errors import CheckpointError


@torch.no_grad()
def put_back(targets: Mapping[str, Tensor], saved: Mapping[str, Tensor], what: str) -> None:
    """Copy ``given`` into ``own``. All names, shapes and dtypes must agree, or nothing is changed."""
    if missing := sorted(set(targets) - set(saved)):
        raise CheckpointError(f"{what} lacks {missing[0]!r}{_more(missing)}: it was saved by another run or model")
    if extra := sorted(set(saved) - set(targets)):
        raise CheckpointError(f"{what} holds {extra[0]!r}{_more(extra)}, which is not known here")
    for name, target in targets.items():
        value = saved[name]
        if value.shape != target.shape or value.dtype != target.dtype:
            raise CheckpointError(
                f"{what}: {name!r} is {value.dtype} of shape {tuple(value.shape)}, "
                f"and {target.dtype} of shape {tuple(target.shape)} is wanted"
            )
    for name, target in targets.items():
        target.copy_(like(target, saved[name]))


def like(target: Tensor, value: Tensor) -> Tensor:
    """The value, sharded as the target is."""
    if not isinstance(target, DTensor):
        return whole(value)
    if isinstance(value, DTensor):
        return value.redistribute(target.device_mesh, target.placements)
    # every process holds the whole value, so nothing is sent
    return distribute_tensor(value.to(target.device), target.device_mesh, target.placements, src_data_rank=None)


def whole(value: Tensor) -> Tensor:
    """The value, gathered if it is sharded."""
    return value.full_tensor() if isinstance(value, DTensor) else value


def reshard(model: nn.Module) -> None:
    """Drop gathered copies of sharded parameters, which a pass without a backward one leaves behind.

    Whoever writes to the shards, or asks the model for its parameters, would meet the copies instead.
    """
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def _more(names: list[str]) -> str:
    return f" and {len(names) - 1} more" if len(names) > 1 else ""
