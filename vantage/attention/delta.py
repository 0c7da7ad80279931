"""The gated delta rule (Yang et al. 2024; Qwen3-Next): each head has one matrix that is read, corrected and let fade.

S ← e^g S; S ← S + k ⊗ β(v - kᵀS); o = qᵀS / √d. The state has the same size whatever the length. Padding leaves it as
it is, and a document begins with an empty one.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vantage.attention.convolution import ShortConvolution, check_goes_forward
from vantage.attention.delta_rule import delta_rule, delta_rule_operations
from vantage.attention.differential import UnitLength
from vantage.attention.head_width import head_width
from vantage.attention.scorer import head_outputs
from vantage.errors import BadInput, Refused
from vantage.spec.attention import ActivationColumns
from vantage.spec.kept import StateShape
from vantage.spec.model import BuildContext, CacheShape, NormConfig
from vantage.spec.operations import PassSize, linear_operations
from vantage.spec.parts import Context, Shape
from vantage.spec.registry import Entry

EPS = 1e-6  # under the root of a length


@dataclass(frozen=True)
class GatedDelta:
    """``key_heads`` heads of queries and keys, shared by ``heads`` of values; a convolution of ``taps`` before them."""

    heads: int
    norm: NormConfig | None = None  # of each head, before the gate; None: RMS without weights
    key_heads: int | None = None  # None: as many as heads
    key_dim: int | None = None  # None: width / heads
    value_dim: int | None = None  # None: key_dim
    taps: int = 4

    def shape(self, width: int) -> Shape:
        key_heads = self.heads if self.key_heads is None else self.key_heads
        if self.heads < 1 or key_heads < 1 or self.heads % key_heads:
            raise BadInput(f"{self.heads} heads over {key_heads} of keys: the second must divide the first")
        key_dim = head_width(width, self.heads, self.key_dim, "key_dim")
        return Shape(width, self.heads, key_heads, key_dim, self.value_dim or key_dim, 0)

    def cache_shape(self, width: int) -> CacheShape:
        s = self.shape(width)
        matrix = StateShape((s.heads, s.key_dim, s.value_dim), wide=True)
        return CacheShape.of_states(matrix, StateShape((self.taps - 1, _channels(s))))

    def describe(self, width: int) -> tuple[str, ...]:
        s = self.shape(width)
        return (f"gated delta rule, {s.heads} × {s.key_dim} × {s.value_dim}",)

    def build(self, width: int, context: BuildContext) -> nn.Module:
        return GatedDeltaRule(self, self.shape(width), context)

    def build_cross(self, width: int, context: BuildContext) -> nn.Module:
        raise Refused("a delta rule has no cross-attention: use GroupedQuery there")


def _channels(s: Shape) -> int:
    return 2 * s.kv_heads * s.key_dim + s.heads * s.value_dim


class GatedDeltaRule(nn.Module):
    def __init__(self, config: GatedDelta, shape: Shape, context: BuildContext):
        super().__init__()
        check_goes_forward(context, "a delta rule")
        s = self.state_shape = shape
        self.index = context.index
        self.qkv = context.linear(s.width, _channels(s), False)
        self.gates = context.linear(s.width, s.heads * (s.value_dim + 2), False)  # z, then b and a of each head
        self.conv = ShortConvolution(_channels(s), config.taps)
        self.dt_bias = nn.Parameter(torch.ones(s.heads))
        self.A_log = nn.Parameter(torch.empty(s.heads).uniform_(0.01, 16).log())
        self.norm = UnitLength() if config.norm is None else config.norm.build(s.value_dim)
        self.out = context.linear(s.heads * s.value_dim, s.width, False)

    def forward(self, x_BTD: Tensor, ctx: Context) -> Tensor:
        s, states = self.state_shape, ctx.caches[self.index].states
        columns = states.wanted(ctx.pos)
        matrix, inputs = states.read(x_BTD)
        mixed, inputs = self.conv(self.qkv(x_BTD), inputs, ctx.pos, columns)
        keys = s.kv_heads * s.key_dim
        q, k, v = F.silu(mixed).split((keys, keys, s.heads * s.value_dim), dim=-1)
        z, b, a = self.gates(x_BTD).split((s.heads * s.value_dim, s.heads, s.heads), dim=-1)
        wide = matrix.dtype
        g = -self.A_log.to(wide).exp() * F.softplus(a.to(wide) + self.dt_bias)
        q, k = (unit(t.unflatten(-1, (s.kv_heads, -1))).repeat_interleave(s.heads // s.kv_heads, 2) for t in (q, k))
        v = v.unflatten(-1, (s.heads, -1))
        out, matrices = delta_rule(q, k, v, g, b.sigmoid(), matrix, ctx.pos, columns)
        states.write(ctx.pos, columns, list(zip(matrices, inputs, strict=True)))
        gated = self.norm(out.to(x_BTD.dtype)) * F.silu(z.unflatten(-1, (s.heads, -1)))
        return self.out(gated.flatten(2))

    def activations(self) -> dict[str, ActivationColumns]:
        """Queries, keys and values stand before the convolution, heads after norm and gate."""
        s = self.state_shape
        keys, values = s.kv_heads * s.key_dim, s.heads * s.value_dim
        return {
            "q": ActivationColumns("qkv", 0, keys, s.kv_heads),
            "k": ActivationColumns("qkv", keys, keys, s.kv_heads),
            "v": ActivationColumns("qkv", 2 * keys, values, s.heads),
            "heads": head_outputs(s),
        }

    def mixing_operations(self, size: PassSize) -> dict[str, int]:
        s, tokens = self.state_shape, size.tokens
        return {
            "projections": linear_operations(self.qkv, tokens) + linear_operations(self.gates, tokens),
            **delta_rule_operations(size, s, by_channel=False),
            "output": linear_operations(self.out, tokens),
        }


def unit(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + EPS)


ENTRY = Entry(
    "gated-delta",
    GatedDelta,
    "Gated delta rule",
    "One matrix for each head, corrected by every token: the cache has the same size at any length (Yang et al. 2024).",
    default=lambda heads: GatedDelta(heads or 1),
    variants={
        "gated-delta": lambda size: GatedDelta(size.heads, size.norm, key_heads=size.heads // 2, value_dim=6),
    },
)
