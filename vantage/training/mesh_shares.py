"""Training a model that lies over processes, by heads and columns or by experts: its gradients, and its checkpoints.

A checkpoint holds whole tensors, as that of one process does. So a run goes on over as many processes as one likes, in
whatever arrangement.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
import torch.distributed as dist
from torch import Tensor

from vantage.errors import Refused
from vantage.model import Model
from vantage.model.lora import adapted
from vantage.parallel import ExpertParallel, TensorParallel
from vantage.parallel.parameter_cut import ParameterCut
from vantage.training.distributed import World
from vantage.training.learners import Learner
from vantage.training.optimise.adamw import AdamW
from vantage.training.optimise.tensors import like, local, whole
from vantage.training.settings import TrainSettings

CORE = "core."  # the model's name in its learner


class MeshShares:
    """A learner whose model is cut to this process's share. Its weights are drawn, or loaded, whole before that."""

    def __init__(self, learner: Learner, settings: TrainSettings, world: World):
        core = learner.core
        _check(core, settings)
        assert isinstance(core, Model)
        self.learner, self.world = learner, world
        self.experts = ExpertParallel(core.spec, world.group("experts")) if world.experts > 1 else None
        share = core if self.experts is None else self.experts.cut(core)
        self.tensor = TensorParallel(share.spec, world.group("tensor")) if world.tensor > 1 else None
        if self.tensor is not None:
            share = self.tensor.cut(share)
        if self.experts is not None:
            self.experts.connect(share)
        learner.register_module("core", share)
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

    def room(self, key: str, x: Tensor) -> Tensor:
        """Where the whole of what this is a share of can be read to."""
        cut = self._cut_of(key, x)
        return torch.empty(x.shape if cut is None else cut.shape, dtype=x.dtype)

    @torch.no_grad()
    def take(self, key: str, stored: Tensor, into: Tensor) -> None:
        """This process's share of it."""
        cut, own = self._cut_of(key, into), stored.to(into.device)
        if self.tensor is not None and cut is not None:
            own = cut.take(own, self.tensor.wire.rank, self.tensor.wire.size)
        into.copy_(like(into, own.contiguous()))

    @torch.no_grad()
    def whole_learner(self, fresh: Learner) -> Learner:
        """A learner with all weights, in one that was just made: in the first process, who saves it."""
        named = dict(self.learner.named_parameters()) | dict(self.learner.named_buffers())
        stored = self.whole({f"model.{name}": x for name, x in named.items()})
        places = dict(fresh.named_parameters()) | dict(fresh.named_buffers())
        for key, x in stored.items():
            places[_parameter(key)].copy_(x)
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


def _check(core: object, settings: TrainSettings) -> None:
    if not isinstance(core, Model) or adapted(core):
        raise Refused(
            "parallel.tensor and parallel.experts are for transformers that are trained whole: no adapter, no "
            "recurrent model"
        )
    if not isinstance(settings.optimiser, AdamW):
        raise Refused(
            "parallel.tensor and parallel.experts need an optimiser that treats every number by itself: "
            "optimiser.is = 'adamw'"
        )
