"""One job of an experiment: the models of one entry on one task, trained together, and tested."""

from __future__ import annotations

import contextlib
import math
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from vantage.compare.example_cache import CachedExamples
from vantage.compare.experiment import Experiment
from vantage.compare.experiment_fields import SEARCH_SEED
from vantage.compare.results import Key, RunResult, TestScore
from vantage.compare.stack import Examples, OnStep, Recipe, Stack, train_in_turn
from vantage.compare.text import NAME as TEXT
from vantage.compare.text import READINGS, Reading
from vantage.model import build
from vantage.spec.model import ModelSpec
from vantage.training.evaluate import evaluate
from vantage.training.memory import keep_freed_memory
from vantage.training.sequences import Sequences

Entry = tuple[str, str, str]  # task, position, attention
WORTH_COMPILING = 1000  # steps: compiling takes as long as some hundred of them
TIMED_STEPS, TIMED_EXAMPLES = 6, 32  # of a job that is only timed: steps, and tests of each length


def _ignore(step: int, losses: Tensor) -> None: ...


class LossPoint(NamedTuple):
    """The loss of a job's models at a step of so many."""

    entry: Entry
    step: int
    steps: int
    loss: float


@dataclass(frozen=True)
class TrainingJob:
    """An entry and the seeds to train it with. Without a rate it is a search: one seed, every rate of the
    experiment."""

    experiment: Experiment
    task: str
    position: str
    attention: str
    seeds: tuple[int, ...] = ()
    rate: float | None = None
    timed: bool = False  # only a few steps, to see how long they take

    @property
    def entry(self) -> Entry:
        return (self.task, self.position, self.attention)

    @property
    def searches(self) -> bool:
        return self.rate is None and not self.timed

    @property
    def models(self) -> int:
        return len(self.experiment.rates) if self.searches else len(self.seeds)

    @property
    def steps(self) -> int:
        """Of each model."""
        return max(1, round(self.experiment.steps * self.experiment.search)) if self.searches else self.experiment.steps


@dataclass(frozen=True)
class JobCost:
    """Seconds on one worker: to set up a job, of one step of it, and of the tests of one model."""

    setup: float
    step: float
    test: float


def execute(job: TrainingJob, device: torch.device, on_step: OnStep, cache: Path | None = None) -> Any:
    """What comes of a job: a cost, a learning rate, or results."""
    if job.timed:
        return measure_cost(job, device)
    return (search if job.searches else run)(job, device, on_step, cache)


def measure_cost(job: TrainingJob, device: torch.device) -> JobCost:
    """A few steps and a few tests of this job, timed."""
    experiment = job.experiment
    short = replace(experiment, steps=TIMED_STEPS, test_examples=min(TIMED_EXAMPLES, experiment.test_examples))
    ends: list[float] = []
    started = time.perf_counter()
    rates = [experiment.rates[0]] * len(job.seeds)
    stacks, _ = _train(
        replace(job, experiment=short),
        job.seeds,
        rates,
        device,
        lambda step, losses: ends.append(time.perf_counter()),
        None,
    )
    trained = time.perf_counter()
    spent = [after - before for before, after in pairwise([*ends[:-1], trained])]
    step = statistics.median(spent) if device.type == "cpu" else statistics.mean(spent)  # a GPU is asked ahead of time
    _operations(stacks[0].base.spec, stacks[0].data[0], stacks[0].recipe)
    ready = time.perf_counter()
    _scores(stacks[0], 0, job.task)
    tested = time.perf_counter()
    return JobCost(
        ready - started - TIMED_STEPS * step, step, (tested - ready) * _tests(job, experiment) / _tests(job, short)
    )


def _tests(job: TrainingJob, experiment: Experiment) -> int:
    """How much is tested: examples of each length, or tokens of a text."""
    return len(experiment.reading(0).held) if job.task == TEXT else experiment.test_examples


def search(job: TrainingJob, device: torch.device, on_step: OnStep = _ignore, cache: Path | None = None) -> float:
    """The rate with the lowest loss at the end of a short run. One that diverged is never chosen."""
    rates = job.experiment.rates
    if len(rates) == 1:
        return rates[0]
    _, losses = _train(job, [SEARCH_SEED] * len(rates), rates, device, on_step, cache)
    ranked = [(loss if math.isfinite(loss) else math.inf, rate) for loss, rate in zip(losses, rates, strict=True)]
    return min(ranked)[1]


def run(
    job: TrainingJob, device: torch.device, on_step: OnStep = _ignore, cache: Path | None = None
) -> list[RunResult]:
    """Train and test every seed of the job. ``cache`` is a folder with examples that other jobs have made."""
    assert job.rate is not None
    started = time.perf_counter()
    stacks, losses = _train(job, job.seeds, [job.rate] * len(job.seeds), device, on_step, cache)
    models = [(stack, i) for stack in stacks for i in range(stack.n)]
    spec = stacks[0].base.spec
    operations = _operations(spec, stacks[0].data[0], stacks[0].recipe) if job.seeds else 0.0
    parameters = sum(p.numel() for p in stacks[0].base.parameters())
    each = (time.perf_counter() - started) / len(job.seeds)
    results = []
    for seed, (stack, i), loss in zip(job.seeds, models, losses, strict=True):
        fine = math.isfinite(loss)
        for name, scores in (_scores(stack, i, job.task) if fine else _no_scores(stack.data[i], job.task)).items():
            key = Key(name, job.position, job.attention, seed)
            results.append(RunResult(key, job.rate, stack.recipe.steps, parameters, operations, each, not fine, scores))
    return results


def _train(
    job: TrainingJob,
    seeds: Sequence[int],
    rates: Sequence[float],
    device: torch.device,
    on_step: OnStep,
    cache: Path | None,
) -> tuple[list[Stack], list[float]]:
    section = job.experiment.section(job.task, job.position, job.attention)
    data = {seed: _examples(job, job.experiment.data(job.task, section.reads, seed), cache) for seed in seeds}
    spec = section.spec(next(iter(data.values())).vocab)
    recipe = Recipe(job.steps, job.experiment.batch)

    def stack(chosen: Sequence[int], compiled: bool = False) -> Stack:
        own = [seeds[i] for i in chosen]
        return Stack(spec, own, [data[s] for s in own], [rates[i] for i in chosen], recipe, device, compiled)

    if device.type == "cpu":
        with keep_freed_memory(device):
            stacks, losses = train_in_turn(lambda i: stack([i]), len(seeds), on_step)
        return stacks, losses.tolist()
    together = stack(range(len(seeds)), compiled=job.steps >= WORTH_COMPILING)
    return [together], together.train(on_step).tolist()


def _examples(job: TrainingJob, data: Sequences | Reading, cache: Path | None) -> Examples:
    if cache is None or isinstance(data, Reading):
        return data
    return CachedExamples(data, job.steps, job.experiment.batch, cache)


def _scores(stack: Stack, i: int, task: str) -> dict[str, tuple[TestScore, ...]]:
    """By task; a text by the ways it is read."""
    data = stack.data[i]
    if isinstance(data, Reading):
        with torch.no_grad(), _evaluating(stack):
            return data.score(lambda batch: stack.logits_of(i, batch), stack.device)
    evaluations = evaluate(stack.base, lambda batch: stack.logits_of(i, batch), data.held_out(), 0, stack.device)
    lengths = [int(name.removeprefix("length ")) for name in data.held_out()]
    scores = [
        TestScore(n, s.exact, s.tokens, s.loss, s.rows, dict(s.groups))
        for n, s in zip(lengths, evaluations, strict=True)
    ]
    return {task: tuple(scores)}


def _no_scores(data: object, task: str) -> dict[str, tuple[TestScore, ...]]:
    """Of a run that diverged."""
    return dict.fromkeys(READINGS if isinstance(data, Reading) else (task,), ())


@contextlib.contextmanager
def _evaluating(stack: Stack) -> Iterator[None]:
    """Not in training: random positions are drawn there alone."""
    stack.base.eval()
    try:
        yield
    finally:
        stack.base.train()


def _operations(spec: ModelSpec, data: Examples, recipe: Recipe) -> float:
    """Floating-point operations of a whole training, from those counted in one step of one model."""
    model = build(spec, seed=0)
    batch = data.batch(range(recipe.batch))
    with FlopCounterMode(display=False) as counter:
        model(batch.tokens, positions=batch.positions).sum().backward()
    return float(counter.get_total_flops()) * recipe.steps
