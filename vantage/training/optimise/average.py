"""An exponential moving average of the parameters, to evaluate and to keep."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn

from vantage.errors import BadInput
from vantage.training.optimise.optimiser import trainable
from vantage.training.optimise.tensors import reshard


@dataclass(frozen=True)
class Average:
    """average ← decay · average + (1 - decay) · parameter, from the parameters as they are at the start."""

    decay: float = 0.999

    def __post_init__(self) -> None:
        if not 0 <= self.decay < 1:
            raise BadInput(f"decay={self.decay}: give a number from 0 up to, not including, 1")

    def build(self, model: nn.Module) -> Averaged:
        return Averaged(self, model)


@final
class Averaged:
    """The averages of the parameters that are trained, in float32 at least: a bfloat16 sum would stand still."""

    def __init__(self, config: Average, model: nn.Module):
        self.config, self._model = config, model
        self._parameters = trainable(model)
        self._averages = {name: _wide(p.detach()) for name, p in self._parameters.items()}
        self._swapped = False

    @torch.no_grad()
    def update(self) -> None:
        """After every step."""
        self._not_swapped("update()")
        for name, average in self._averages.items():
            average.lerp_(self._parameters[name].to(average.dtype), 1 - self.config.decay)

    @contextmanager
    def swap(self) -> Iterator[None]:
        """Inside, the model has the averages; afterwards its own parameters again, to the bit."""
        self._not_swapped("swap()")
        own = {name: p.detach().clone() for name, p in self._parameters.items()}
        self._swapped = True
        try:
            self._fill(self._averages)
            yield
        finally:
            self._fill(own)
            self._swapped = False

    def take(self) -> None:
        """Give the model the averages for good: what a finished run keeps."""
        self._not_swapped("take()")
        self._fill(self._averages)

    def state_tensors(self) -> dict[str, Tensor]:
        """The averages by parameter name: the tensors themselves."""
        return dict(self._averages)

    @torch.no_grad()
    def _fill(self, values: Mapping[str, Tensor]) -> None:
        reshard(self._model)
        for name, p in self._parameters.items():
            p.copy_(values[name])

    def _not_swapped(self, what: str) -> None:
        if self._swapped:
            raise BadInput(f"{what} inside swap(): the model has the averages now; leave the block first")


def _wide(tensor: Tensor) -> Tensor:
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32), copy=True)
