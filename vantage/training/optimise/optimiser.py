"""One optimiser out of one or more of torch's, with its state by parameter name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Protocol, final

import torch
from torch import Tensor, nn

from vantage.errors import BadInput
from vantage.training.optimise.tensors import reshard


class OptimiserConfig(Protocol):
    """What the ``[optimiser]`` section of the settings makes: a frozen dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def lr(self) -> float:
        """The learning rate, where the schedule says 1."""
        ...

    def build(self, model: nn.Module) -> Optimiser:
        """An optimiser of the model's parameters that need gradients."""
        ...


@final
class Optimiser:
    """Parts that each own some parameters; together they own every parameter that needs a gradient, once.

    All state is there from the start, so that a checkpoint has somewhere to be loaded to before the first step.
    """

    def __init__(self, model: nn.Module, parts: Sequence[torch.optim.Optimizer]):
        self.parts = tuple(parts)
        self._names: dict[Tensor, str] = {p: name for name, p in trainable(model).items()}
        self._rates = [(group, float(group["lr"])) for part in parts for group in part.param_groups]
        owned = [p for part in parts for group in part.param_groups for p in group["params"]]
        assert len(owned) == len(set(owned)), "a parameter is in two groups"
        assert set(owned) == set(self._names), "a parameter is in no group"

    def step(self, factor: float = 1.0) -> None:
        """One update, with every learning rate multiplied by ``factor``: what the schedule says for this step."""
        for group, rate in self._rates:
            group["lr"] = rate * factor
        for part in self.parts:
            part.step()

    def zero_grad(self) -> None:
        for part in self.parts:
            part.zero_grad(set_to_none=True)

    def state_tensors(self) -> dict[str, Tensor]:
        """All state, as "parameter:slot". These are the tensors themselves; sharded parameters have sharded ones."""
        return {
            f"{self._names[p]}:{slot}": value
            for part in self.parts
            for p, slots in part.state.items()
            for slot, value in slots.items()
        }


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that need gradients, by name."""
    reshard(model)
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not parameters:
        raise BadInput("no parameter of this model needs a gradient: there is nothing to train")
    return parameters
