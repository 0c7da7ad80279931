"""Value residual (ResFormer, Zhou et al. 2024): every layer's values are mixed with those of the first.

v ← a v + b v_first, a and b fixed (½ and ½) or learned. Deep layers then still read what the tokens themselves are. The
first layer's values are those of the same tokens in the same pass, and what is kept is the mix: caches, masks, kernels
and encodings know nothing of it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from vantage.attention.grouped import GroupedQuery, GroupedQueryAttention
from vantage.errors import BadInput, Refused
from vantage.spec.model import BuildContext, CacheShape, Scores
from vantage.spec.parts import Context, Shape
from vantage.spec.registry import Entry


@dataclass(frozen=True)
class ValueResidual:
    """``own`` and ``first`` are a and b, or where they begin."""

    heads: int
    kv_heads: int | None = None  # None: as many as heads
    head_dim: int | None = None  # None: width / heads
    own: float = 0.5
    first: float = 0.5
    learned: bool = False
    values_of: int = 0  # the layer whose values they are, which has this attention as well
    scores: Scores = Scores()

    def __post_init__(self) -> None:
        if self.values_of < 0:
            raise BadInput(f"values_of={self.values_of}: give the number of a layer, from 0 on")

    @property
    def grouped(self) -> GroupedQuery:
        """Its queries, keys and values."""
        return GroupedQuery(self.heads, self.kv_heads, self.head_dim, scores=self.scores)

    def shape(self, width: int) -> Shape:
        return self.grouped.shape(width)

    def cache_shape(self, width: int) -> CacheShape:
        return self.grouped.cache_shape(width)

    def divided(self, ranks: int, width: int) -> ValueResidual:
        share = self.grouped.divided(ranks, width)
        return replace(self, heads=share.heads, kv_heads=share.kv_heads, head_dim=share.head_dim)

    def describe(self, width: int) -> tuple[str, ...]:
        heads, *scores = self.grouped.describe(width)
        return heads, f"values mixed with layer {self.values_of}'s", *scores

    def build(self, width: int, context: BuildContext) -> nn.Module:
        if context.source is not None:
            raise Refused(f"layer {context.index} reads the values of layer {context.source}, and has none to mix")
        return GroupedQueryAttention(self.grouped, self.shape(width), context, values=ValueMix(self, context.index))

    def build_cross(self, width: int, context: BuildContext) -> nn.Module:
        raise Refused("a value residual is for self-attention only; use GroupedQuery for cross-attention")


class ValueMix(nn.Module):
    """From a layer's own values to those that it keeps."""

    def __init__(self, config: ValueResidual, layer: int):
        super().__init__()
        self.layer, self.values_of = layer, config.values_of
        shares = torch.tensor([config.own, config.first])
        learns = config.learned and layer != config.values_of
        self.learned = nn.Parameter(shares) if learns else None
        self.fixed = (config.own, config.first)

    def forward(self, v_BGTe: Tensor, ctx: Context) -> Tensor:
        if self.layer == self.values_of:
            ctx.values[self.layer] = v_BGTe
            return v_BGTe
        if self.values_of not in ctx.values:
            raise Refused(
                f"layer {self.layer} mixes its values with those of layer {self.values_of}, which has not run in this "
                "pass: run the layers in their order"
            )
        own, first = self.fixed if self.learned is None else self.learned.to(v_BGTe.dtype)
        return own * v_BGTe + first * ctx.values[self.values_of]


ENTRY = Entry(
    "value-residual",
    ValueResidual,
    "Value residual",
    "Values of every layer are mixed with those of the first (ResFormer, Zhou et al. 2024).",
    default=lambda heads: ValueResidual(heads or 1, learned=True),
    variants={
        "value-residual": lambda size: ValueResidual(size.heads, size.heads // 2),
        "value-residual-learned": lambda size: ValueResidual(size.heads, 1, learned=True),
    },
)
