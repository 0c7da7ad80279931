"""Linear maps. A model is built with dense ones; packed, wide and adapted ones take their place by ``replace_module``.

Parts below the model (attention) cannot import this, and are handed ``dense`` when they are built."""

from __future__ import annotations

from torch import Tensor, nn

from vantage.kernels.product import linear
from vantage.spec.parts import INIT_STD


class DenseLinear(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return linear(input, self.weight, self.bias)


def dense(n_in: int, n_out: int, bias: bool) -> nn.Module:
    layer = DenseLinear(n_in, n_out, bias=bias)
    nn.init.normal_(layer.weight, std=INIT_STD)
    if bias:
        nn.init.zeros_(layer.bias)
    return layer


def replace_module(model: nn.Module, name: str, module: nn.Module) -> None:
    """Put a module in the place of the one of that name: the one way in which a dense map becomes another kind."""
    outer, _, last = name.rpartition(".")
    parent = model.get_submodule(outer)
    setattr(parent, last, module.train(parent.training))
