"""KERPLE (Chi et al. 2022): ALiBi's straight line replaced by a learned kernel, with two positive numbers per head.

log: -a·log(1 + p·|i - j|). power: -a·|i - j|^p with 0 < p < 2.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vantage.errors import BadInput
from vantage.position.angles import wide
from vantage.spec.forms import LogDistance, PowerDistance
from vantage.spec.parts import BiasInputs, Parts, Shape
from vantage.spec.registry import Entry, parameter

KINDS = ("log", "power")
SMALLEST = 0.01  # no head starts so flat that it hardly learns


@dataclass(frozen=True)
class Kerple:
    """``kind`` is "log" (the paper's best) or "power"."""

    kind: str = field(default="log", metadata=parameter("logarithm or power of the distance", choices=KINDS))

    shared = False  # no annotation: not a field

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise BadInput(f"kind={self.kind!r}: use one of {', '.join(map(repr, KINDS))}")

    def parts(self, *, causal: bool) -> Parts:
        return Parts(bias=self)

    def build(self, shape: Shape) -> nn.Module:
        return LogKernel(shape.heads) if self.kind == "log" else PowerKernel(shape.heads)


class LogKernel(nn.Module):
    """a and p are kept positive as softplus(raw); they start uniform in (0, 2) and (0, 1) as in the authors' code."""

    def __init__(self, heads: int):
        super().__init__()
        self.raw_a = nn.Parameter(_inverse_softplus(_uniform(heads, 2.0)))
        self.raw_p = nn.Parameter(_inverse_softplus(_uniform(heads, 1.0)))

    def at(self, inputs: BiasInputs) -> LogDistance:
        return self.form()

    def form(self) -> LogDistance:
        dtype = wide(self.raw_a.dtype)
        return LogDistance(F.softplus(self.raw_a.to(dtype)), F.softplus(self.raw_p.to(dtype)))


class PowerKernel(nn.Module):
    """a = softplus(raw), p = 2·sigmoid(raw); they start uniform in (0, 1) and (0, 2) as in the authors' code."""

    def __init__(self, heads: int):
        super().__init__()
        self.raw_a = nn.Parameter(_inverse_softplus(_uniform(heads, 1.0)))
        self.raw_p = nn.Parameter(torch.logit(_uniform(heads, 2.0) / 2))

    def at(self, inputs: BiasInputs) -> PowerDistance:
        return self.form()

    def form(self) -> PowerDistance:
        dtype = wide(self.raw_a.dtype)
        return PowerDistance(F.softplus(self.raw_a.to(dtype)), 2 * torch.sigmoid(self.raw_p.to(dtype)))


def _uniform(heads: int, high: float) -> Tensor:
    return torch.empty(heads).uniform_(SMALLEST, high - SMALLEST)


def _inverse_softplus(x: Tensor) -> Tensor:
    return torch.log(torch.expm1(x))


ENTRY = Entry(
    "kerple",
    Kerple,
    "KERPLE",
    "A learned kernel of the distance: two positive numbers a head (Chi et al. 2022).",
    variants={"kerple-log": lambda size: Kerple("log"), "kerple-power": lambda size: Kerple("power")},
    randomised=False,
)
