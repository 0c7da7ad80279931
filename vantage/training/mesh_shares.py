"""Training a model that lies over processes, by heads and columns or by experts: its gradients, and its checkpoints.

A process draws or reads its share alone. A checkpoint holds whole tensors, as that of one process does. So a run goes
on over as many processes as one likes, in whatever arrangement.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import torch
import torch.distributed as dist
from torch import Tensor

from vantage.model import Model, empty_model
from vantage.parallel import ModelShare
from vantage.parallel.parameter_cut import ParameterCut
from vantage.parallel.tensor import put_parameters, with_companions
from vantage.spec.model import ModelSpec
from vantage.training.distributed import World
from vantage.training.learners import Learner
from vantage.training.models import DataFacts, learner_of
from vantage.training.optimise import OPTIMISERS
from vantage.training.optimise.tensors import like, local, reshard, whole
from vantage.training.sections import check_divides
from vantage.training.settings import TrainSettings

CORE = "core."  # the model's name in its learner


def divided_learner(settings: TrainSettings, facts: DataFacts, world: World) -> tuple[Learner, MeshShares]:
    """A learner whose model is this process's share of the whole, which no process holds at any time."""
    kind = type(settings.optimiser)
    check_divides(OPTIMISERS.name_of(kind) or kind.__name__)
    shares: list[ModelShare] = []

    def divide(spec: ModelSpec) -> ModelShare:
        shares.append(share_of(spec, world))
        return shares[0]

    learner = learner_of(settings.model, facts, divide)
    return learner, MeshShares(learner, shares[0], world)


def share_of(spec: ModelSpec, world: World) -> ModelShare:
    """What this process has of a model."""
    experts = world.group("experts") if world.experts > 1 else None
    return ModelShare(spec, experts=experts, tensor=world.group("tensor") if world.tensor > 1 else None)


class MeshShares:
    """A learner whose model is this process's share."""

    def __init__(self, learner: Learner, share: ModelShare, world: World):
        self.learner, self.share, self.world = learner, share, world
        self.experts, self.tensor = share.experts, share.tensor
        self._shapes = {name: tuple(p.shape) for name, p in learner.named_parameters()}

    # ---- gradients

    def clip(self, most: float | None) -> Tensor:
        """Bring the gradients together, and scale them so that their norm is at most ``most``; the norm they had."""
        gathered = self.sum_gradients()
        gradients = {name: p.grad for name, p in self.learner.named_parameters() if p.grad is not None}
        total = torch.stack([self._squares(name, g, gathered.get(name)) for name, g in gradients.items()]).sum()
        dist.all_reduce(total)
        norm = total.sqrt().float()
        if most is not None:
            factor = (most / (norm + 1e-6)).clamp(max=1.0)  # as torch.nn.utils.clip_grad_norm_ does
            for gradient in gradients.values():
                local(gradient).mul_(factor.to(gradient.dtype))
        return norm

    @torch.no_grad()
    def sum_gradients(self) -> dict[str, Tensor]:
        """Bring together what FSDP2 does not: what those who share a model know of a gradient.

        Gradients that were gathered for it come back.
        """
        gathered: dict[str, Tensor] = {}
        for name, p in self.learner.named_parameters():
            if self._is_expert(name) and p.grad is not None:
                local(p.grad).div_(self.world.experts)  # it met the tokens of all: no mean was taken
            cut = self._cut(name)
            if self.tensor is None or cut is None or not cut.inside or not p.requires_grad:
                continue
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            if not cut.maps:
                self.tensor.wire.sum(local(p.grad))
            elif self._held_twice(cut):
                gathered[name] = whole(p.grad)
                self.tensor.sum_shared(cut, gathered[name])
                p.grad = like(p.grad, gathered[name])
        return gathered

    def _squares(self, name: str, gradient: Tensor, gathered: Tensor | None) -> Tensor:
        """This process's part of the squared norm: what several have counts once."""
        cut = self._cut(name)
        if cut is None or gathered is None:
            copies = 1 if cut is not None and cut.maps else self.world.tensor
            return local(gradient).double().square().sum() / copies
        parts = zip(cut.maps, cut.split(gathered), strict=True)
        squares = [part.double().square().sum() * m.shards for m, part in parts]
        holders = self.world.shards // (self.world.experts if self._is_expert(name) else 1)
        return torch.stack(squares).sum() / (self.world.tensor * holders)

    def _held_twice(self, cut: ParameterCut) -> bool:
        """Whether some processes have the same rows of a parameter that is cut: fewer key heads than processes."""
        return any(m.shards < self.world.tensor for m in cut.maps)

    # ---- checkpoints

    def whole(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The same, put together from all processes; for the first alone, who writes them."""
        stored: dict[str, Tensor] = {}
        for key, x in tensors.items():
            full, cut = whole(x.detach()), self._cut_of(key, x)
            if self.tensor is not None and cut is not None:
                full = self.tensor.joined(cut, full)
            for rank, name in enumerate(self._names(key)):
                held = self._of_rank(full, rank) if self._is_expert(_parameter(key)) else full
                if self.world.first:
                    stored[name] = held.cpu()
        return stored

    def all_names(self, tensors: Mapping[str, Tensor]) -> list[str]:
        """Of what is stored, other processes' experts as well."""
        return [name for key in tensors for name in self._names(key)]

    def stored_shape(self, key: str, x: Tensor) -> tuple[int, ...]:
        """The shape of what this is a share of."""
        cut = self._cut_of(key, x)
        return tuple(x.shape) if cut is None else cut.shape

    @torch.no_grad()
    def take(self, key: str, stored: Tensor, into: Tensor) -> None:
        """This process's share of it. Where it is mapped from a file, no more is read."""
        cut, own = self._cut_of(key, into), stored
        if self.tensor is not None and cut is not None:
            own = cut.take(own, self.tensor.wire.rank, self.tensor.wire.size)
        into.copy_(like(into, own.to(into.device).contiguous()))

    @torch.no_grad()
    def whole_learner(self, around: Callable[[Model], Learner]) -> Learner | None:
        """A learner with all weights, in the first process, who saves it. ``around``: what trains a model."""
        reshard(self.learner)
        stored = self.whole({f"model.{name}": p for name, p in self.learner.named_parameters()})
        if not self.world.first:
            return None
        core = self.learner.core
        assert isinstance(core, Model)
        model = with_companions(empty_model(self.share.spec, core.kernel), core)
        prefix = f"model.{CORE}"
        put_parameters(model, {key.removeprefix(prefix): x for key, x in stored.items() if key.startswith(prefix)})
        fresh = around(model)
        for key, x in stored.items():
            if not key.startswith(prefix):
                fresh.get_parameter(_parameter(key)).copy_(x)
        return fresh

    def _of_rank(self, full: Tensor, rank: int) -> Tensor:
        assert self.experts is not None
        own = full if rank == self.experts.wire.rank else torch.empty_like(full)
        return self.experts.wire.broadcast(own.contiguous(), rank)

    # ---- names: "optimiser.core.blocks.0.….weight:exp_avg" goes with the parameter "core.blocks.0.….weight"

    def _names(self, key: str) -> Iterator[str]:
        """What a tensor is stored as: an expert's once for each process, under the number it has there."""
        name = _parameter(key)
        if self.experts is None or not self._is_expert(name):
            yield key
            return
        for rank in range(self.world.experts):
            yield key.replace(name, CORE + self.experts.of_rank(name.removeprefix(CORE), rank))

    def _is_expert(self, name: str) -> bool:
        return self.experts is not None and self.experts.is_expert(name.removeprefix(CORE))

    def _cut(self, name: str) -> ParameterCut | None:
        if self.tensor is None or not name.startswith(CORE):
            return None
        return self.tensor.cuts.get(name.removeprefix(CORE))

    def _cut_of(self, key: str, x: Tensor) -> ParameterCut | None:
        """How a tensor of a run is cut, if it is: one number for each of a parameter."""
        name = _parameter(key)
        cut = self._cut(name) if x.dim() and self._shapes.get(name) == tuple(x.shape) else None
        return cut if cut is not None and cut.maps else None


def _parameter(key: str) -> str:
    return key.partition(".")[2].partition(":")[0]
