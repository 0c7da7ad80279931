"""Many small models as one program: models of one shape, with their own weights, data and learning rates.

On a GPU a small model leaves most of the machine idle. Here a stack of n of them is one model whose every weight has
a first dimension of n, through ``torch.func``; a step of the stack is a step of each, and no model sees another. On a
CPU a small model fills a core by itself, so there a stack is trained one model after the other, and the cores share
out the stacks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from vantage.compare.example_cache import CachedExamples
from vantage.compare.text import Reading
from vantage.model import Model, build
from vantage.model.maps import parameter_kinds
from vantage.position.randomised import Randomised
from vantage.spec.model import ModelSpec
from vantage.spec.positions import Known, Positions
from vantage.training.batch import IGNORE, Batch, random
from vantage.training.sequences import PAD, Sequences

Weights = dict[str, Tensor]
Examples = Sequences | CachedExamples | Reading
OnStep = Callable[[int, Tensor], None]  # called with the steps that are done, and the losses (n,) of the last


@dataclass(frozen=True)
class Recipe:
    """How every model of a stack is trained; the learning rates are the models' own."""

    steps: int
    batch: int = 64
    warmup: float = 0.05  # a share of the steps
    weight_decay: float = 0.01
    betas: tuple[float, float] = (0.9, 0.98)
    clip: float = 1.0
    eps: float = 1e-8

    def rate(self, step: int) -> float:
        """The factor of the learning rate: a warm-up, then half a cosine down to 0."""
        warm = max(1, round(self.steps * self.warmup))
        if step < warm:
            return (step + 1) / warm
        return (1 + math.cos(math.pi * (step - warm) / max(1, self.steps - warm))) / 2


class Stack:
    """n models of one spec. ``seeds`` are those of their weights, ``data`` what each one learns."""

    def __init__(
        self,
        spec: ModelSpec,
        seeds: Sequence[int],
        data: Sequence[Examples],
        rates: Sequence[float],
        recipe: Recipe,
        device: torch.device,
        compiled: bool = False,
    ):
        self.base = build(spec, seed=0).to(device).train()
        models = [build(spec, seed=seed) for seed in seeds]
        self._flat, self.weights = _stacked(models, device)
        self.data, self.recipe, self.device, self.n = list(data), recipe, device, len(models)
        self.seeds = list(seeds)
        self._rates = torch.tensor(list(rates), device=device)
        kinds = parameter_kinds(self.base)
        decays = [w.new_full((w[0].numel(),), kinds[name] in ("matrix", "head")) for name, w in self.weights.items()]
        self._decay = torch.cat(decays).detach() * recipe.weight_decay
        self._first, self._second = torch.zeros_like(self._flat), torch.zeros_like(self._flat)
        each = self._loss_function()
        self._losses: Callable[..., Tensor] = torch.compile(each) if compiled else each

    def _loss_function(self) -> Callable[..., Tensor]:
        sampler = self.base.spec.sampler
        known = Known(pos=(0, sampler.high - 1)) if isinstance(sampler, Randomised) else Known()

        def one(weights: Weights, tokens: Tensor, targets: Tensor, place: tuple[Tensor, Tensor] | None) -> Tensor:
            positions = None if place is None else Positions(*place, known=known)
            logits = functional_call(self.base, weights, (tokens,), {"positions": positions})
            return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORE)

        if self.n == 1:
            return lambda w, *rest: one({k: v[0] for k, v in w.items()}, *(_first(x) for x in rest))[None]
        return lambda w, t, y, p: vmap(one, in_dims=(0, 0, 0, None if p is None else 0))(w, t, y, p)

    def train(self, on_step: OnStep = lambda step, losses: None) -> Tensor:
        """Train all of them; the mean loss of the last tenth, (n,). A model that diverged has one that is no number."""
        last_losses: list[Tensor] = []
        for step in range(self.recipe.steps):
            losses = self._step(step)
            if step >= 0.9 * self.recipe.steps - 1:
                last_losses.append(losses)
            on_step(step + 1, losses)
        return torch.stack(last_losses).mean(0)

    def _step(self, step: int) -> Tensor:
        tokens, targets, positions = self.batch(step)
        with sdpa_kernel(SDPBackend.MATH):  # the others have no rule for a dimension of models, or for a learned bias
            losses = self._losses(self.weights, tokens, targets, positions)
            # an indexer's choice has no gradient: its weights stay as they are
            grads = torch.autograd.grad(losses.sum(), list(self.weights.values()), materialize_grads=True)
        self._update(step, torch.cat([g.reshape(self.n, -1) for g in grads], 1))
        return losses.detach()

    @torch.no_grad()
    def _update(self, step: int, grad_nP: Tensor) -> None:
        """AdamW, with gradients clipped for each model by its own norm."""
        r, (b1, b2) = self.recipe, self.recipe.betas
        norm_n1 = grad_nP.square().sum(1, keepdim=True).sqrt()
        rate_n1 = self._rates[:, None] * r.rate(step)
        grad_nP = grad_nP * (r.clip / norm_n1.clamp_min(1e-12)).clamp_max(1.0)
        self._first.lerp_(grad_nP, 1 - b1)
        self._second.mul_(b2).addcmul_(grad_nP, grad_nP, value=1 - b2)
        self._flat.mul_(1 - rate_n1 * self._decay)
        spread = (self._second / (1 - b2 ** (step + 1))).sqrt_().add_(r.eps)
        self._flat.sub_(rate_n1 * (self._first / (1 - b1 ** (step + 1))).div_(spread))

    def batch(self, step: int) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor] | None]:
        """Each model's examples of a step, (n, B, T), and where they stand if they do not run from 0."""
        first = step * self.recipe.batch
        indices = range(first, first + self.recipe.batch)
        batch_of: dict[int, Batch] = {}
        for data in self.data:  # models with the same seed share their data
            if id(data) not in batch_of:
                batch_of[id(data)] = data.batch(indices)
        batches = [batch_of[id(data)] for data in self.data]
        tokens, targets, order = _together(batches)
        positions = None if order is None else (order, order)
        if self.base.spec.sampler is not None:
            positions = self._draw_positions(step, batches, tokens.shape[2])
        if positions is not None:
            positions = (positions[0].to(self.device), positions[1].to(self.device))
        return tokens.to(self.device), targets.to(self.device), positions

    def _draw_positions(self, step: int, batches: Sequence[Batch], width: int) -> tuple[Tensor, Tensor]:
        """Random positions, drawn for each model from its own numbers: alone or in a stack it draws the same."""
        sampler = self.base.spec.sampler
        assert sampler is not None
        drawn = []
        for seed, batch in zip(self.seeds, batches, strict=True):
            torch.manual_seed(int(random(seed, step).integers(2**62)))
            rows, own = batch.tokens.shape
            plain = Positions.arange(rows, own) if batch.positions is None else batch.positions
            drawn.append(F.pad(sampler.draw(plain).pos, (0, width - own)))  # what stands beyond is never asked
        order = torch.arange(width).expand(len(drawn), len(drawn[0]), width)
        return torch.stack(drawn), order

    @torch.no_grad()
    def logits_of(self, i: int, batch: Batch) -> Tensor:
        """What model i says, (B, T, V)."""
        weights = {name: w[i] for name, w in self.weights.items()}
        with sdpa_kernel(SDPBackend.MATH):
            return functional_call(self.base, weights, (batch.tokens,), {"positions": batch.positions})


def train_in_turn(
    make: Callable[[int], Stack], n: int, on_step: OnStep = lambda step, losses: None
) -> tuple[list[Stack], Tensor]:
    """The models of a stack one after the other: the same results, for a CPU."""
    stacks, losses = [], []
    for i in range(n):
        stack = make(i)
        losses.append(stack.train(lambda step, now, i=i, s=stack: on_step(i * s.recipe.steps + step, now)))
        stacks.append(stack)
    return stacks, torch.cat(losses)


def _stacked(models: Sequence[Model], device: torch.device) -> tuple[Tensor, Weights]:
    """All weights of each model in one row, (n, P), and each weight as a view of it: one update serves them all."""
    flat = torch.stack([torch.cat([p.detach().flatten() for p in model.parameters()]) for model in models]).to(device)
    own = dict(models[0].named_parameters())
    parts = flat.split([p.numel() for p in own.values()], 1)
    shaped = (part.view(len(models), *p.shape) for part, p in zip(parts, own.values(), strict=True))
    return flat, {name: w.detach().requires_grad_() for name, w in zip(own, shaped, strict=True)}


def _first(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(one[0] for one in value)
    return value if value is None else value[0]


def _together(batches: Sequence[Batch]) -> tuple[Tensor, Tensor, Tensor | None]:
    width = max(batch.tokens.shape[1] for batch in batches)

    def wide(t: Tensor, fill: int) -> Tensor:
        return F.pad(t, (0, width - t.shape[1]), value=fill)

    tokens = torch.stack([wide(b.tokens, PAD) for b in batches])
    targets = torch.stack([wide(b.targets, IGNORE) for b in batches])
    positions = [b.positions for b in batches]
    if positions[0] is None:
        return tokens, targets, None
    return tokens, targets, torch.stack([wide(p.order, -1) for p in positions if p is not None])
