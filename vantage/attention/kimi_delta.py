"""KDA (Kimi Linear 2025): the gated delta rule with a decay of its own for each channel of the keys.

S ← diag(e^g) S; S ← S + k ⊗ β(v - kᵀS); o = qᵀS / √d. The decay and the output's gate come from maps of a small rank.
The state has the same size whatever the length; padding leaves it as it is, and a document begins with an empty one.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vantage.attention.convolution import ShortConvolution, check_goes_forward
from vantage.attention.delta import unit
from vantage.attention.delta_rule import delta_rule, delta_rule_operations
from vantage.attention.differential import UnitLength
from vantage.attention.head_width import head_width
from vantage.attention.scorer import head_outputs
from vantage.errors import Refused
from vantage.spec.attention import ActivationColumns
from vantage.spec.kept import StateShape
from vantage.spec.model import BuildContext, CacheShape, NormConfig
from vantage.spec.operations import PassSize, linear_operations
from vantage.spec.parts import Context, Shape
from vantage.spec.registry import Entry


@dataclass(frozen=True)
class KimiDelta:
    """``heads`` heads of queries, keys and values of one width; a convolution of ``taps`` before them."""

    heads: int
    norm: NormConfig | None = None  # of each head, before the gate; None: RMS without weights
    head_dim: int | None = None  # None: width / heads
    rank: int | None = None  # of the maps to the decays and the gate; None: head_dim
    taps: int = 4

    def shape(self, width: int) -> Shape:
        head_dim = head_width(width, self.heads, self.head_dim)
        return Shape(width, self.heads, self.heads, head_dim, head_dim, 0)

    def cache_shape(self, width: int) -> CacheShape:
        s = self.shape(width)
        matrix = StateShape((s.heads, s.key_dim, s.value_dim), wide=True)
        return CacheShape.of_states(matrix, StateShape((self.taps - 1, 3 * s.heads * s.key_dim)))

    def describe(self, width: int) -> tuple[str, ...]:
        s = self.shape(width)
        return (f"Kimi delta attention, {s.heads} × {s.key_dim} × {s.value_dim}",)

    def build(self, width: int, context: BuildContext) -> nn.Module:
        return KimiDeltaRule(self, self.shape(width), context)

    def build_cross(self, width: int, context: BuildContext) -> nn.Module:
        raise Refused("a delta rule has no cross-attention: use GroupedQuery there")


class KimiDeltaRule(nn.Module):
    def __init__(self, config: KimiDelta, shape: Shape, context: BuildContext):
        super().__init__()
        check_goes_forward(context, "a delta rule")
        s = self.state_shape = shape
        self.index = context.index
        channels, rank = s.heads * s.key_dim, s.key_dim if config.rank is None else config.rank
        self.qkv = context.linear(s.width, 3 * channels, False)
        self.beta = context.linear(s.width, s.heads, False)
        self.low = context.linear(s.width, 2 * rank, False)  # of the decays, then of the gate
        self.decay = context.linear(rank, channels, False)
        self.gate = context.linear(rank, channels, False)
        self.conv = ShortConvolution(3 * channels, config.taps)
        self.dt_bias = nn.Parameter(torch.ones(channels))
        self.A_log = nn.Parameter(torch.empty(s.heads).uniform_(1, 16).log())
        self.norm = UnitLength() if config.norm is None else config.norm.build(s.value_dim)
        self.out = context.linear(channels, s.width, False)

    def forward(self, x_BTD: Tensor, ctx: Context) -> Tensor:
        s, states = self.state_shape, ctx.caches[self.index].states
        columns = states.wanted(ctx.pos)
        matrix, inputs = states.read(x_BTD)
        mixed, inputs = self.conv(self.qkv(x_BTD), inputs, ctx.pos, columns)
        q, k, v = (t.unflatten(-1, (s.heads, -1)) for t in F.silu(mixed).chunk(3, dim=-1))
        decay, gate = self.low(x_BTD).chunk(2, dim=-1)
        wide = matrix.dtype
        rate = F.softplus(self.decay(decay).to(wide) + self.dt_bias).unflatten(-1, (s.heads, -1))
        g = -self.A_log.to(wide).exp()[:, None] * rate
        out, matrices = delta_rule(unit(q), unit(k), v, g, self.beta(x_BTD).sigmoid(), matrix, ctx.pos, columns)
        states.write(ctx.pos, columns, list(zip(matrices, inputs, strict=True)))
        gated = self.norm(out.to(x_BTD.dtype)) * self.gate(gate).sigmoid().unflatten(-1, (s.heads, -1))
        return self.out(gated.flatten(2))

    def activations(self) -> dict[str, ActivationColumns]:
        """Queries, keys and values stand before the convolution, heads after norm and gate."""
        s = self.state_shape
        channels = s.heads * s.key_dim
        columns = {name: ActivationColumns("qkv", i * channels, channels, s.heads) for i, name in enumerate("qkv")}
        return columns | {"heads": head_outputs(s)}

    def mixing_operations(self, size: PassSize) -> dict[str, int]:
        s, tokens = self.state_shape, size.tokens
        maps = (self.qkv, self.beta, self.low, self.decay, self.gate)
        return {
            "projections": sum(linear_operations(m, tokens) for m in maps),
            **delta_rule_operations(size, s, by_channel=True),
            "output": linear_operations(self.out, tokens),
        }


ENTRY = Entry(
    "kimi-delta",
    KimiDelta,
    "Kimi delta attention (KDA)",
    "The gated delta rule with a decay for each channel of the keys; its cache has the same size at any length.",
    default=lambda heads: KimiDelta(heads or 1),
    variants={"kimi-delta": lambda size: KimiDelta(size.heads, size.norm, rank=3)},
)
