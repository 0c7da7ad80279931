"""A block: sublayers, each inside a residual connection. Norms that are not there are identities."""

from __future__ import annotations

from torch import Tensor, nn

from vantage.spec.model import Layer, Parallel, Wiring
from vantage.spec.parts import Context


class Residual(nn.Module):
    """outer(x + after(f(before(x))))."""

    def __init__(self, sublayer: nn.Module, wiring: Wiring, layer: Layer, width: int):
        super().__init__()

        def norm(there: bool) -> nn.Module:
            return layer.norm.build(width) if there else nn.Identity()

        self.before, self.after, self.outer = norm(wiring.before), norm(wiring.after), norm(wiring.outer)
        self.sublayer, self.normed = sublayer, wiring.normed
        self.dropout = nn.Dropout(layer.dropout)

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        normed = self.before(x)
        kept = normed if self.normed else x
        return self.outer(kept + self.dropout(self.after(self.sublayer(normed, ctx))))


class Side(nn.Module):
    """Sublayers side by side on one input: x + f(norm(x)) + g(norm(x)), with one norm or one each."""

    def __init__(self, sublayers: list[nn.Module], wiring: Parallel, layer: Layer, width: int):
        super().__init__()
        norms = [layer.norm.build(width) for _ in range(wiring.norms)]
        self.norms = nn.ModuleList(norms)
        self.sublayers = nn.ModuleList(sublayers)
        self.dropout = nn.Dropout(layer.dropout)

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        normed = [norm(x) for norm in self.norms]
        parts = [f(normed[min(i, len(normed) - 1)], ctx) for i, f in enumerate(self.sublayers)]
        return x + self.dropout(sum(parts[1:], parts[0]))


def wire(sublayers: list[nn.Module], layer: Layer, width: int) -> nn.Module:
    """Self-attention, cross-attention if any, and feed-forward, wired as the layer says."""
    if isinstance(layer.wiring, Parallel):
        return Side(sublayers, layer.wiring, layer, width)
    return Chain([Residual(sublayer, layer.wiring, layer, width) for sublayer in sublayers])


class Chain(nn.Module):
    """One after the other."""

    def __init__(self, steps: list[nn.Module]):
        super().__init__()
        self.steps = nn.ModuleList(steps)

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        for step in self.steps:
            x = step(x, ctx)
        return x
