"""Mamba-2 (Dao and Gu 2024): each head has one matrix that fades by a factor of its own and takes in one token.

S ← e^(Δ a) S + Δ · b ⊗ x; o = cᵀS + D x, with Δ > 0 for each head and token, a < 0 for each head, b and c shared by
groups of heads. The state has the same size whatever the length.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vantage.attention.convolution import ShortConvolution, check_goes_forward
from vantage.attention.differential import UnitLength
from vantage.attention.scorer import head_outputs
from vantage.attention.state_space import state_space, state_space_operations
from vantage.errors import BadInput, Refused
from vantage.spec.attention import ActivationColumns
from vantage.spec.kept import StateShape
from vantage.spec.model import BuildContext, CacheShape, NormConfig
from vantage.spec.operations import PassSize, linear_operations
from vantage.spec.parts import Context, Shape
from vantage.spec.registry import Entry

FIRST_STEPS = (1e-3, 0.1)  # Δ of fresh heads lies between these


@dataclass(frozen=True)
class Mamba2:
    """``heads`` heads of ``head_dim``, each with a state of ``state_dim`` rows; b and c come in ``groups``."""

    heads: int
    norm: NormConfig | None = None  # of all heads together, after the gate; None: RMS without weights
    head_dim: int | None = None  # None: twice the width over all heads
    state_dim: int = 128
    groups: int = 1
    taps: int = 4
    bias: bool = False
    convolution_bias: bool = True
    least_step: float = 0.0  # bounds of Δ
    greatest_step: float | None = None  # None: no end

    def __post_init__(self) -> None:
        if self.heads < 1 or self.groups < 1 or self.heads % self.groups:
            raise BadInput(f"{self.heads} heads in {self.groups} groups: the second must divide the first")
        if self.taps < 2 or self.state_dim < 1:
            raise BadInput(f"taps={self.taps}, state_dim={self.state_dim}: give 2 or more, and 1 or more")
        if not 0 <= self.least_step <= (math.inf if self.greatest_step is None else self.greatest_step):
            raise BadInput(f"steps from {self.least_step} to {self.greatest_step}: give two rising numbers from 0 up")

    def shape(self, width: int) -> Shape:
        if self.head_dim is None and 2 * width % self.heads:
            raise BadInput(f"twice the width {width} does not divide into {self.heads} heads: say head_dim=")
        head_dim = 2 * width // self.heads if self.head_dim is None else self.head_dim
        return Shape(width, self.heads, self.groups, self.state_dim, head_dim, 0)

    def cache_shape(self, width: int) -> CacheShape:
        s = self.shape(width)
        matrix = StateShape((s.heads, s.key_dim, s.value_dim), wide=True)
        return CacheShape.of_states(matrix, StateShape((self.taps - 1, channels(s))))

    def describe(self, width: int) -> tuple[str, ...]:
        s = self.shape(width)
        return (f"Mamba-2, {s.heads} × {s.key_dim} × {s.value_dim}",)

    def build(self, width: int, context: BuildContext) -> nn.Module:
        return Mamba2Mixer(self, self.shape(width), context)

    def build_cross(self, width: int, context: BuildContext) -> nn.Module:
        raise Refused("Mamba has no cross-attention: use GroupedQuery there")


def channels(s: Shape) -> int:
    """What the convolution runs over: x, b and c."""
    return s.heads * s.value_dim + 2 * s.kv_heads * s.key_dim


class Mamba2Mixer(nn.Module):
    def __init__(self, config: Mamba2, shape: Shape, context: BuildContext):
        super().__init__()
        check_goes_forward(context, "Mamba")
        s = self.state_shape = shape
        self.config, self.index = config, context.index
        inner = s.heads * s.value_dim
        self.widths = (inner, channels(s), s.heads)  # the gate; x, b and c; Δ
        self.maps = context.linear(s.width, sum(self.widths), config.bias)
        self.conv = ShortConvolution(channels(s), config.taps, bias=config.convolution_bias)
        low, high = (math.log(step) for step in FIRST_STEPS)
        step = torch.empty(s.heads).uniform_(low, high).exp()
        self.dt_bias = nn.Parameter(step + torch.log(-torch.expm1(-step)))  # softplus of this is the step
        self.A_log = nn.Parameter(torch.arange(1, s.heads + 1).float().log())
        self.D = nn.Parameter(torch.ones(s.heads))
        self.norm = UnitLength() if config.norm is None else config.norm.build(inner)
        self.out = context.linear(inner, s.width, config.bias)

    def forward(self, x_BTD: Tensor, ctx: Context) -> Tensor:
        s, states = self.state_shape, ctx.caches[self.index].states
        columns = states.wanted(ctx.pos)
        matrix, inputs = states.read(x_BTD)
        gate, mixed, step = self.maps(x_BTD).split(self.widths, dim=-1)
        mixed, inputs = self.conv(mixed, inputs, ctx.pos, columns)
        rows = s.kv_heads * s.key_dim
        x, b, c = F.silu(mixed).split((s.heads * s.value_dim, rows, rows), dim=-1)
        x = x.unflatten(-1, (s.heads, -1))
        b, c = (t.unflatten(-1, (s.kv_heads, -1)) for t in (b, c))
        step = F.softplus(step.to(matrix.dtype) + self.dt_bias)
        step = step.clamp(self.config.least_step, self.config.greatest_step)
        rate = -self.A_log.to(matrix.dtype).exp()
        out, matrices = state_space(x, step, rate, b, c, matrix, ctx.pos, columns)
        states.write(ctx.pos, columns, list(zip(matrices, inputs, strict=True)))
        out = (out + self.D[:, None] * x).flatten(2) * F.silu(gate.to(out.dtype))
        return self.out(self.norm(out.to(x_BTD.dtype)))

    def activations(self) -> dict[str, ActivationColumns]:
        """Values, keys (b) and queries (c) stand before the convolution, heads after gate and norm."""
        s, inner = self.state_shape, self.widths[0]
        rows = s.kv_heads * s.key_dim
        return {
            "v": ActivationColumns("maps", inner, inner, s.heads),
            "k": ActivationColumns("maps", 2 * inner, rows, s.kv_heads),
            "q": ActivationColumns("maps", 2 * inner + rows, rows, s.kv_heads),
            "heads": head_outputs(s),
        }

    def mixing_operations(self, size: PassSize) -> dict[str, int]:
        s, tokens = self.state_shape, size.tokens
        return {
            "projections": linear_operations(self.maps, tokens),
            **state_space_operations(size, s),
            "output": linear_operations(self.out, tokens),
        }


ENTRY = Entry(
    "mamba-2",
    Mamba2,
    "Mamba-2",
    "A decaying state per head, updated token by token: its cache has a fixed size.",
    default=lambda heads: Mamba2(heads or 1, state_dim=16),
    variants={"mamba-2": lambda size: Mamba2(size.heads, size.norm, head_dim=6, state_dim=5, groups=size.heads // 2)},
)
