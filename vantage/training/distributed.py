"""One process or several, on PyTorch's own engine: ``torchrun`` starts them, FSDP2 shares the weights out.

A batch is a pure function of its examples' numbers, so each process makes its own rows of it and nothing is sent
but gradients and sums.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from vantage.cluster import check_tensor_parallel, processes
from vantage.errors import BadInput, Refused
from vantage.parallel.group import join_group, leave_group


@dataclass(frozen=True)
class World:
    """The processes of this run: which one this is, and how many there are that each have rows of their own.

    ``peers`` of them have the same rows, and a share of the model each (tensor parallel).
    """

    rank: int = 0
    size: int = 1
    local: int = 0
    peers: int = 1

    @property
    def first(self) -> bool:
        return self.rank == 0

    @property
    def several(self) -> bool:
        return self.size * self.peers > 1

    @property
    def part(self) -> int:
        """Which rows this one has."""
        return self.rank // self.peers

    def wait(self) -> None:
        if self.several:
            dist.barrier()

    def total(self, values: Tensor) -> Tensor:
        """The sum over all processes."""
        if self.size > 1:
            dist.all_reduce(values)
        return values

    def agree(self, word: bool, device: torch.device) -> bool:
        """Whether any process says so. One that stops alone would leave the others waiting."""
        if not self.several:
            return word
        votes = torch.tensor(float(word), device=device)
        dist.all_reduce(votes)
        return bool(votes > 0)

    def share(self, indices: Sequence[int]) -> Sequence[int]:
        """The examples of a batch that this process makes."""
        if len(indices) % self.size:
            raise BadInput(f"a batch of {len(indices)} does not divide among {self.size} processes")
        each = len(indices) // self.size
        return indices[self.part * each : (self.part + 1) * each]

    def close(self) -> None:
        """Leave together: one that goes while another still sends can be aborted by its own threads."""
        if self.several:
            leave_group()


def join(device: torch.device, peers: int = 1) -> World:
    """The world that ``torchrun`` has made, or this process alone. ``peers``: so many share each model."""
    size = processes()
    check_tensor_parallel(peers, "train")
    if size == 1:
        return World()
    join_group(device.type)
    return World(dist.get_rank(), size // peers, int(os.environ.get("LOCAL_RANK", "0")), peers)


def shard(
    learner: nn.Module, units: Sequence[nn.Module], world: World, device: torch.device, dtype: torch.dtype | None
) -> None:
    """Share the weights out: each unit (a block) is gathered when it runs, and the rest with the whole.

    ``dtype`` is what weights are gathered in; gradients are summed in float32.
    """
    if world.size == 1:
        return
    if single := [name for name, p in learner.named_parameters() if p.dim() == 0]:
        raise Refused(f"{single[0]} is one number, which FSDP2 cannot share out: train this model in one process")
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    # torch warns of logits that are a view, because writing to them would go wrong: nobody here does
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
    mesh = init_device_mesh(device.type, (world.size,))
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=None if dtype is None else torch.float32)
    for unit in units:
        fully_shard(unit, mesh=mesh, mp_policy=policy)
    fully_shard(learner, mesh=mesh, mp_policy=policy)
