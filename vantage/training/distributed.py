"""One process or several, on PyTorch's own engine: ``torchrun`` starts them, FSDP2 shares the weights out.

The processes are one device mesh: rows of a batch (``data`` and ``experts``), tokens of a row (``context``), heads and
columns (``tensor``). Weights are shared out over all that have different tokens. A batch is a pure function of its
examples' numbers, so each process makes its own rows of it and nothing is sent but what is computed.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from vantage.cluster import processes
from vantage.errors import BadInput, Refused
from vantage.model import Model
from vantage.parallel.group import join_group, leave_group
from vantage.spec.abilities import ExchangesTokens
from vantage.training.sections import ParallelSettings

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

AXES = ("data", "experts", "context", "tensor")  # from the outside in: neighbours share heads and columns


class ProcessMesh(NamedTuple):
    """All processes as one device mesh, and two views of it with several axes as one."""

    axes: DeviceMesh
    shards: DeviceMesh  # who have different tokens
    expert_shards: DeviceMesh  # of those, who have the same experts


@dataclass(frozen=True)
class World:
    """The processes of this run: which one this is, and how many groups there are that each have rows of their own.

    Of such a group ``context`` processes each have some of the tokens, and ``tensor`` a share of the model.
    """

    rank: int = 0
    size: int = 1  # over ``experts`` of them lie the experts of one model
    local: int = 0
    tensor: int = 1
    context: int = 1
    experts: int = 1
    mesh: ProcessMesh | None = field(default=None, repr=False, compare=False)

    @property
    def first(self) -> bool:
        return self.rank == 0

    @property
    def several(self) -> bool:
        return self.size * self.context * self.tensor > 1

    @property
    def shards(self) -> int:
        """How many processes have different tokens: over so many FSDP2 shares the weights out."""
        return self.size * self.context

    @property
    def cut(self) -> bool:
        """Whether processes have different models: their heads and columns, or their experts."""
        return self.tensor * self.experts > 1

    @property
    def part(self) -> int:
        """Which rows this one has."""
        return self.rank // (self.context * self.tensor)

    def group(self, axis: str) -> dist.ProcessGroup:
        """The processes along an axis of the mesh that this one is of."""
        return self.process_mesh.axes.get_group(axis)

    @property
    def process_mesh(self) -> ProcessMesh:
        assert self.mesh is not None, "one process alone has no mesh"
        return self.mesh

    def wait(self) -> None:
        if self.several:
            dist.barrier()

    def total(self, values: Tensor) -> Tensor:
        """The sum over all processes that have different tokens."""
        if self.shards > 1:
            dist.all_reduce(values, group=self.process_mesh.shards.get_group())
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


def join(device: torch.device, parallel: ParallelSettings = ParallelSettings()) -> World:
    """The world that ``torchrun`` has made, or this process alone."""
    started = processes()
    rows = parallel.rows(started)
    if started == 1:
        return World()
    join_group(device.type)
    return World(
        dist.get_rank(),
        rows,
        int(os.environ.get("LOCAL_RANK", "0")),
        parallel.tensor,
        parallel.context,
        parallel.experts,
        mesh_of(device.type, rows, parallel),
    )


def mesh_of(device: str, rows: int, parallel: ParallelSettings) -> ProcessMesh:
    """The mesh of these processes; so many groups of them have rows of their own."""
    from torch.distributed.device_mesh import init_device_mesh

    shape = (rows // parallel.experts, parallel.experts, parallel.context, parallel.tensor)
    mesh = init_device_mesh(device, shape, mesh_dim_names=AXES)
    shards = _as_one(mesh, "data", "experts", "context", name="shards")
    return ProcessMesh(mesh, shards, _as_one(mesh, "data", "context", name="expert_shards"))


def _as_one(mesh: DeviceMesh, *axes: str, name: str) -> DeviceMesh:
    """Several axes as one. A mesh of the same processes whose last axis they are: flattening one is not public."""
    from torch.distributed.device_mesh import DeviceMesh

    together = [AXES.index(axis) for axis in axes]
    apart = [dim for dim in range(len(AXES)) if dim not in together]
    ranks = mesh.mesh.permute(*apart, *together)
    ranks = ranks.reshape(-1, math.prod(ranks.shape[len(apart) :])).contiguous()
    return DeviceMesh(mesh.device_type, ranks, mesh_dim_names=("others", name))[name]


def blocks_of(learner: nn.Module) -> list[nn.Module]:
    """The blocks of every transformer in it: what is computed again, and shared out, one at a time."""
    models = [module for module in learner.modules() if isinstance(module, Model)]
    return [block for model in models for block in model.blocks]


def unshared(blocks: list[nn.Module]) -> list[nn.Module]:
    """The blocks that share no parameter with another (T5's layers share their bias): those go with the whole."""
    seen: dict[Tensor, int] = {}
    for block in blocks:
        for p in block.parameters():
            seen[p] = seen.get(p, 0) + 1
    return [block for block in blocks if all(seen[p] == 1 for p in block.parameters())]


def expert_units(learner: nn.Module) -> list[nn.Module]:
    """The experts that are here, where other processes have the rest: each layer's are shared out by themselves."""
    layers = [module for module in learner.modules() if isinstance(module, ExchangesTokens)]
    return [layer.numbered for layer in layers if layer.numbered is not None]


def shard(learner: nn.Module, units: Sequence[nn.Module], world: World, dtype: torch.dtype | None) -> None:
    """Share the weights out: each unit (a block) is gathered when it runs, and the rest with the whole.

    ``dtype`` is what weights are gathered in; gradients are summed in float32.
    """
    if world.shards == 1:
        return
    if single := [name for name, p in learner.named_parameters() if p.dim() == 0]:
        raise Refused(f"{single[0]} is one number, which FSDP2 cannot share out: train this model in one process")
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    # torch warns of logits that are a view, because writing to them would go wrong: nobody here does
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=None if dtype is None else torch.float32)
    for unit in expert_units(learner):
        fully_shard(unit, mesh=world.process_mesh.expert_shards, mp_policy=policy)
    mesh = world.process_mesh.shards
    for unit in units:
        fully_shard(unit, mesh=mesh, mp_policy=policy)
    fully_shard(learner, mesh=mesh, mp_policy=policy)
