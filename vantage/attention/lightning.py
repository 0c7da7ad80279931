"""Lightning attention (Qin et al. 2024; MiniMax-01): linear attention whose heads fade at fixed rates, as ALiBi's do.

S ← e^(-slope) S + k ⊗ v; o = qᵀS, with q, k and v behind SiLU and no softmax. Written out, key j has the weight
e^(-slope · (i - j)) q_i·k_j. The state has the same size whatever the length. Padding leaves it as it is, and a
document begins with an empty one.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vantage.attention.convolution import check_goes_forward
from vantage.attention.differential import UnitLength
from vantage.attention.head_width import head_width
from vantage.attention.scorer import head_outputs
from vantage.attention.state_space import state_space, state_space_operations
from vantage.errors import BadInput, Refused
from vantage.spec.attention import ActivationColumns, Pieces
from vantage.spec.kept import StateShape
from vantage.spec.model import BuildContext, CacheShape, NormConfig
from vantage.spec.operations import PassSize, linear_operations
from vantage.spec.parts import Context, Shape
from vantage.spec.registry import Entry


@dataclass(frozen=True)
class Lightning:
    """``heads`` heads of queries, keys and values of one width; head h of H fades by 2^(-8h/H), h from 1 on."""

    heads: int
    norm: NormConfig | None = None  # of all heads together, before the gate; None: RMS without weights
    head_dim: int | None = None  # None: width / heads
    rate: float = 1.0  # what the slopes are multiplied by: MiniMax's are smaller in later layers

    def __post_init__(self) -> None:
        if self.rate < 0:
            raise BadInput(f"rate={self.rate}: a state that grows with every token has no end; give 0 or more")

    def shape(self, width: int) -> Shape:
        head_dim = head_width(width, self.heads, self.head_dim)
        return Shape(width, self.heads, self.heads, head_dim, head_dim, 0)

    def cache_shape(self, width: int) -> CacheShape:
        s = self.shape(width)
        return CacheShape.of_states(StateShape((s.heads, s.key_dim, s.value_dim), wide=True))

    def describe(self, width: int) -> tuple[str, ...]:
        s = self.shape(width)
        return (f"lightning attention, {s.heads} × {s.key_dim} × {s.value_dim}",)

    def build(self, width: int, context: BuildContext) -> nn.Module:
        return LightningAttention(self, self.shape(width), context)

    def build_cross(self, width: int, context: BuildContext) -> nn.Module:
        raise Refused("lightning attention has no cross-attention: use GroupedQuery there")


class LightningAttention(nn.Module):
    def __init__(self, config: Lightning, shape: Shape, context: BuildContext):
        super().__init__()
        check_goes_forward(context, "lightning attention")
        s = self.state_shape = shape
        self.index = context.index
        self.slopes = lightning_slopes(s.heads, config.rate)
        channels = s.heads * s.key_dim
        self.widths = (channels,) * 3
        self.qkv = context.linear(s.width, sum(self.widths), False)
        self.gate = context.linear(s.width, channels, False)
        self.norm = UnitLength() if config.norm is None else config.norm.build(channels)
        self.out = context.linear(channels, s.width, False)

    def forward(self, x_BTD: Tensor, ctx: Context) -> Tensor:
        s, states = self.state_shape, ctx.caches[self.index].states
        columns = states.wanted(ctx.pos)
        (matrix,) = states.read(x_BTD)
        q, k, v = (t.unflatten(-1, (s.heads, -1)) for t in F.silu(self.qkv(x_BTD)).split(self.widths, dim=-1))
        rate = -torch.tensor(self.slopes, dtype=matrix.dtype, device=matrix.device)
        every = matrix.new_ones(1, 1, 1).expand(*x_BTD.shape[:2], s.heads)  # each token takes one step
        out, matrices = state_space(v, every, rate, k, q, matrix, ctx.pos, columns)
        states.write(ctx.pos, columns, [(m,) for m in matrices])
        return self.out(self.norm(out.flatten(2).to(x_BTD.dtype)) * self.gate(x_BTD).sigmoid())

    def projections(self) -> dict[str, Pieces]:
        return {"qkv": tuple(zip("qkv", self.widths, strict=True))}

    def activations(self) -> dict[str, ActivationColumns]:
        """Queries, keys and values stand before SiLU, heads after norm and gate."""
        s, (channels, *_) = self.state_shape, self.widths
        columns = {name: ActivationColumns("qkv", i * channels, channels, s.heads) for i, name in enumerate("qkv")}
        return columns | {"heads": head_outputs(s)}

    def mixing_operations(self, size: PassSize) -> dict[str, int]:
        s, tokens = self.state_shape, size.tokens
        return {
            "projections": linear_operations(self.qkv, tokens) + linear_operations(self.gate, tokens),
            **state_space_operations(size, s),
            "output": linear_operations(self.out, tokens),
        }


def lightning_slopes(heads: int, rate: float = 1.0) -> tuple[float, ...]:
    """ALiBi's where their number is a power of two; for others ALiBi mixes two such rows, which this does not."""
    return tuple(rate * 2 ** (-8 * (h + 1) / heads) for h in range(heads))


ENTRY = Entry(
    "lightning",
    Lightning,
    "Lightning attention",
    "Linear attention whose heads fade at fixed rates; its cache has the same size at any length (MiniMax-01).",
    default=lambda heads: Lightning(heads or 1),
    variants={"lightning": lambda size: Lightning(size.heads, size.norm, head_dim=6)},
)
