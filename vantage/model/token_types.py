"""Token types (BERT's segment embeddings): which part of the input a token belongs to, sentence A or sentence B.

They are no segments in the sense of ``Positions``: tokens of one type attend to those of the others.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from vantage.errors import BadInput
from vantage.spec.parts import INIT_STD


class TokenTypes(nn.Module):
    """x + table[type]; who says no types means 0 everywhere."""

    def __init__(self, types: int, width: int):
        super().__init__()
        self.table = nn.Parameter(torch.empty(types, width))
        nn.init.normal_(self.table, std=INIT_STD)

    def forward(self, x_BTD: Tensor, types_BT: Tensor | None = None) -> Tensor:
        if types_BT is None:
            return x_BTD + self.table[0]
        self._check(x_BTD, types_BT)
        return x_BTD + self.table[types_BT]

    def _check(self, x_BTD: Tensor, types_BT: Tensor) -> None:
        if types_BT.shape != x_BTD.shape[:2] or types_BT.is_floating_point() or types_BT.dtype == torch.bool:
            raise BadInput(
                f"types are {types_BT.dtype} of shape {tuple(types_BT.shape)}, the tokens {tuple(x_BTD.shape[:2])}: "
                "give a whole number for each token"
            )
        if types_BT.device.type == "cpu":  # read in host memory only: no device is asked
            low, high = (int(n) for n in types_BT.aminmax())
            n = len(self.table)
            if low < 0 or high >= n:
                raise BadInput(f"token type {low if low < 0 else high} is not one of the {n} (0 to {n - 1})")


class NoTokenTypes(nn.Module):
    """A model that knows no types."""

    def forward(self, x_BTD: Tensor, types_BT: Tensor | None = None) -> Tensor:
        if types_BT is not None:
            raise BadInput("this model has no token types: leave types out")
        return x_BTD
