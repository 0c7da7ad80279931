"""Canon layers (Allen-Zhu 2025): short convolutions over the tokens before, added to what an attention reads.

x ← x + conv(x) before the maps to queries, keys and values (Canon A), and the same on the queries, keys and values
themselves (Canon B), one filter for each channel and no activation. A convolution tells neighbours apart by itself, so
that a model without any encoding has some position from it. Its last inputs are a state of the layer, beside the keys.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import Tensor, nn

from vantage.attention.convolution import ShortConvolution
from vantage.attention.grouped import GroupedQuery, GroupedQueryAttention
from vantage.errors import BadInput, Refused
from vantage.spec.kept import StateShape
from vantage.spec.model import BuildContext, CacheShape, Scores
from vantage.spec.parts import Context, Shape
from vantage.spec.registry import Entry


@dataclass(frozen=True)
class Canon:
    """``taps`` tokens, the token itself among them. ``before`` is Canon A, ``projected`` Canon B."""

    heads: int
    kv_heads: int | None = None  # None: as many as heads
    head_dim: int | None = None  # None: width / heads
    taps: int = 4
    before: bool = True
    projected: bool = True
    scores: Scores = Scores()

    indivisible = "its convolutions run over a token's whole input and over queries, keys and values of all heads"

    def __post_init__(self) -> None:
        if self.taps < 2:
            raise BadInput(f"taps={self.taps}: a convolution over time has at least 2")
        if not (self.before or self.projected):
            raise BadInput("before=False, projected=False: convolve one of them, or use GroupedQuery")

    @property
    def grouped(self) -> GroupedQuery:
        """Its queries, keys and values."""
        return GroupedQuery(self.heads, self.kv_heads, self.head_dim, scores=self.scores)

    def shape(self, width: int) -> Shape:
        return self.grouped.shape(width)

    def channels(self, width: int) -> tuple[int, ...]:
        """Of what is convolved: the layer's input, and what its map makes of it."""
        s = self.shape(width)
        projected = s.heads * s.key_dim + s.kv_heads * (s.key_dim + s.value_dim)
        return (width,) * self.before + (projected,) * self.projected

    def cache_shape(self, width: int) -> CacheShape:
        states = tuple(StateShape((self.taps - 1, channels)) for channels in self.channels(width))
        return replace(self.grouped.cache_shape(width), states=states)

    def describe(self, width: int) -> tuple[str, ...]:
        heads, *scores = self.grouped.describe(width)
        places = " and ".join(("input",) * self.before + ("q, k and v",) * self.projected)
        return heads, f"convolution over {self.taps} tokens on {places}", *scores

    def build(self, width: int, context: BuildContext) -> nn.Module:
        if context.source is not None:
            raise Refused(f"layer {context.index} reads the keys of layer {context.source}, and keeps no state")
        convolutions = ResidualConvolutions(self, width, context.index)
        return GroupedQueryAttention(self.grouped, self.shape(width), context, convolutions=convolutions)

    def build_cross(self, width: int, context: BuildContext) -> nn.Module:
        raise Refused("Canon layers are for self-attention only; use GroupedQuery for cross-attention")


class ResidualConvolutions(nn.Module):
    """A layer's map, with convolutions added to what it is given and to what it makes."""

    def __init__(self, config: Canon, width: int, layer: int):
        super().__init__()
        self.layer, self.before, self.projected = layer, config.before, config.projected
        self.each = nn.ModuleList(ShortConvolution(n, config.taps) for n in config.channels(width))

    def forward(self, x_BTD: Tensor, project: Callable[[Tensor], Tensor], ctx: Context) -> Tensor:
        states = ctx.caches[self.layer].states
        columns = states.wanted(ctx.pos)
        held, kept = states.read(x_BTD), list[list[Tensor]]()

        def convolved(place: int, x: Tensor) -> Tensor:
            added, last = self.each[place](x, held[place], ctx.pos, columns)
            kept.append(last)
            return x + added

        x_BTD = convolved(0, x_BTD) if self.before else x_BTD
        projected = project(x_BTD)
        projected = convolved(-1, projected) if self.projected else projected
        states.write(ctx.pos, columns, list(zip(*kept, strict=True)))
        return projected


ENTRY = Entry(
    "canon",
    Canon,
    "Canon layers",
    "Short convolutions over the tokens before, added to a layer's input and to its queries, keys and values "
    "(Allen-Zhu 2025).",
    default=lambda heads: Canon(heads or 1),
    variants={
        "canon": lambda size: Canon(size.heads, size.heads // 2, taps=3),
        "canon-projected": lambda size: Canon(size.heads, 1, before=False),
    },
)
