"""Which kernel each layer of a model would run, and why not another.

Nothing is computed. Tensors are torch's fake ones, which have a shape, a dtype and a device, and kernels are asked, not
called: a context of 128k takes no memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, final

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call

from vantage.cache import no_caches
from vantage.errors import Refused
from vantage.inspect.sites import Site, sites_of
from vantage.kernels import chooser, explain
from vantage.model import Model
from vantage.model.lowered.choice import step_choice
from vantage.model.packed import PackedLinear
from vantage.spec.devices import generation_device
from vantage.spec.native import AsksHost
from vantage.spec.parts import Attended, Context, Kernel, Need, View
from vantage.spec.positions import Pair, Positions

STEP = "a step with a cache"


@final
@dataclass(frozen=True)
class KernelChoice:
    """One attention module. ``others``: why each other kernel does not run, by name."""

    site: str
    kernel: str
    others: dict[str, str]


@final
class Asked:
    """Stands where a kernel would run, and gives an output of its shape."""

    def __init__(self, name: str):
        self.name = name

    def refuses(self, need: Need, q: Tensor, view: View) -> str | None:
        return None

    def __call__(self, q_BHTd: Tensor, view: View, pair: Pair, need: Need) -> Attended:
        return Attended(q_BHTd.new_empty(*q_BHTd.shape[:3], view.v.shape[-1]))


@final
class Blocks(nn.Module):
    """A model between its embedding and its head."""

    def __init__(self, model: Model):
        super().__init__()
        self.blocks, self.spec = model.blocks, model.spec

    def forward(self, x_BTD: Tensor, pos: Positions) -> Tensor:
        none = no_caches(self.spec, None, x_BTD.dtype)  # of layers that keep more than keys and values as well
        ctx = Context(pos, chooser("auto"), none, none)
        for block in self.blocks:
            x_BTD = block(x_BTD, ctx)
        return x_BTD


def kernel_choices(
    model: Model,
    *,
    context: int = 2048,
    batch: int = 1,
    device: str | None = None,
    dtype: torch.dtype | None = None,
    train: bool = False,
    supposed: bool = False,
) -> list[KernelChoice]:
    """What ``kernel="auto"`` takes in one pass over so many tokens, in every layer. ``device=None``: a GPU if there is
    one. ``supposed``: the pass stays on a CPU, and kernels are asked as if it were on that device, which need not be
    there."""
    device = device or generation_device().type
    asked = device if supposed and device != "cpu" else None
    device = device if asked is None else "cpu"
    if device == "cuda" and not torch.cuda.is_available():
        raise Refused("there is no GPU here to ask for: leave the device out, or say cpu")
    if model.encoder is not None:
        raise Refused("an encoder-decoder also reads a source: inspect its encoder and its decoder separately")
    if any(isinstance(module, PackedLinear) for module in model.modules()):
        raise Refused(
            "quantised weights run native code, which has no kernel to choose: load the model with dtype=torch.float32"
        )
    choices: list[KernelChoice] = []
    sites = sites_of(model)
    handles = [site.module.register_forward_pre_hook(partial(_ask, site, choices, asked)) for site in sites]
    try:
        with (
            FakeTensorMode(allow_non_fake_inputs=True),
            torch.set_grad_enabled(train),
            _without_experts(model.blocks),
        ):
            blocks = Blocks(model)
            weights = (*blocks.named_parameters(), *blocks.named_buffers())  # each once, whatever shares it
            state = {name: _fake(x, device, dtype, train) for name, x in weights}
            kind = dtype or next(model.parameters()).dtype
            x = torch.empty(batch, context, model.spec.residual_width, dtype=kind, device=device)
            functional_call(blocks, state, (x, Positions.arange(batch, context, device=device)))
    finally:
        for handle in handles:
            handle.remove()
    return choices


@contextmanager
def _without_experts(blocks: nn.Module) -> Iterator[None]:
    """Parts that read numbers to know what to do cannot run without any; no kernel depends on them."""
    parents = [(parent, name, child) for parent in blocks.modules() for name, child in parent.named_children()]
    read = [(parent, name, child) for parent, name, child in parents if isinstance(child, AsksHost)]
    for parent, name, _ in read:
        setattr(parent, name, Unchanged())
    try:
        yield
    finally:
        for parent, name, child in read:
            setattr(parent, name, child)


@final
class Unchanged(nn.Module):
    def forward(self, x_BTD: Tensor, ctx: Context) -> Tensor:
        return x_BTD


def step_kernel(model: Model, device: str | None = None) -> KernelChoice:
    """Which way a step with a cache runs, in the place of a kernel."""
    way = step_choice(model, device or generation_device().type)
    return KernelChoice(STEP, way.name, way.others)


def _fake(x: Any, device: str, dtype: torch.dtype | None, train: bool) -> Tensor:
    """With a gradient on a CPU alone: torch has no autograd for a device that it was not built for."""
    kind = dtype if dtype is not None and x.is_floating_point() else x.dtype
    learns = train and device == "cpu" and x.is_floating_point()
    return torch.empty(x.shape, dtype=kind, device=device, requires_grad=learns)


def _ask(
    site: Site, choices: list[KernelChoice], asked: str | None, module: nn.Module, args: tuple[Tensor, Context]
) -> tuple[Tensor, Context]:
    x, ctx = args

    def choose(need: Need, q: Tensor, view: View) -> Kernel:
        if asked is not None:
            q, k, v = (torch.empty(one.shape, dtype=one.dtype, device=asked) for one in (q, view.k, view.v))
            view = view._replace(k=k, v=v)
        reasons = explain(need, q, view)
        name = next(name for name, why in reasons.items() if why == "runs")
        choices.append(KernelChoice(site.name, name, {other: why for other, why in reasons.items() if other != name}))
        return Asked(name)

    return x, replace(ctx, choose=choose)
