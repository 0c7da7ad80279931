"""What happened inside one of our models: every module's output, and every attention with all that went into it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, final

import torch
from torch import Tensor, nn

from vantage.kernels import chooser
from vantage.model import Model
from vantage.model.lowered import NATIVE
from vantage.spec.parts import Attended, Kernel, Need, View
from vantage.spec.positions import Pair, Positions

DECLARED = 640  # the length declared for our length-dependent rules where a row does not ask for another
DOCUMENT = 1000  # the row of a document that begins at order n is that of its batch, and so much times n more


def declared_length(model: Model) -> int | None:
    """The length that is declared for a model whose rules depend on it; ``None``: they do not."""
    original = model.spec.original_length
    return None if original is None else max(original, DECLARED)


@final
@dataclass(frozen=True, eq=False)
class Attend:
    """One attention as its kernel met it."""

    kernel: Kernel
    q: Tensor  # (B, H, T, d)
    view: View
    pair: Pair
    need: Need
    out: Tensor  # (B, H, T, d_v)


@final
@dataclass(frozen=True, eq=False)
class ModuleCall:
    """One module's run, in the order in which they end."""

    name: str
    module: nn.Module
    inputs: Tensor | None  # the first argument, where it is a tensor with a place for each token
    output: Tensor


@final
@dataclass(eq=False)
class PassTrace:
    """One pass. ``index`` says which token of its row stands in each column, -1 for padding."""

    index: Tensor  # (B, T)
    rows: Tensor  # (B, T): which row it is of; documents of a packed row count as rows
    calls: list[ModuleCall] = field(default_factory=list)
    attends: list[tuple[int, int, Attend]] = field(default_factory=list)  # layer, how manieth of the layer

    def before(self, place: int) -> PassTrace:
        """The same without the tokens from this place on."""
        return replace(self, index=torch.where(self.index < place, self.index, -1))

    def tokens(self) -> Iterator[tuple[int, int, tuple[int, int]]]:
        """Row and column of this pass, and the token that stands there: its row, and its place in that."""
        for b, (rows, places) in enumerate(zip(self.rows.tolist(), self.index.tolist(), strict=True)):
            for t, (row, place) in enumerate(zip(rows, places, strict=True)):
                if place >= 0:
                    yield b, t, (row, place)


@final
class RecordingKernel:
    """Runs the kernel that would have run, and keeps what went in and out."""

    name = "recording"

    def __init__(self, kernel: str | Kernel):
        self._choose = chooser("auto" if kernel == NATIVE else kernel)
        self.layer, self.into = -1, PassTrace(torch.empty(0, 0), torch.empty(0, 0))

    def refuses(self, need: Need, q: Tensor, view: View) -> str | None:
        return None

    def __call__(self, q_BHTd: Tensor, view: View, pair: Pair, need: Need) -> Attended:
        kernel = self._choose(need, q_BHTd, view)
        attended = kernel(q_BHTd, view, pair, need)
        # a cache goes on to write into what it showed
        kept = view._replace(k=view.k.clone(), v=view.v.clone())
        at = sum(layer == self.layer for layer, _, _ in self.into.attends)
        attend = Attend(kernel, q_BHTd.clone(), kept, pair, need, attended.out.clone())
        self.into.attends.append((self.layer, at, attend))
        return attended


@final
class Tracer:
    """``with Tracer.on(model) as tracer: tracer.run(…)``: the model is left as it was."""

    def __init__(self, model: Model, kernel: RecordingKernel):
        self.model, self._kernel = model, kernel
        self.passes: list[PassTrace] = []

    @staticmethod
    @contextlib.contextmanager
    def on(model: Model) -> Iterator[Tracer]:
        before = model.kernel
        kernel = RecordingKernel(before)
        tracer = Tracer(model, kernel)
        hooks: list[Any] = []
        for i, block in enumerate(model.blocks):
            hooks.append(block.register_forward_pre_hook(lambda module, args, i=i: setattr(kernel, "layer", i)))
        for name, module in model.named_modules():
            if name and not name.startswith("encoder."):
                hooks.append(module.register_forward_hook(lambda m, args, out, n=name: tracer.keep(n, m, args, out)))
        model.kernel = kernel
        try:
            yield tracer
        finally:
            model.kernel = before
            for hook in hooks:
                hook.remove()

    @contextlib.contextmanager
    def reading(self, where: Positions, first_row: int = 0) -> Iterator[PassTrace]:
        """One pass over tokens that stand here, in rows from the first on. A document counts as a row of its own."""
        begins = torch.zeros_like(where.order) if where.segment is None else where.segment
        rows = torch.arange(first_row, first_row + len(begins), device=begins.device)[:, None] + DOCUMENT * begins
        self._kernel.into = trace = PassTrace(torch.where(where.filled, where.order - begins, -1), rows)
        yield trace
        self.passes.append(trace)

    def keep(self, name: str, module: nn.Module, args: Any, output: Any) -> None:
        places = tuple(self._kernel.into.index.shape)
        if not isinstance(output, Tensor) or tuple(output.shape[:2]) != places:
            return
        first = args[0] if args and isinstance(args[0], Tensor) and tuple(args[0].shape[:2]) == places else None
        inputs = None if first is None else first.clone()
        self._kernel.into.calls.append(ModuleCall(name, module, inputs, output.clone()))
