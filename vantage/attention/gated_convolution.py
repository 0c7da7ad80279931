"""LFM2's token mixer: a short convolution between two gates. It keeps the last few inputs and no keys."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from vantage.attention.convolution import ShortConvolution, check_goes_forward
from vantage.errors import BadInput, Refused
from vantage.spec.kept import StateShape
from vantage.spec.model import BuildContext, CacheShape
from vantage.spec.operations import PassSize, linear_operations
from vantage.spec.parts import Context, Shape
from vantage.spec.registry import Entry


@dataclass(frozen=True)
class GatedConvolution:
    """C ⊙ conv(B ⊙ x), B, C and x being maps of the input (Liquid AI 2025)."""

    taps: int = 3
    bias: bool = False

    def __post_init__(self) -> None:
        if self.taps < 2:
            raise BadInput(f"taps={self.taps}: a convolution over time has at least 2")

    def shape(self, width: int) -> Shape:
        return Shape(width, 1, 1, width, width, 0)

    def cache_shape(self, width: int) -> CacheShape:
        return CacheShape.of_states(StateShape((self.taps - 1, width)))

    def describe(self, width: int) -> tuple[str, ...]:
        return (f"gated convolution over {self.taps} tokens",)

    def build(self, width: int, context: BuildContext) -> nn.Module:
        return GatedConvolutionMixer(self, width, context)

    def build_cross(self, width: int, context: BuildContext) -> nn.Module:
        raise Refused("a convolution has no cross-attention: use GroupedQuery there")


class GatedConvolutionMixer(nn.Module):
    def __init__(self, config: GatedConvolution, width: int, context: BuildContext):
        super().__init__()
        check_goes_forward(context, "a convolution")
        self.index = context.index
        self.maps = context.linear(width, 3 * width, config.bias)
        self.conv = ShortConvolution(width, config.taps, bias=config.bias)
        self.out = context.linear(width, width, config.bias)

    def forward(self, x_BTD: Tensor, ctx: Context) -> Tensor:
        before, after, x = self.maps(x_BTD).chunk(3, dim=-1)
        states = ctx.caches[self.index].states
        columns = states.wanted(ctx.pos)
        mixed, kept = self.conv(before * x, *states.read(x_BTD), ctx.pos, columns)
        states.write(ctx.pos, columns, [(inputs,) for inputs in kept])
        return self.out(after * mixed)

    def mixing_operations(self, size: PassSize) -> dict[str, int]:
        tokens = size.tokens
        return {"projections": linear_operations(self.maps, tokens), "output": linear_operations(self.out, tokens)}


ENTRY = Entry(
    "gated-convolution",
    GatedConvolution,
    "Gated convolution",
    "A short convolution between two gates; the cache keeps its last inputs alone (LFM2).",
    default=lambda heads: GatedConvolution(),
)
