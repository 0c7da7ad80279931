"""Attention modules on their own: a context, a cache that does as little as possible, sharp weights."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from vantage.attention import NoBias
from vantage.kernels import chooser
from vantage.model.linear import dense
from vantage.spec.masks import Causal, Everything, Mask
from vantage.spec.model import AttentionConfig, BuildContext
from vantage.spec.parts import Cache, Context, EncoderOutput, Parts, Shape, View
from vantage.spec.positions import Positions

F64 = torch.float64


class Listing:
    """The simplest cache there is: it puts new keys and values behind the old ones."""

    late = False

    def __init__(self) -> None:
        self.held: View | None = None

    def append(self, pos: Positions, k_BGTd: Tensor, v_BGTe: Tensor) -> View:
        if self.held is not None:
            old = self.held
            k_BGTd, v_BGTe = torch.cat([old.k, k_BGTd], 2), torch.cat([old.v, v_BGTe], 2)
            order = torch.cat([old.pos.order, pos.order], 1)
            pos = Positions.of(torch.cat([old.pos.pos, pos.pos], 1), order=order)
        self.held = View(k_BGTd, v_BGTe, pos)
        return self.held

    def view(self) -> View:
        assert self.held is not None
        return self.held


class Forgetting:
    """Keeps nothing, as in training."""

    late = False

    def append(self, pos: Positions, k_BGTd: Tensor, v_BGTe: Tensor) -> View:
        return View(k_BGTd, v_BGTe, pos)

    def view(self) -> View:
        raise AssertionError("nothing is held")


class ShapeRecord:
    """A part that changes nothing and keeps the shapes it was built for."""

    def __init__(self) -> None:
        self.shapes: list[Shape] = []

    def build(self, shape: Shape) -> nn.Module:
        self.shapes.append(shape)
        return nn.Identity()


def build_context(
    mask: Mask | None = None,
    *,
    parts: Parts = Parts(),
    config: AttentionConfig | None = None,
    width: int = 0,
    index: int = 0,
) -> BuildContext:
    """What a module is built with: an encoding's parts, built for its shape."""
    shape = None if config is None else config.shape(width)

    def built(part):
        assert shape is not None
        return part.build(shape)

    return BuildContext(
        index,
        Causal() if mask is None else mask,
        tuple(built(part) for part in parts.qk),
        NoBias() if parts.bias is None else built(parts.bias),
        None if parts.value_bias is None else built(parts.value_bias),
        dense,
    )


def attention(
    config: AttentionConfig,
    width: int,
    mask: Mask | None = None,
    *,
    parts: Parts = Parts(),
    cross: bool = False,
    dtype: torch.dtype = F64,
    seed: int = 0,
) -> nn.Module:
    """A module with sharp random weights."""
    given = build_context(Everything() if cross and mask is None else mask, parts=parts, config=config, width=width)
    module = (config.build_cross if cross else config.build)(width, given)
    return sharpen(module.to(dtype), seed)


def sharpen(module: nn.Module, seed: int = 0) -> nn.Module:
    gen = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in module.parameters():
            p.copy_(
                torch.randn(p.shape, generator=gen, dtype=F64) * (1.5 * p.shape[-1] ** -0.5 if p.dim() > 1 else 0.5)
            )
    return module.eval()


def context(
    pos: Positions,
    *,
    kernel: str = "reference",
    caches: Sequence[Cache] | None = None,
    cross: Sequence[Cache] | None = None,
    memory: EncoderOutput | None = None,
    watch: Callable[..., None] | None = None,
) -> Context:
    nothing = (Forgetting(),)
    caches, cross = nothing if caches is None else caches, nothing if cross is None else cross
    return Context(pos, chooser(kernel), caches, cross, memory, watch)


def run(module: nn.Module, x: Tensor, *, pos: Positions | None = None, **options) -> Tensor:
    """One pass over x (B, T, D) from position 0."""
    return module(x, context(Positions.arange(*x.shape[:2]) if pos is None else pos, **options))


def vectors(*shape: int, seed: int = 0, dtype: torch.dtype = F64) -> Tensor:
    return torch.randn(*shape, dtype=F64, generator=torch.Generator().manual_seed(seed)).to(dtype)


def set_qkv(module: nn.Module, q: Tensor, k: Tensor, v: Tensor, out: Tensor | None = None) -> None:
    """Set projections written for row vectors, x W. ``out=None``: the identity."""
    with torch.no_grad():
        module.qkv.weight.copy_(torch.cat([q, k, v], 1).T)
        module.out.weight.copy_(torch.eye(*module.out.weight.shape) if out is None else out.T)


def check_gradients(module: nn.Module, call: Callable[..., Tensor], *inputs: Tensor) -> None:
    """torch.autograd.gradcheck over all parameters and the inputs. ``call(module, *inputs)`` runs it."""
    names = [name for name, _ in module.named_parameters()]
    values = [p.detach().clone().requires_grad_() for p in module.parameters()]
    given = [x.detach().clone().requires_grad_() for x in inputs]
    shell = _Shell(copy.deepcopy(module), call)

    def function(*args: Tensor) -> Tensor:
        weights = {f"part.{name}": value for name, value in zip(names, args, strict=False)}
        return torch.func.functional_call(shell, weights, tuple(args[len(names) :]))

    assert values or given
    assert torch.autograd.gradcheck(function, [*values, *given])


class _Shell(nn.Module):
    def __init__(self, part: nn.Module, call: Callable[..., Tensor]):
        super().__init__()
        self.part, self.call = part, call

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.call(self.part, *inputs)
