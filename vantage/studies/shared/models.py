"""Random numbers, small models whose every part shows, counting where work is done, and a published model."""

from __future__ import annotations

import contextlib
import functools
from collections import Counter
from collections.abc import Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from vantage.checkpoints.pull import place
from vantage.errors import Refused
from vantage.kernels import kernel_named
from vantage.model import Model, build
from vantage.spec.model import ModelSpec
from vantage.spec.parts import Attended, Need, View
from vantage.spec.positions import Pair

M = TypeVar("M", bound=nn.Module)

F64 = torch.float64
ROUNDING = 1e-12  # what float64 may lose in a small model
SMALLEST_SHOWN = 1e-17  # stands for an exact 0 on a logarithmic axis


def random_normal(*shape: int, seed: int = 0, dtype: torch.dtype = F64) -> Tensor:
    """Normal numbers from a seed, drawn in float64."""
    return torch.randn(*shape, dtype=F64, generator=torch.Generator().manual_seed(seed)).to(dtype)


def random_tokens(count: int, vocab: int, seed: int = 0, rows: int = 1) -> Tensor:
    return torch.randint(vocab, (rows, count), generator=torch.Generator().manual_seed(seed))


def max_difference(a: Tensor, b: Tensor) -> float:
    return float((a - b).abs().max())


def on_log_axis(error: float) -> float:
    """An error for a logarithmic axis, which has no 0."""
    return max(error, SMALLEST_SHOWN)


# ---- small models


def sharp_model(spec: ModelSpec, seed: int = 0) -> Model:
    """A model in float64 with weights so large that every part shows: a fresh model's are too small."""
    model = build(spec, seed=seed).double().requires_grad_(False)
    return sharpen(model, seed)


@torch.no_grad()
def sharpen(module: M, seed: int = 0) -> M:
    """Weights from a seed, so large that every part shows in the output."""
    generator = torch.Generator().manual_seed(seed)
    for p in module.parameters():
        size = 1.5 * p.shape[-1] ** -0.5 if p.dim() > 1 else 0.5
        p.copy_(torch.randn(p.shape, generator=generator, dtype=F64) * size)
    return module.eval()


@torch.no_grad()
def greedy_tokens(model: Model, first: list[int], steps: int, *, cached: bool) -> list[int]:
    """So many tokens after ``first``, the likeliest each time: with a cache only the new token is read."""
    tokens, cache = torch.tensor([first]), model.new_cache() if cached else None
    for step in range(steps):
        read = tokens if cache is None or step == 0 else tokens[:, -1:]
        tokens = torch.cat([tokens, model(read, cache=cache)[:, -1:].argmax(-1)], 1)
    return tokens[0].tolist()


@contextlib.contextmanager
def count_projections(model: Model) -> Iterator[list[Counter[int]]]:
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
        return kernel_named("reference")(q_BHTd, view, pair, need)


# ---- published models


def require_models(*models: str) -> None:
    """Refused, with what to do, unless these models are on the machine."""
    for name in models:
        if not place(name).is_dir():
            raise Refused(f"this needs the model {name}, which is not on this machine yet: run `vantage pull {name}`")


@functools.cache
def smollm2() -> Model:
    """SmolLM2 in float32, loaded once for all studies of a process. It is shared: nobody may change it."""
    from vantage.families import load

    require_models("smollm2")
    return load("smollm2").eval().requires_grad_(False)
