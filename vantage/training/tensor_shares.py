"""Training a model whose heads and columns lie over processes: its gradients, and what a checkpoint has of it.

A checkpoint holds whole tensors, as that of one process does. So a run goes on over as many processes as one likes.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from vantage.errors import Refused
from vantage.model import Model
from vantage.model.lora import adapted
from vantage.parallel import TensorParallel
from vantage.training.learners import Learner
from vantage.training.optimise.adamw import AdamW
from vantage.training.settings import TrainSettings


class TensorShares:
    """A learner whose model is cut to this process's share. Its weights are drawn, or loaded, whole before that."""

    def __init__(self, learner: Learner, settings: TrainSettings):
        core = learner.core
        if not isinstance(core, Model) or adapted(core):
            raise Refused("tensor parallel is for transformers that are trained whole: no adapter, no recurrent model")
        if not isinstance(settings.optimiser, AdamW):
            raise Refused(
                "tensor parallel needs an optimiser that treats every number by itself: optimiser.is = 'adamw'"
            )
        if settings.loop.compile or settings.loop.recompute:
            raise Refused("loop.compile and loop.recompute are not for tensor parallel: leave them out")
        self.learner, self.parallel = learner, TensorParallel(core.spec)
        self.share = self.parallel.cut(core)
        learner.register_module("core", self.share)
        self._shapes = {name: tuple(p.shape) for name, p in self.share.named_parameters()}

    def clip(self, most: float | None) -> Tensor:
        """Bring the gradients together, and scale them so that their norm is at most ``most``; the norm they had."""
        self.parallel.sum_gradients(self.share)
        gradients = {name: p.grad for name, p in self.share.named_parameters() if p.grad is not None}
        inside = {id(p) for p in self.share.parameters()}
        others = [p for p in self.learner.parameters() if id(p) not in inside and p.grad is not None]
        norm = self.parallel.norm(gradients, [p.grad for p in others if p.grad is not None]).float()
        if most is not None:
            factor = (most / (norm + 1e-6)).clamp(max=1.0)  # as torch.nn.utils.clip_grad_norm_ does
            for gradient in (*gradients.values(), *(p.grad for p in others if p.grad is not None)):
                gradient.mul_(factor.to(gradient))
        return norm

    # ---- checkpoints

    def whole(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The same, put together from all processes."""
        named = {key: self._parameter(key, x) for key, x in tensors.items()}
        return {k: x if named[k] is None else self.parallel.whole_tensor(named[k] or "", x) for k, x in tensors.items()}

    def room(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Where the whole of each can be read to; what all have alike is read to its own place."""
        named = {key: self._parameter(key, x) for key, x in tensors.items()}
        shapes = {key: None if name is None else self.parallel.cuts[name].shape for key, name in named.items()}
        return {k: x if shapes[k] is None else x.new_empty(shapes[k] or ()) for k, x in tensors.items()}

    def take(self, stored: Mapping[str, Tensor], into: Mapping[str, Tensor]) -> None:
        """This process's share of each."""
        for key, x in into.items():
            name = self._parameter(key, x)
            if name is not None:
                x.copy_(self.parallel.take(name, stored[key]))

    def whole_learner(self, fresh: Learner) -> Learner:
        """A learner with all weights, in one that was just made."""
        state = {name: x for name, x in self.learner.state_dict().items() if not name.startswith("core.")}
        model = self.parallel.whole(self.share)
        fresh.load_state_dict(state | {f"core.{name}": x for name, x in model.state_dict().items()})
        return fresh

    def _parameter(self, key: str, x: Tensor) -> str | None:
        """The parameter of the model that a tensor of a run goes with ("optimiser.core.…:exp_avg"), if it is cut."""
        name = key.partition(".")[2].partition(":")[0].removeprefix("core.")
        if self._shapes.get(name) != tuple(x.shape) or x.dim() == 0:
            return None
        return name if self.parallel.cuts[name].maps else None
