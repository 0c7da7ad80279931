"""A block: sublayers, each inside a residual connection. Norms that are not there are identities."""

from __future__ import annotations

from torch import Tensor, nn

from vantage.model.part_errors import build_norm
from vantage.spec.model import Layer, Parallel, Wiring
from vantage.spec.native import CannotLower, Program
from vantage.spec.parts import Context


class Residual(nn.Module):
    """outer(kept · x + after(f(before(x))))."""

    def __init__(self, sublayer: nn.Module, wiring: Wiring, layer: Layer, width: int):
        super().__init__()

        bare = bool(getattr(sublayer, "adds_nothing", False))

        def norm(wanted: bool) -> nn.Module:
            return build_norm(layer.norm, width) if wanted and not bare else nn.Identity()

        self.before, self.after, self.outer = norm(wiring.before), norm(wiring.after), norm(wiring.outer)
        self.sublayer, self.normed, self.kept = sublayer, wiring.normed, wiring.kept
        self.dropout = nn.Dropout(layer.dropout)

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        normed = self.before(x)
        kept = normed if self.normed else x
        kept = kept if self.kept == 1.0 else self.kept * kept
        return self.outer(kept + self.dropout(self.after(self.sublayer(normed, ctx))))

    def native(self, program: Program, src: int, into: int | None) -> int:
        if self.kept != 1.0:
            raise CannotLower(f"a residual of {self.kept} times the input has no native form")
        normed = program.lower(self.before, src)
        kept = normed if self.normed else src
        if isinstance(self.after, nn.Identity) and isinstance(self.outer, nn.Identity) and kept == src:
            return program.lower(self.sublayer, normed, src)  # the sum is made in place
        out = program.lower(self.after, program.lower(self.sublayer, normed))
        if isinstance(self.outer, nn.Identity):
            program.add(src, kept, out)
            return src
        total = program.buffer("sum", program.width(src))
        program.add(total, kept, out)
        program.norm(self.outer, total, src)
        return src


class Side(nn.Module):
    """Sublayers side by side on one input: x + f(norm(x)) + g(norm(x)), with one norm or one each."""

    def __init__(self, sublayers: list[nn.Module], wiring: Parallel, layer: Layer, width: int):
        super().__init__()
        norms = [build_norm(layer.norm, width) for _ in range(wiring.norms)]
        self.norms = nn.ModuleList(norms)
        self.sublayers = nn.ModuleList(sublayers)
        self.dropout = nn.Dropout(layer.dropout)

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        normed = [norm(x) for norm in self.norms]
        parts = [f(normed[min(i, len(normed) - 1)], ctx) for i, f in enumerate(self.sublayers)]
        dropped = [self.dropout(part) for part in parts]  # each for itself, as GPT-NeoX and GPT-J do
        return x + sum(dropped[1:], dropped[0])

    def native(self, program: Program, src: int, into: int | None) -> int:
        normed = [program.buffer(f"normed {i}", program.width(src)) for i in range(len(self.norms))]
        for norm, dst in zip(self.norms, normed, strict=True):
            program.norm(norm, src, dst)
        for i, sublayer in enumerate(self.sublayers):
            program.lower(sublayer, normed[min(i, len(normed) - 1)], src)
        return src


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

    @property
    def sublayers(self) -> list[nn.Module]:
        return [step.get_submodule("sublayer") for step in self.steps]

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        for step in self.steps:
            x = step(x, ctx)
        return x

    def native(self, program: Program, src: int, into: int | None) -> int:
        for step in self.steps:
            src = program.lower(step, src)
        return src
