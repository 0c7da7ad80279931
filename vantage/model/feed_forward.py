"""Feed-forward layers, plain and gated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import NormalDist

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vantage.errors import BadInput, Refused, unknown
from vantage.model.gelu import gelu
from vantage.model.linear import dense
from vantage.spec.attention import ActivationColumns, Pieces
from vantage.spec.fingerprint import LATER
from vantage.spec.native import CannotLower, Program
from vantage.spec.parts import Context


def quick_gelu(x: Tensor) -> Tensor:
    """GELU by a sigmoid (Hendrycks and Gimpel 2016); Qwen2-VL's tower was trained with it."""
    return x * torch.sigmoid(1.702 * x)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "silu": F.silu,
    "quick_gelu": quick_gelu,
}


@dataclass(frozen=True)
class FeedForward:
    """down(f(up(x))), or gated: down(f(gate(x)) · up(x))."""

    hidden: int
    activation: str = "silu"
    gated: bool = True
    bias: bool = False
    sparsity: float = field(default=0.0, metadata=LATER)  # about this share of the gates is 0 (Gemma 3n)

    def __post_init__(self) -> None:
        if not 0.0 <= self.sparsity < 1.0 or (self.sparsity and not self.gated):
            raise BadInput(f"sparsity={self.sparsity}: use a share from 0 up to, not including, 1, in a gated layer")
        if self.activation not in ACTIVATIONS:
            raise BadInput(unknown("activation", self.activation, ACTIVATIONS))
        if self.hidden < 1:
            raise BadInput(f"hidden={self.hidden}: a feed-forward layer needs at least 1")

    def describe(self) -> str:
        sparse = f", {self.sparsity:.0%} of the gates 0" if self.sparsity else ""
        return f"{'gated ' if self.gated else ''}{self.activation}, {self.hidden:,}{sparse}"

    def divided(self, ranks: int, width: int) -> FeedForward:
        if self.sparsity:
            raise Refused("sparse gates go by the mean of all of them, which no process has: no tensor parallel form")
        return replace(self, hidden=columns_each(self.hidden, ranks))

    def build(self, width: int) -> nn.Module:
        return (GatedFeedForward if self.gated else PlainFeedForward)(self, width)


def columns_each(hidden: int, ranks: int) -> int:
    """How many of a hidden layer's columns each of so many processes has."""
    if hidden % ranks:
        raise Refused(f"a hidden layer of {hidden} does not divide among {ranks} processes")
    return hidden // ranks


class PlainFeedForward(nn.Module):
    def __init__(self, config: FeedForward, width: int):
        super().__init__()
        self.act = ACTIVATIONS[config.activation]
        self.hidden = config.hidden
        self.up = dense(width, config.hidden, config.bias)
        self.down = dense(config.hidden, width, config.bias)

    def forward(self, x: Tensor, ctx: Context | None = None) -> Tensor:
        hidden = self.up(x)
        return self.down(gelu(hidden) if self.act is F.gelu else self.act(hidden))

    def activations(self) -> dict[str, ActivationColumns]:
        return {"neurons": ActivationColumns("down", 0, self.hidden, 0, given=True)}

    def native(self, program: Program, src: int, into: int | None) -> int:
        hidden = program.linear(self.up, src, None, "hidden")
        active = program.activate(hidden, program.width(hidden), self.act, gated=False)
        return program.linear(self.down, active, into, "fed forward")


class GatedFeedForward(nn.Module):
    def __init__(self, config: FeedForward, width: int):
        super().__init__()
        self.act = ACTIVATIONS[config.activation]
        self.hidden, self.sparsity = config.hidden, config.sparsity
        self.gate_up = dense(width, 2 * config.hidden, config.bias)
        self.down = dense(config.hidden, width, config.bias)

    def forward(self, x: Tensor, ctx: Context | None = None) -> Tensor:
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        gate = gate if self.sparsity == 0.0 else above_share(gate, self.sparsity)
        return self.down(self.act(gate) * up)

    def projections(self) -> dict[str, Pieces]:
        return {"gate_up": (("gate", self.hidden), ("up", self.hidden))}

    def activations(self) -> dict[str, ActivationColumns]:
        return {"neurons": ActivationColumns("down", 0, self.hidden, 0, given=True)}

    def native(self, program: Program, src: int, into: int | None) -> int:
        if self.sparsity:
            raise CannotLower("sparse gates have no native form")
        both = program.linear(self.gate_up, src, None, "hidden")
        active = program.activate(both, self.hidden, self.act, gated=True)
        return program.linear(self.down, active, into, "fed forward")


def above_share(x: Tensor, share: float) -> Tensor:
    """What each number is above the rest: the share of them that would lie below, if they were normal, becomes 0."""
    deviations = NormalDist().inv_cdf(share)
    return F.relu(x - x.mean(-1, keepdim=True) - deviations * x.std(-1, keepdim=True, unbiased=False))


# the names that papers use: activation, and whether it is gated
NAMED = {"swiglu": ("silu", True), "geglu": ("gelu", True), "gelu": ("gelu", False), "relu": ("relu", False)}


def named(name: str, width: int, hidden: int | None = None) -> FeedForward:
    """By a name of ``NAMED``. The default hidden size keeps about 8·width² weights."""
    if name not in NAMED:
        raise BadInput(unknown("feed-forward layer", name, NAMED))
    activation, gated = NAMED[name]
    if hidden is None:
        hidden = int(8 * width / 3 + 63) // 64 * 64 if gated else 4 * width  # the first so that matrix kernels tile it
    return FeedForward(hidden, activation, gated=gated, bias=not gated)
