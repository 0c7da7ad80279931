"""Lion (Chen et al. 2023): the sign of an interpolated momentum, so every parameter moves by the rate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from vantage.errors import BadInput
from vantage.spec.registry import Entry
from vantage.training.optimise.adamw import check_rates
from vantage.training.optimise.optimiser import Optimiser, trainable


@dataclass(frozen=True)
class Lion:
    """Every parameter by the same rule; all of them decay."""

    lr: float = 1e-4
    betas: tuple[float, float] = (0.9, 0.99)
    weight_decay: float = 0.1

    def __post_init__(self) -> None:
        check_rates(self.lr, self.weight_decay)
        if not all(0 <= beta < 1 for beta in self.betas):
            raise BadInput(f"betas={self.betas}: give two numbers from 0 up to, not including, 1")

    def build(self, model: nn.Module) -> Optimiser:
        return Optimiser(model, [_Lion(list(trainable(model).values()), self)])


class _Lion(torch.optim.Optimizer):
    def __init__(self, parameters: list[nn.Parameter], config: Lion):
        super().__init__(parameters, {"lr": config.lr, "weight_decay": config.weight_decay})
        self.config = config
        for p in parameters:  # all state is there from the start: a checkpoint is loaded into it
            self.state[p] = {"momentum": torch.zeros_like(p)}

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        b1, b2 = self.config.betas
        for group in self.param_groups:
            for p in (p for p in group["params"] if p.grad is not None):
                momentum = self.state[p]["momentum"]
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(momentum.lerp(p.grad, 1 - b1).sign_(), alpha=-group["lr"])
                momentum.lerp_(p.grad, 1 - b2)


ENTRY = Entry("lion", Lion, title="Lion", summary="the sign of the momentum")
