"""What the studies of T and K share: small models that say something, and counting where the work is done."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from vantage.kernels import KERNELS
from vantage.model import Model, build
from vantage.spec.model import ModelSpec
from vantage.spec.parts import Attended, Need, View
from vantage.spec.positions import Pair

F64 = torch.float64


def model_of(spec: ModelSpec, seed: int = 0) -> Model:
    """A model in float64 with weights so large that every part shows: a fresh model's are too small."""
    model = build(spec, seed=seed).double().eval().requires_grad_(False)
    sharpen(model, seed)
    return model


@torch.no_grad()
def sharpen(module: nn.Module, seed: int = 0) -> None:
    generator = torch.Generator().manual_seed(seed)
    for p in module.parameters():
        size = 1.5 * p.shape[-1] ** -0.5 if p.dim() > 1 else 0.5
        p.copy_(torch.randn(p.shape, generator=generator, dtype=F64) * size)


def tokens_of(count: int, vocab: int, seed: int = 0, rows: int = 1) -> Tensor:
    return torch.randint(vocab, (rows, count), generator=torch.Generator().manual_seed(seed))


def vectors(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=F64, generator=torch.Generator().manual_seed(seed))


def apart(a: Tensor, b: Tensor) -> float:
    """The largest difference."""
    return float((a - b).abs().max())


@torch.no_grad()
def greedy(model: Model, first: list[int], steps: int, *, cached: bool) -> list[int]:
    """So many tokens after ``first``, the likeliest each time: with a cache only the new token is read."""
    told, cache = torch.tensor([first]), model.new_cache() if cached else None
    for step in range(steps):
        read = told if cache is None or step == 0 else told[:, -1:]
        told = torch.cat([told, model(read, cache=cache)[:, -1:].argmax(-1)], 1)
    return told[0].tolist()


@contextlib.contextmanager
def projections(model: Model) -> Iterator[list[Counter[int]]]:
    """Counts, in each layer, how often the key of each position is projected while the model runs."""
    counts: list[Counter[int]] = [Counter() for _ in model.blocks]
    hooks = []

    def count_in(layer: Counter[int]) -> Any:
        def count(module: nn.Module, args: tuple[Any, ...]) -> None:
            ctx = args[1]
            for row in ctx.pos.pos.tolist():
                layer.update(row)

        return count

    for block, layer in zip(model.blocks, counts, strict=True):
        attention: Any = next(m for m in block.modules() if "qkv" in dict(m.named_children()))
        hooks.append(attention.register_forward_pre_hook(count_in(layer)))
    try:
        yield counts
    finally:
        for hook in hooks:
            hook.remove()


class CountingKernel:
    """The reference kernel, with a count of the scores that it forms: queries times keys, for every head."""

    name = "counting"

    def __init__(self) -> None:
        self.scores = 0

    def refuses(self, need: Need, q: Tensor, view: View) -> str | None:
        return None

    def __call__(self, q_BHTd: Tensor, view: View, pair: Pair, need: Need) -> Attended:
        B, H, T, _ = q_BHTd.shape
        self.scores += B * H * T * view.k.shape[2]
        return KERNELS["reference"](q_BHTd, view, pair, need)
