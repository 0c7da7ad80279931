"""A linear map that is kept in float32 inside a model of half precision."""

from __future__ import annotations

from collections.abc import Iterable

import torch.nn.functional as F
from torch import Tensor, nn

from vantage.model.linear import replace_module


class WideLinear(nn.Module):
    """Computes in its weight's dtype, whatever comes in; what comes out stays wide.

    So the sum that it is added to becomes wide as well (T5 in float16, whose sums pass 65,504), until a norm of the
    model's own dtype makes it narrow again.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None):
        super().__init__()
        self.weight, self.bias = weight, bias  # parameters, both

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x.to(self.weight.dtype), self.weight, self.bias)


def widen(model: nn.Module, parameters: Iterable[str]) -> None:
    """Put a ``WideLinear`` where one of these parameters is a linear map's. Other parts take a wide one as it is."""
    for owner in {name.rpartition(".")[0] for name in parameters}:
        module = model.get_submodule(owner)
        if isinstance(module, nn.Linear):
            replace_module(model, owner, WideLinear(module.weight, module.bias))
