"""What stands between the kernel and the output map: a gate on each head's output (Qiu et al. 2025)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

from vantage.errors import BadInput
from vantage.spec.operations import linear_operations
from vantage.spec.parts import INIT_STD, Shape
from vantage.spec.positions import Positions
from vantage.spec.registry import Entry

FUNCTIONS = {"sigmoid": F.sigmoid, "softplus": F.softplus}


@dataclass(frozen=True)
class OutputGate:
    """out ⊙ σ(W x), x being the layer's input: a gate for each number (Qwen3-Next) or one for each head (Step 3.7)."""

    per: Literal["number", "head"] = "number"
    function: str = "sigmoid"  # or "softplus" (Laguna)
    bias: bool = False

    shared = False  # no annotation: not a field

    def __post_init__(self) -> None:
        if self.per not in ("number", "head"):
            raise BadInput(f"per={self.per!r}: use 'number' or 'head'")
        if self.function not in FUNCTIONS:
            raise BadInput(f"function={self.function!r}: use {' or '.join(map(repr, FUNCTIONS))}")

    def describe(self) -> str:
        return "gated output"

    def build(self, shape: Shape) -> nn.Module:
        return Gate(self, shape)


class Gate(nn.Module):
    def __init__(self, config: OutputGate, shape: Shape):
        super().__init__()
        self.config, self.heads = config, shape.heads
        numbers = shape.value_dim if config.per == "number" else 1
        self.map = nn.Linear(shape.width, shape.heads * numbers, bias=config.bias)
        nn.init.normal_(self.map.weight, std=INIT_STD)

    def forward(self, out_BHTe: Tensor, x_BTD: Tensor, pos: Positions) -> Tensor:
        gate = FUNCTIONS[self.config.function](self.map(x_BTD))
        return out_BHTe * gate.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def operations(self, tokens: int) -> int:
        return linear_operations(self.map, tokens)


ENTRY = Entry(
    "gate",
    OutputGate,
    "Gated output",
    "Each head's output is multiplied by a gate that sees the layer's input (Qiu et al. 2025).",
    components={"output": (OutputGate,)},
)
