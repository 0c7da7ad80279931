"""A stack of models is each of them alone."""

from __future__ import annotations

import pytest
import torch

from vantage.compare.entries import ModelShape, all_positions, attentions, section
from vantage.compare.stack import Recipe, Stack, train_in_turn
from vantage.model.maps import parameter_kinds
from vantage.training.sequences import Sequences
from vantage.training.tasks import task

CPU = torch.device("cpu")
AROUND = ("gate", "top-k", "shared-keys", "exclusive", "canon", "low-rank-query")  # parts around attention
RATES = (1e-3, 1e-3, 3e-3)


def parts(position: str, attention: str = "multi-head"):
    made = section(position, attention, ModelShape(16, 2, 2), 40)
    data = [Sequences(task("ordering"), made.reads, (2, 9), (9,), 16, seed) for seed in range(3)]
    return made.spec(data[0].vocab), data, Recipe(steps=4, batch=6)


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("position", "attention"),
    [*((position, "multi-head") for position in all_positions()), *(("rope", name) for name in AROUND)],
)
def test_a_model_in_a_stack_learns_what_it_learns_alone(position, attention):
    spec, data, recipe = parts(position, attention)
    stack = Stack(spec, [0, 1, 2], data, RATES, recipe, CPU)
    together = stack.train()
    alone, losses = train_in_turn(lambda i: Stack(spec, [i], [data[i]], [RATES[i]], recipe, CPU), 3)
    torch.testing.assert_close(together, losses, rtol=0, atol=2e-6)
    for name, weights in stack.weights.items():
        for i, one in enumerate(alone):
            torch.testing.assert_close(
                weights[i], one.weights[name][0], rtol=0, atol=3e-4
            )  # Adam turns rounding of tiny gradients into steps


@pytest.mark.parametrize("attention", attentions())
def test_every_attention_takes_a_step(attention):
    """With rows longer than what is selected, so that indexers choose. Only their maps may stay as they are."""
    made = section("none", attention, ModelShape(16, 2, 2), 40)
    data = [Sequences(task("copy"), made.reads, (12, 16), (16,), 16, 0)]
    recipe = Recipe(steps=2, batch=6, weight_decay=0.0)
    stack = Stack(made.spec(data[0].vocab), [0], data, [1e-3], recipe, CPU)
    before = {name: weights.clone() for name, weights in stack.weights.items()}
    assert bool(stack.train().isfinite().all())
    still = {name for name, weights in stack.weights.items() if torch.equal(weights, before[name])}
    assert all(".indexer." in name or ".choice." in name for name in still), still


def test_models_of_a_stack_differ():
    spec, data, recipe = parts("rope")
    stack = Stack(spec, [0, 1, 2], data, RATES, recipe, CPU)
    stack.train()
    batch = data[0].batch(range(4))
    first, second = stack.logits_of(0, batch), stack.logits_of(1, batch)
    assert (first - second).abs().max() > 1e-3


def test_one_that_diverges_leaves_the_others_alone():
    spec, data, recipe = parts("alibi")
    stack = Stack(spec, [0, 1], data[:2], [1e-3, 1e-3], recipe, CPU)
    with torch.no_grad():
        next(iter(stack.weights.values()))[1] = float("nan")
    losses = stack.train()
    alone = Stack(spec, [0], data[:1], [1e-3], recipe, CPU).train()
    assert losses[1].isnan()
    torch.testing.assert_close(losses[:1], alone, rtol=0, atol=2e-6)


def test_the_update_is_torchs_adamw():
    spec, data, recipe = parts("none")
    stack = Stack(spec, [0], data[:1], [1e-3], recipe, CPU)
    ours = {name: w[0].detach().clone() for name, w in stack.weights.items()}
    kinds = parameter_kinds(stack.base)
    decays = {name: kinds[name] in ("matrix", "head") for name in ours}
    decayed = [torch.nn.Parameter(w) for name, w in ours.items() if decays[name]]
    others = [torch.nn.Parameter(w) for name, w in ours.items() if not decays[name]]
    groups = [{"params": decayed, "weight_decay": recipe.weight_decay}, {"params": others, "weight_decay": 0.0}]
    theirs = torch.optim.AdamW(groups, lr=1e-3, betas=recipe.betas, eps=recipe.eps)
    names = sorted(ours, key=lambda name: not decays[name])
    named = dict(zip(names, decayed + others, strict=True))
    generator = torch.Generator().manual_seed(0)
    for step in range(3):
        grads = {name: torch.randn(w.shape, generator=generator) * 1e-4 for name, w in ours.items()}
        for group in theirs.param_groups:
            group["lr"] = 1e-3 * recipe.rate(step)
        for name, p in named.items():
            p.grad = grads[name]  # their norm is below 1: nothing is clipped
        theirs.step()
        stack._update(step, torch.cat([g.flatten() for g in grads.values()])[None])
    for name, p in named.items():
        torch.testing.assert_close(stack.weights[name][0], p, rtol=1e-6, atol=1e-7)
