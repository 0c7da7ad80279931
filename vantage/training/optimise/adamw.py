"""AdamW (Loshchilov and Hutter 2019): torch's own, with weight decay where it belongs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite

import torch
from torch import nn

from vantage.errors import BadInput
from vantage.model.maps import parameter_kinds
from vantage.spec.registry import Entry
from vantage.training.optimise.optimiser import Optimiser, trainable
from vantage.training.optimise.tensors import by_mesh

FUSED = frozenset({"cpu", "cuda", "mps", "xpu"})  # where torch has all of a step in one kernel


@dataclass(frozen=True)
class AdamW:
    """Matrices decay; vectors and what an encoding learns do not; embeddings do if asked."""

    lr: float = 3e-4
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    weight_decay: float = 0.1
    decay_embeddings: bool = False

    def __post_init__(self) -> None:
        check_rates(self.lr, self.weight_decay)
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            raise BadInput(f"betas={self.betas}: give two numbers from 0 up to, not including, 1")
        if not (isfinite(self.eps) and self.eps > 0):
            raise BadInput(f"eps={self.eps}: give a small positive number")

    def build(self, model: nn.Module) -> Optimiser:
        return Optimiser(model, [self.part(model, trainable(model))])

    def part(self, model: nn.Module, parameters: Mapping[str, nn.Parameter]) -> torch.optim.AdamW:
        """Torch's optimiser of these parameters of the model."""
        kinds = parameter_kinds(model)
        decaying = {"matrix", "head", "embedding"} if self.decay_embeddings else {"matrix", "head"}
        groups = [
            {"params": together, "weight_decay": wd}
            for decays, wd in ((True, self.weight_decay), (False, 0.0))
            for together in by_mesh([p for name, p in parameters.items() if (kinds[name] in decaying) is decays])
        ]
        fused = all(p.device.type in FUSED for p in parameters.values())
        optimiser = torch.optim.AdamW(groups, self.lr, self.betas, self.eps, fused=fused)
        for p in parameters.values():  # as torch would at the first step
            step = torch.zeros((), dtype=torch.float32, device=p.device if fused else "cpu")
            optimiser.state[p] = {"step": step, "exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)}
        return optimiser


ENTRY = Entry("adamw", AdamW, title="AdamW", summary="Adam with decoupled weight decay")


def check_rates(lr: float, weight_decay: float) -> None:
    if not (isfinite(lr) and lr >= 0):
        raise BadInput(f"lr={lr}: give a finite learning rate of at least 0")
    if not (isfinite(weight_decay) and weight_decay >= 0):
        raise BadInput(f"weight_decay={weight_decay}: give a finite number of at least 0")
