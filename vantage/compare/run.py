"""An experiment carried out: searches, then runs, by whichever executor its backend has, each kept when it is finished.

Whatever stops it, the finished runs are in the folder, and ``resume`` goes on with the others. A run is a pure
function of the experiment and its key, so it does not matter when, where and beside what it was computed.
"""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Protocol, final

from vantage.compare.budget import Budget, BudgetedExperiment, duration, plan, report_seconds
from vantage.compare.executors import ExecutionBackend, Executor, JobFinished
from vantage.compare.experiment import Experiment, trained_on
from vantage.compare.jobs import Entry, JobCost, LossPoint, TrainingJob
from vantage.compare.names import EXPERIMENT_FILE, refuse_occupied
from vantage.compare.report import machine
from vantage.compare.results import FILE, Key, RunResult, read_results, write_results
from vantage.errors import BadInput, VantageError
from vantage.files import append_text, write_text

SEARCHES = "searches.jsonl"
RETRIES = 3  # of a worker that died


class Observer(Protocol):
    """Who is told how an experiment is getting on."""

    def timed(self, entries: int, total: int) -> None: ...
    def began(self, experiment: Experiment, total: int, finished: int) -> None: ...
    def advanced(self, steps: int) -> None: ...
    def learned(self, point: LossPoint) -> None: ...
    def chose(self, entry: Entry, rate: float) -> None: ...
    def finished(self, results: list[RunResult]) -> None: ...
    def note(self, text: str) -> None: ...


class SilentObserver:
    def timed(self, entries: int, total: int) -> None: ...
    def began(self, experiment: Experiment, total: int, finished: int) -> None: ...
    def advanced(self, steps: int) -> None: ...
    def learned(self, point: LossPoint) -> None: ...
    def chose(self, entry: Entry, rate: float) -> None: ...
    def finished(self, results: list[RunResult]) -> None: ...
    def note(self, text: str) -> None: ...


class WorkersDied(VantageError):
    """A worker died again and again on the same job. What was finished is kept."""


class BudgetSpent(VantageError):
    """The budget ended before there was anything to report. What was finished is kept."""


def run_experiment(
    experiment: Experiment,
    folder: Path,
    backend: ExecutionBackend,
    *,
    resume: bool = False,
    observer: Observer | None = None,
    budget: Budget | None = None,
) -> list[RunResult]:
    """Every run of the experiment, in the order of its keys.

    With a budget, what fits: fewer steps and seeds, which the folder's own experiment then has (``experiment_in``), and
    of those the seeds that were finished in time for every entry of a task.
    """
    observer = SilentObserver() if observer is None else observer
    if not resume:
        refuse_occupied(folder)

    def report(steps: int, point: LossPoint | None) -> None:
        observer.advanced(steps)
        if point is not None:
            observer.learned(point)

    with backend.executor(report) as executor:
        queue = _WorkQueue(executor, observer)
        fitted = BudgetedExperiment(experiment, ())
        if budget is not None and not resume:
            fitted = _fit(experiment, budget, backend, queue, observer)
        experiment = fitted.experiment
        claim_folder(folder, experiment.fingerprint(), {"study": asdict(experiment), "cuts": fitted.cuts}, resume)
        finished = {result.key: result for result in read_results(folder / FILE)}
        _train_missing(experiment, folder, backend, queue, observer, finished, budget)
    return _comparable(experiment, finished)


def _train_missing(
    experiment: Experiment,
    folder: Path,
    backend: ExecutionBackend,
    queue: _WorkQueue,
    observer: Observer,
    finished: dict[Key, RunResult],
    budget: Budget | None,
) -> None:
    """Searches, then runs, until all are done or the budget is spent."""
    rates = _read_searches(folder / SEARCHES)
    todo: dict[Entry, list[int]] = {}
    for key in experiment.wanted():
        if key not in finished and key.seed not in todo.setdefault(_entry(key), []):
            todo[_entry(key)].append(key.seed)
    todo = {entry: seeds for entry, seeds in todo.items() if seeds}
    searches = [TrainingJob(experiment, *entry) for entry in todo if entry not in rates and len(experiment.rates) > 1]
    rates |= {entry: experiment.rates[0] for entry in todo if len(experiment.rates) == 1}
    steps = sum(j.steps * j.models for j in searches) + sum(experiment.steps * len(seeds) for seeds in todo.values())
    observer.began(experiment, steps, len(finished))

    report = report_seconds(experiment)

    def spent() -> bool:
        return budget is not None and budget.left() <= report

    for job, rate in queue.outcomes(searches, spent):
        rates[job.entry] = rate
        _write_search(folder / SEARCHES, job.entry, rate)
        observer.chose(job.entry, rate)
    searched = all(entry in rates for entry in todo)
    for _, results in queue.outcomes(_runs(experiment, todo, rates, backend) if searched else (), spent):
        write_results(folder / FILE, results)
        finished |= {result.key: result for result in results}
        observer.finished(results)
    if len(finished) < len(experiment.wanted()):
        message = _spent_message(budget, len(finished), len(experiment.wanted()))
        if not finished:
            raise BudgetSpent(message)
        observer.note(message)


def _spent_message(budget: Budget | None, finished: int, wanted: int) -> str:
    assert budget is not None
    return (
        f"the budget of {duration(budget.seconds)} ended with {finished} of {wanted} runs finished: --resume continues"
    )


def _comparable(experiment: Experiment, finished: Mapping[Key, RunResult]) -> list[RunResult]:
    """The runs of those seeds that every entry of a task has. Where no seed is whole, those that there are."""
    wanted = experiment.wanted()
    missing = {(key.task, key.seed) for key in wanted if key not in finished}
    whole = {key.task for key in wanted if (key.task, key.seed) not in missing}
    return [
        finished[key]
        for key in wanted
        if key in finished and ((key.task, key.seed) not in missing or key.task not in whole)
    ]


@final
class _WorkQueue:
    """The jobs that an executor has: those whose worker died are begun again, a few times."""

    def __init__(self, executor: Executor, observer: Observer):
        self._executor, self._observer = executor, observer
        self._deaths: Counter[TrainingJob] = Counter()

    def outcomes(self, jobs: Iterable[TrainingJob], spent: Callable[[], bool]) -> Iterator[tuple[TrainingJob, Any]]:
        """Each job with what came of it: a cost, a rate, or results. Ends early when the budget is spent."""
        left: set[TrainingJob] = set()
        for job in () if spent() else jobs:
            left.add(job)
            self._executor.submit(job)
        while left and not spent():
            orphaned: list[TrainingJob] = []
            for event in self._executor.events():
                if isinstance(event, JobFinished):
                    left.discard(event.job)
                    yield event.job, event.outcome
                else:
                    orphaned.append(event.job)
            if orphaned:
                self._again(orphaned)

    def _again(self, orphaned: list[TrainingJob]) -> None:
        self._deaths.update(orphaned)
        for job in orphaned:
            if self._deaths[job] > RETRIES:
                raise WorkersDied(
                    f"workers died {RETRIES} times while training {job.position} on {job.task}: too little memory?"
                )
        self._observer.note("a worker died; its runs start again")
        for job in orphaned:
            self._executor.submit(job)


def _fit(
    experiment: Experiment, budget: Budget, backend: ExecutionBackend, queue: _WorkQueue, observer: Observer
) -> BudgetedExperiment:
    """What fits the budget, by a few steps of each entry, timed where it will run."""
    observer.note(f"timing a few steps of each entry, to fit {duration(budget.seconds)}")
    timed = [
        TrainingJob(
            experiment,
            *entry,
            seeds=_together(range(experiment.first_seed, experiment.first_seed + experiment.seeds), backend)[0],
            timed=True,
        )
        for entry in experiment.entries()
    ]
    costs: dict[Entry, JobCost] = {}
    observer.timed(0, len(timed))
    for job, cost in queue.outcomes(timed, lambda: budget.left() <= 0):
        costs[job.entry] = cost
        observer.timed(len(costs), len(timed))
    if len(costs) < len(timed):
        raise BadInput(
            f"a budget of {budget.seconds:.0f} s is over before a few steps of each entry could be timed: allow "
            "several times as much, or compare fewer encodings or tasks"
        )
    # The first job of a worker sets up more than the others do.
    setup = statistics.median(cost.setup for cost in costs.values())
    costs = {entry: replace(cost, setup=setup) for entry, cost in costs.items()}
    fitted = plan(experiment, costs, budget, backend.workers, stacked=backend.device.type == "cuda")
    for sentence in fitted.cuts:
        observer.note(sentence)
    return fitted


def _runs(
    experiment: Experiment, todo: Mapping[Entry, list[int]], rates: Mapping[Entry, float], backend: ExecutionBackend
) -> list[TrainingJob]:
    """Seed by seed: when a budget ends them, what is missing are the last seeds of all entries."""
    runs = [
        TrainingJob(experiment, *entry, seeds=some, rate=rates[entry])
        for entry, seeds in todo.items()
        for some in _together(seeds, backend)
    ]
    return sorted(runs, key=lambda job: job.seeds[0])


def _together(seeds: Iterable[int], backend: ExecutionBackend) -> list[tuple[int, ...]]:
    """On a GPU all seeds of an entry are one stack; cores share them out."""
    return [tuple(seeds)] if backend.device.type == "cuda" else [(seed,) for seed in seeds]


# ---- files


def claim_folder(folder: Path, fingerprint: str, settings: Mapping[str, Any], resume: bool) -> None:
    """Write down what the folder is for; refuse one that holds something else. ``settings`` as they stand in the
    file."""
    path = folder / EXPERIMENT_FILE
    if not resume:
        refuse_occupied(folder)
    elif path.exists():
        try:
            before = json.loads(path.read_text())["fingerprint"]
        except (ValueError, KeyError, TypeError) as e:
            raise BadInput(f"{path} is damaged ({e}): choose another folder (--out)") from e
        if before != fingerprint:
            raise BadInput(
                f"{folder} holds an experiment of other settings, or of a text that has changed since: give those, or "
                "another folder (--out)"
            )
        return
    folder.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps({"fingerprint": fingerprint, **settings, "versions": machine()}, indent=1))


def _entry(key: Key) -> Entry:
    return (trained_on(key), key.position, key.attention)


def _read_searches(path: Path) -> dict[Entry, float]:
    rates: dict[Entry, float] = {}
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            search = json.loads(line)
        except json.JSONDecodeError:
            continue
        rates[search["task"], search["position"], search["attention"]] = search["rate"]
    return rates


def _write_search(path: Path, entry: Entry, rate: float) -> None:
    line = {"task": entry[0], "position": entry[1], "attention": entry[2], "rate": rate}
    append_text(path, json.dumps(line) + "\n")
