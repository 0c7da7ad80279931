"""A budget holds whatever the machine does: planned from measured times, and ended by the clock. No test here waits."""

from __future__ import annotations

import heapq
import itertools
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import pytest
import torch

from vantage.compare import results as results_of_runs
from vantage.compare.budget import Budget, duration, makespan, plan, report_seconds
from vantage.compare.executors import JobFinished, OnSteps
from vantage.compare.experiment import Experiment
from vantage.compare.jobs import JobCost, TrainingJob, measure_cost
from vantage.compare.metadata import experiment_in, report_metadata
from vantage.compare.report import JSON, PAGE, write_report
from vantage.compare.results import Key, RunResult
from vantage.compare.run import BudgetSpent, SilentObserver, run_experiment
from vantage.errors import BadInput

COST = JobCost(setup=0.2, step=0.02, test=0.5)
IMPORTS = 6.0  # seconds that pass before an experiment is asked for
START = 5.0  # seconds that a pool of workers takes to start


@dataclass
class Machine:
    """Workers on a clock of their own: a job takes what it costs, and nothing else passes the time."""

    workers: int = 2
    slowdown: float = 1.0  # of everything that comes after the timing
    now: float = 0.0
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    def clock(self) -> float:
        return self.now

    def budget(self, seconds: float) -> Budget:
        budget = Budget(seconds, self.now, self.clock)
        self.now += IMPORTS
        return budget

    def executor(self, on_steps: OnSteps) -> Workers:
        return Workers(self)


class Workers:
    """An executor: jobs are done in the order they came, by whoever is free first."""

    def __init__(self, machine: Machine):
        self.machine = machine
        self.free = [machine.now + START] * machine.workers
        self.running: list[tuple[float, int, TrainingJob]] = []
        self.count = itertools.count()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *why: object) -> None:
        self.running = []

    def submit(self, job: TrainingJob) -> None:
        begin = max(heapq.heappop(self.free), self.machine.now)
        end = begin + self.seconds(job)
        heapq.heappush(self.free, end)
        heapq.heappush(self.running, (end, next(self.count), job))

    def seconds(self, job: TrainingJob) -> float:
        if job.timed:
            return 0.5
        models = len(job.experiment.rates) if job.searches else 1
        return self.machine.slowdown * (
            COST.setup + job.steps * models * COST.step + (0 if job.searches else COST.test)
        )

    def events(self) -> Iterator[JobFinished]:
        """Half a second at most, as the real ones wait."""
        until = self.machine.now + 0.5
        if not self.running or self.running[0][0] > until:
            self.machine.now = until
            return
        self.machine.now, _, job = heapq.heappop(self.running)
        yield JobFinished(job, outcome(job))


def outcome(job: TrainingJob) -> Any:
    if job.timed:
        return COST
    if job.searches:
        return job.experiment.rates[0]
    score = {"none": 0.9, "rope": 0.6}.get(job.position, 0.7)
    lengths = job.experiment.test_lengths
    scores = tuple(results_of_runs.TestScore(n, score / 2, score if n > 10 else 0.95, 1.0, 256) for n in lengths)
    keys = [Key(job.task, job.position, job.attention, seed) for seed in job.seeds]
    return [RunResult(key, 1e-3, job.experiment.steps, 1, 1.0, 1.0, False, scores) for key in keys]


class Notes(SilentObserver):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


def took(machine: Machine, experiment: Experiment) -> float:
    return machine.now + report_seconds(experiment)


# ---- planning


@pytest.mark.sampled
@pytest.mark.parametrize("seconds", [60, 90, 300, 840, 7200])
@pytest.mark.parametrize("workers", [1, 2, 8])
def test_it_holds_from_the_call_to_the_report(seconds: float, workers: int, tmp_path: Path) -> None:
    """Imports, the start of the workers, timing, searches, runs, tests and the report are all within it."""
    machine = Machine(workers)
    try:
        run_experiment(Experiment(), tmp_path, machine, budget=machine.budget(seconds))
    except BadInput:
        assert seconds <= 90 * 2 / workers  # too little for this machine, which is said instead
        return
    fitted = experiment_in(tmp_path)
    assert took(machine, fitted) <= seconds
    assert fitted.steps >= 50
    assert fitted.seeds >= 3
    if fitted.steps < Experiment.steps:  # and it is used
        assert took(machine, fitted) >= 0.7 * seconds


def test_seeds_go_before_the_last_steps_do() -> None:
    costs = dict.fromkeys(Experiment().entries(), COST)
    chosen = [plan(Experiment(), costs, Budget(s, 0, lambda: 0), 2, stacked=False).experiment for s in (150, 250, 1800)]
    assert [one.seeds for one in chosen] == [3, 5, 8]
    assert chosen[1].steps >= 300
    assert chosen[0].steps < chosen[1].steps < chosen[2].steps


def test_timing_is_followed_entry_by_entry(tmp_path: Path) -> None:
    class Timings(SilentObserver):
        seen: ClassVar[list[tuple[int, int]]] = []

        def timed(self, entries: int, total: int) -> None:
            self.seen.append((entries, total))

    machine, timings = Machine(), Timings()
    run_experiment(Experiment(), tmp_path, machine, budget=machine.budget(300), observer=timings)
    entries = len(list(Experiment().entries()))
    assert timings.seen == [(n, entries) for n in range(entries + 1)]


def test_what_was_cut_is_said(tmp_path: Path) -> None:
    machine, notes = Machine(), Notes()
    results = run_experiment(Experiment(), tmp_path, machine, budget=machine.budget(300), observer=notes)
    fitted = experiment_in(tmp_path)
    (cut,) = [note for note in notes.notes if note.startswith("The budget of")]
    assert cut == (
        f"The budget of 5 minutes has room for {fitted.steps} steps of each run instead of 3,000 and {fitted.seeds} "
        "seeds instead of 8."
    )
    page = write_report(tmp_path, report_metadata(fitted, tmp_path, results), results)
    assert cut in page.read_text()
    assert cut in (tmp_path / JSON).read_text()
    assert len(results) == len(fitted.wanted())


def test_nothing_is_cut_where_all_of_it_fits(tmp_path: Path) -> None:
    wanted, machine, notes = Experiment(steps=500), Machine(), Notes()
    run_experiment(wanted, tmp_path, machine, budget=machine.budget(3600), observer=notes)
    assert experiment_in(tmp_path) == wanted
    assert not any("has room for" in note for note in notes.notes)


def test_the_least_that_would_do_is_named_and_does() -> None:
    costs = dict.fromkeys(Experiment().entries(), COST)
    with pytest.raises(BadInput, match=r"allow (\d+) s or more") as refused:
        plan(Experiment(), costs, Budget(30, 0, lambda: 0), 2, stacked=False)
    enough = float(str(refused.value).partition("allow ")[2].partition(" s or")[0])
    assert plan(Experiment(), costs, Budget(enough, 0, lambda: 0), 2, stacked=False).experiment.steps >= 50


def test_no_way_of_sharing_out_takes_longer_than_the_bound() -> None:
    for workers, seeds, steps in itertools.product((1, 2, 3, 7), (1, 4), (50, 400)):
        experiment = Experiment(seeds=seeds, steps=steps)
        machine = Machine(workers)
        bound = makespan(experiment, dict.fromkeys(experiment.entries(), COST), workers, seeds, steps, stacked=False)
        run = Workers(machine)
        for jobs in (
            [TrainingJob(experiment, *entry) for entry in experiment.entries()],
            [
                TrainingJob(experiment, *e, seeds=(s,), rate=1e-3)
                for e, s in itertools.product(experiment.entries(), range(seeds))
            ],
        ):
            run.free = [max(run.free)] * workers
            for job in jobs:
                run.submit(job)
        assert max(run.free) - START <= bound + 1e-6


# ---- a machine that is slower than it was when it was timed


@pytest.mark.parametrize("slowdown", [1.3, 2.0, 4.0])
def test_it_holds_on_a_machine_that_has_become_slower(slowdown: float, tmp_path: Path) -> None:
    machine, notes = Machine(slowdown=slowdown), Notes()
    results = run_experiment(Experiment(), tmp_path, machine, budget=machine.budget(600), observer=notes)
    fitted = experiment_in(tmp_path)
    assert took(machine, fitted) <= 600 + 1
    assert len(results) < len(fitted.wanted())
    seeds = {
        (task, p): {r.key.seed for r in results if (r.key.task, r.key.position) == (task, p)}
        for task in fitted.tasks
        for p in {r.key.position for r in results}
    }
    assert all(of == seeds[task, "none"] for (task, _), of in seeds.items())  # the same seeds of every entry
    page = write_report(tmp_path, report_metadata(fitted, tmp_path, results), results)
    assert f"The budget ended before all {fitted.seeds} seeds were trained." in page.read_text()
    assert any("runs finished: --resume continues" in note for note in notes.notes)


def test_what_a_budget_ended_is_gone_on_with(tmp_path: Path) -> None:
    machine = Machine(slowdown=2.0)
    some = run_experiment(Experiment(), tmp_path, machine, budget=machine.budget(600))
    whole = run_experiment(experiment_in(tmp_path), tmp_path, Machine(), resume=True)
    assert len(some) < len(whole) == len(experiment_in(tmp_path).wanted())
    page = write_report(tmp_path, report_metadata(experiment_in(tmp_path), tmp_path, whole), whole)
    assert "The budget ended" not in page.read_text()


def test_a_budget_that_ends_before_the_first_run_says_so(tmp_path: Path) -> None:
    machine = Machine(slowdown=1000.0)
    with pytest.raises(BudgetSpent, match=r"ended with 0 of \d+ runs finished"):
        run_experiment(Experiment(), tmp_path, machine, budget=machine.budget(120))
    assert machine.now <= 120
    assert not (tmp_path / PAGE).exists()


def test_too_little_even_to_time_is_refused(tmp_path: Path) -> None:
    machine = Machine()
    with pytest.raises(BadInput, match="before a few steps of each entry could be timed"):
        run_experiment(Experiment(), tmp_path, machine, budget=machine.budget(12))
    assert not list(tmp_path.iterdir())


# ---- what is measured


def test_a_job_is_timed_by_what_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of real work, by the time of this process alone: more layers take longer, and so do more tests."""
    monkeypatch.setattr(time, "perf_counter", time.process_time)
    small = Experiment(tasks=("copy",), positions=("rope",), test_examples=64, batch=8)
    large = replace(small, shape=replace(small.shape, layers=8), test_examples=128)
    costs = [
        measure_cost(TrainingJob(one, "copy", "rope", "multi-head", (0,), timed=True), torch.device("cpu"))
        for one in (small, small, large)
    ]
    assert all(math.isfinite(x) and x > 0 for cost in costs for x in (cost.setup, cost.step, cost.test))
    assert costs[2].step > costs[1].step
    assert costs[2].test > costs[1].test


def test_durations_are_said_as_people_do() -> None:
    assert [duration(s) for s in (59.2, 90, 150, 300, 840)] == ["60 s", "90 s", "150 s", "5 minutes", "14 minutes"]
    assert [duration(s) for s in (7200, 9000, 86_400)] == ["2 hours", "2.5 hours", "24 hours"]
