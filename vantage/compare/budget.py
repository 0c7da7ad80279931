"""A budget of time: from the call to the written report, with everything in between; and what fits into it.

Steps are chosen from measured times (``plan``). A machine is not always as fast as when it was measured, so a budget is
held by a deadline besides: training ends when there is just time left to write the report. Runs are begun seed by seed:
what is then missing are the last seeds of all entries, and what is there can be compared.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import final

from vantage.compare.experiment import Experiment
from vantage.compare.jobs import Entry, JobCost
from vantage.errors import BadInput

MIN_STEPS = 50  # steps: what is trained for less says nothing
PREFERRED_STEPS = 300  # steps: rather fewer seeds than fewer steps than this
FEWEST_SEEDS = 3
SAFETY = 0.92  # of the time that is left is planned with: what was measured briefly is not quite what is met
REPORT_BASE_S, REPORT_RUN_S = 2.0, 0.01  # seconds to write a report: in all, and for each run that it is about


@final
@dataclass(frozen=True)
class Budget:
    """So many seconds from ``started`` on, by ``clock``."""

    seconds: float
    started: float
    clock: Callable[[], float] = time.monotonic

    @staticmethod
    def from_now(seconds: float) -> Budget:
        return Budget(seconds, time.monotonic())

    def left(self) -> float:
        return self.started + self.seconds - self.clock()


def report_seconds(experiment: Experiment) -> float:
    """What has to be left when training ends."""
    return REPORT_BASE_S + REPORT_RUN_S * len(experiment.wanted())


@final
@dataclass(frozen=True)
class BudgetedExperiment:
    """The experiment as it fits, and in words what was cut."""

    experiment: Experiment
    cuts: tuple[str, ...]


def plan(
    experiment: Experiment, costs: Mapping[Entry, JobCost], budget: Budget, workers: int, *, stacked: bool
) -> BudgetedExperiment:
    """As many steps as fit; fewer seeds where that would be too few. Refused if even that means nothing.

    ``stacked``: the seeds of an entry are one job, as on a GPU.
    """
    report = report_seconds(experiment)
    allowed = SAFETY * (budget.left() - report)

    def seconds(seeds: int, steps: int) -> float:
        return makespan(experiment, costs, workers, seeds, steps, stacked=stacked)

    def most_steps(seeds: int) -> int:
        low, high = 0, experiment.steps
        while low < high:  # the largest number of steps that still fits
            middle = (low + high + 1) // 2
            low, high = (middle, high) if seconds(seeds, middle) <= allowed else (low, middle - 1)
        return low

    fewest_seeds = min(FEWEST_SEEDS, experiment.seeds)
    for seeds in range(experiment.seeds, fewest_seeds - 1, -1):
        if (steps := most_steps(seeds)) >= min(PREFERRED_STEPS, experiment.steps):
            return _planned(experiment, seeds, steps, budget)
    if (steps := most_steps(fewest_seeds)) >= min(MIN_STEPS, experiment.steps):
        return _planned(experiment, fewest_seeds, steps, budget)
    least = min(MIN_STEPS, experiment.steps)
    needed = seconds(fewest_seeds, least) / SAFETY + budget.seconds - budget.left() + report
    raise BadInput(
        f"a budget of {budget.seconds:.0f} s gives each run {steps} steps with {fewest_seeds} seeds, and fewer than "
        f"{least} are too few to mean anything: allow {duration(1.1 * needed)} or more, or compare fewer encodings or "
        "tasks"
    )


def makespan(
    experiment: Experiment, costs: Mapping[Entry, JobCost], workers: int, seeds: int, steps: int, *, stacked: bool
) -> float:
    """Seconds that no way of sharing out the jobs exceeds (Graham 1966): searches first, then runs."""
    jobs_of_an_entry, rates = (1, 1) if stacked else (seeds, len(experiment.rates))
    searched = max(1, round(steps * experiment.search)) * rates if len(experiment.rates) > 1 else 0
    searches = [cost.setup + searched * cost.step for cost in costs.values() if searched]
    runs = [cost.setup + steps * cost.step + cost.test * seeds / jobs_of_an_entry for cost in costs.values()]
    return _shared_out(searches, 1, workers) + _shared_out(runs, jobs_of_an_entry, workers)


def _shared_out(seconds: list[float], times: int, workers: int) -> float:
    longest = max(seconds, default=0.0)
    return times * sum(seconds) / workers + longest * (workers - 1) / workers


def _planned(wanted: Experiment, seeds: int, steps: int, budget: Budget) -> BudgetedExperiment:
    cuts = []
    if steps < wanted.steps:
        cuts.append(f"{steps:,} steps of each run instead of {wanted.steps:,}")
    if seeds < wanted.seeds:
        cuts.append(f"{seeds} seeds instead of {wanted.seeds}")
    sentence = f"The budget of {duration(budget.seconds)} has room for {' and '.join(cuts)}."
    return BudgetedExperiment(replace(wanted, seeds=seeds, steps=steps), (sentence,) if cuts else ())


def duration(seconds: float) -> str:
    """In the words of --budget: 90 s, 14 minutes, 2 hours. Rounded up."""
    if seconds < 60 or (seconds < 600 and seconds % 60):
        return f"{math.ceil(seconds)} s"
    if seconds < 7200:
        return f"{math.ceil(seconds / 60)} minutes"
    return f"{math.ceil(seconds / 360) / 10:g} hours"
