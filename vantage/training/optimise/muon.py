"""Muon (Jordan et al. 2024): momentum, made orthogonal by a Newton-Schulz iteration, for the matrices inside layers.

Not ``torch.optim.Muon``: that one works in bfloat16 on every device, which some CPUs cannot do and others do slowly,
takes no stacks of matrices, and takes q, k and v for one matrix where they lie in one weight.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import sqrt
from typing import Any

import torch
from torch import Tensor, nn

from vantage.errors import BadInput, Refused
from vantage.model.maps import parameter_kinds, rows_of
from vantage.spec.registry import Entry
from vantage.training.optimise.adamw import AdamW, check_rates
from vantage.training.optimise.optimiser import Optimiser, trainable
from vantage.training.optimise.tensors import like, whole

# Chosen by Jordan et al. for a steep slope at 0: five rounds bring singular values to between 0.7 and 1.2, not to 1.
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
ROUNDS = 5
TINY = 1e-7

# By what the rate of a matrix (rows, columns) is multiplied; the names are torch's.
ADJUST = {
    "original": lambda rows, columns: sqrt(max(1.0, rows / columns)),
    "match_rms_adamw": lambda rows, columns: 0.2 * sqrt(max(rows, columns)),  # Liu et al. 2025: AdamW's rates fit
}


@dataclass(frozen=True)
class Muon:
    """Matrices inside layers by Muon; embeddings, heads, vectors and what an encoding learns by AdamW."""

    lr: float = 0.02
    momentum: float = 0.95
    nesterov: bool = True
    weight_decay: float = 0.0
    adjust: str = "original"  # or "match_rms_adamw"
    adamw: AdamW = AdamW()

    def __post_init__(self) -> None:
        check_rates(self.lr, self.weight_decay)
        if not 0 <= self.momentum < 1:
            raise BadInput(f"momentum={self.momentum}: give a number from 0 up to, not including, 1")
        if self.adjust not in ADJUST:
            raise BadInput(f"adjust={self.adjust!r}: use one of {', '.join(map(repr, ADJUST))}")

    def build(self, model: nn.Module) -> Optimiser:
        kinds, parameters = parameter_kinds(model), trainable(model)
        matrices = {name: p for name, p in parameters.items() if kinds[name] == "matrix"}
        others = {name: p for name, p in parameters.items() if name not in matrices}
        for name, p in matrices.items():
            if p.dim() > 3 or not p.is_floating_point():
                raise Refused(f"{name!r} has shape {tuple(p.shape)}: Muon takes matrices and stacks of them; use AdamW")
        parts: list[torch.optim.Optimizer] = []
        if matrices:
            parts.append(_Muon(matrices, self, rows_of(model)))
        if others:
            parts.append(self.adamw.part(model, others))
        return Optimiser(model, parts)


ENTRY = Entry(
    "muon", Muon, title="Muon", summary="orthogonal updates of the matrices inside layers, AdamW for the rest"
)


class _Muon(torch.optim.Optimizer):
    def __init__(self, matrices: Mapping[str, nn.Parameter], config: Muon, rows: Mapping[str, tuple[int, ...]]):
        super().__init__(matrices.values(), {"lr": config.lr, "weight_decay": config.weight_decay})
        self.config = config
        self._rows = {p: rows.get(name, (p.shape[-2],)) for name, p in matrices.items()}
        for p in matrices.values():
            self.state[p] = {"momentum": torch.zeros_like(p)}

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride] (no closure here)
        assert closure is None
        for group in self.param_groups:
            ready = [p for p in group["params"] if p.grad is not None]
            for p, update in zip(ready, self._directions(ready), strict=True):
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(like(p, update.to(p.dtype)), alpha=-group["lr"])

    def _directions(self, parameters: list[nn.Parameter]) -> list[Tensor]:
        """The whole update of each. Maps of one shape are made orthogonal together: fewer and larger products."""
        cut = [self._momentum(p).split(self._rows[p], dim=-2) for p in parameters]
        alike: dict[object, list[tuple[int, int]]] = {}
        for i, maps in enumerate(cut):
            for j, m in enumerate(maps):
                alike.setdefault((m.shape[-2:], m.dtype, m.device), []).append((i, j))
        updates = [list(maps) for maps in cut]
        for places in alike.values():
            stacks = [cut[i][j].reshape(-1, *cut[i][j].shape[-2:]) for i, j in places]
            results = orthogonal(torch.cat(stacks)).split([len(s) for s in stacks])
            for (i, j), result in zip(places, results, strict=True):
                scale = ADJUST[self.config.adjust](*result.shape[-2:])
                updates[i][j] = (result * scale).view_as(cut[i][j])
        return [torch.cat(maps, dim=-2) for maps in updates]

    def _momentum(self, p: nn.Parameter) -> Tensor:
        """What is to be made orthogonal, gathered if it is sharded: that takes whole matrices."""
        held, grad = self.state[p]["momentum"], p.grad
        assert grad is not None
        held.lerp_(grad, 1 - self.config.momentum)
        return whole(grad.lerp(held, self.config.momentum) if self.config.nesterov else held)


def orthogonal(matrices_NRC: Tensor) -> Tensor:
    """U Vᵀ of each U S Vᵀ, nearly: singular values end near 1. In bfloat16 on a GPU, else as they come.

    Works on the shorter side. A matrix of zeros stays one.
    """
    a, b, c = COEFFICIENTS
    x = matrices_NRC.to(torch.bfloat16) if matrices_NRC.device.type == "cuda" else matrices_NRC
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp_min(TINY)
    for _ in range(ROUNDS):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return (x.mT if tall else x).to(matrices_NRC.dtype)
