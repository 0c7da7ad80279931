"""Linear maps as a part. Dense for now; the model asks for one through ``LinearMaker`` and never knows which."""

from __future__ import annotations

from torch import Tensor, nn

from vantage.kernels.product import linear
from vantage.spec.parts import INIT_STD


class Dense(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return linear(input, self.weight, self.bias)


def dense(n_in: int, n_out: int, bias: bool) -> nn.Module:
    layer = Dense(n_in, n_out, bias=bias)
    nn.init.normal_(layer.weight, std=INIT_STD)
    if bias:
        nn.init.zeros_(layer.bias)
    return layer
