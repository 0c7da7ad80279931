"""An experiment carried out: searches, then runs, by whichever executor its backend has, each kept when it is finished.

Whatever stops it, the finished runs are in the folder, and ``resume`` goes on with the others. A run is a pure
function of the experiment and its key, so it does not matter when, where and beside what it was computed.
"""

from __future__ import annotations

import json
import math
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Protocol, final

import torch

from vantage.compare import jobs
from vantage.compare.executors import ExecutionBackend, Executor, JobFinished
from vantage.compare.experiment import Experiment, trained_on
from vantage.compare.jobs import TrainingJob
from vantage.compare.report import machine
from vantage.compare.results import FILE, Key, RunResult, read_results, write_results
from vantage.compare.text import NAME as TEXT
from vantage.errors import BadInput, VantageError
from vantage.files import append_text, write_text

EXPERIMENT_FILE, SEARCHES = "study.json", "searches.jsonl"
FEWEST = 50  # steps: what is trained for less says nothing
CALIBRATION = 12  # steps that are timed before a budget is divided
RETRIES = 3  # of a worker that died

Entry = tuple[str, str, str]  # task, position, attention


class Observer(Protocol):
    """Who is told how an experiment is getting on."""

    def began(self, experiment: Experiment, total: int, finished: int) -> None: ...
    def advanced(self, steps: int) -> None: ...
    def chose(self, entry: Entry, rate: float) -> None: ...
    def finished(self, results: list[RunResult]) -> None: ...
    def note(self, text: str) -> None: ...


class SilentObserver:
    def began(self, experiment: Experiment, total: int, finished: int) -> None: ...
    def advanced(self, steps: int) -> None: ...
    def chose(self, entry: Entry, rate: float) -> None: ...
    def finished(self, results: list[RunResult]) -> None: ...
    def note(self, text: str) -> None: ...


class WorkersDied(VantageError):
    """A worker died again and again on the same job. What was finished is kept."""


def run_experiment(
    experiment: Experiment,
    folder: Path,
    backend: ExecutionBackend,
    *,
    resume: bool = False,
    observer: Observer | None = None,
) -> list[RunResult]:
    """Every run of the experiment, in the order of its keys."""
    observer = SilentObserver() if observer is None else observer
    claim_folder(folder, experiment.fingerprint(), {"study": asdict(experiment)}, resume)
    finished = {result.key: result for result in read_results(folder / FILE)}
    rates = _read_searches(folder / SEARCHES)
    todo: dict[Entry, list[int]] = {}
    for key in experiment.wanted():
        if key not in finished and key.seed not in todo.setdefault(_entry(key), []):
            todo[_entry(key)].append(key.seed)
    todo = {entry: seeds for entry, seeds in todo.items() if seeds}
    searched = [TrainingJob(experiment, *entry) for entry in todo if entry not in rates and len(experiment.rates) > 1]
    rates |= {entry: experiment.rates[0] for entry in todo if len(experiment.rates) == 1}
    steps = sum(j.steps * j.models for j in searched) + sum(experiment.steps * len(seeds) for seeds in todo.values())
    observer.began(experiment, steps, len(finished))
    ready = [
        job
        for entry, seeds in todo.items()
        if entry in rates
        for job in _runs(experiment, entry, seeds, rates, backend)
    ]
    with backend.executor(observer.advanced) as executor:
        queue = _WorkQueue(executor, observer)
        for job in [*searched, *ready]:
            queue.submit(job)
        for job, outcome in queue.outcomes():
            entry = (job.task, job.position, job.attention)
            if job.searches:
                rates[entry] = outcome
                _write_search(folder / SEARCHES, entry, outcome)
                observer.chose(entry, outcome)
                for one in _runs(experiment, entry, todo[entry], rates, backend):
                    queue.submit(one)
            else:
                write_results(folder / FILE, outcome)
                finished |= {result.key: result for result in outcome}
                observer.finished(outcome)
    return [finished[key] for key in experiment.wanted()]


@final
class _WorkQueue:
    """The jobs that an executor has: those whose worker died are begun again, a few times."""

    def __init__(self, executor: Executor, observer: Observer):
        self._executor, self._observer = executor, observer
        self._left: set[TrainingJob] = set()
        self._deaths: Counter[TrainingJob] = Counter()

    def submit(self, job: TrainingJob) -> None:
        self._left.add(job)
        self._executor.submit(job)

    def outcomes(self) -> Iterator[tuple[TrainingJob, Any]]:
        """Each job with what came of it: a rate, or results."""
        while self._left:
            orphaned: list[TrainingJob] = []
            for event in self._executor.events():
                if isinstance(event, JobFinished):
                    self._left.discard(event.job)
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


# ---- budgets


def fit_budget(experiment: Experiment, seconds: float, backend: ExecutionBackend) -> Experiment:
    """The experiment with as many steps as fit a budget of time; refused if that is too few to mean anything."""
    cost, tests = backend.call(_costs, experiment, backend.device)
    steps = int((0.85 * seconds * backend.workers - tests) / cost)
    if steps < FEWEST:
        needed = (FEWEST * cost + tests) / backend.workers / 0.85
        raise BadInput(
            f"a budget of {seconds:.0f} s gives each run {max(steps, 0)} steps, and fewer than {FEWEST} are too few "
            "to mean anything: "
            f"allow {math.ceil(needed / 60)} minutes or more, or compare fewer encodings, tasks or seeds"
        )
    return replace(experiment, steps=min(steps, experiment.steps))


def _costs(experiment: Experiment, device: torch.device) -> tuple[float, float]:
    """Seconds on one worker: of one step of every run, and of all tests."""
    cost = tests = 0.0
    for entry in experiment.entries():
        cost += _step_seconds(experiment, entry, device) * (
            experiment.seeds + len(experiment.rates) * experiment.search
        )
        tests += _test_seconds(experiment, entry, device) * experiment.seeds
    return cost, tests


def _test_seconds(experiment: Experiment, entry: Entry, device: torch.device) -> float:
    """Of reading a text at every length, which takes longer than steps do; the tests of other tasks are short."""
    if entry[0] != TEXT:
        return 0.0
    started = time.perf_counter()
    jobs.run(TrainingJob(replace(experiment, steps=1), *entry, seeds=(0,), rate=experiment.rates[0]), device)
    return time.perf_counter() - started


def _step_seconds(experiment: Experiment, entry: Entry, device: torch.device) -> float:
    """Of one model, on one worker, with examples that are in the cache, as most are: all entries share them."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)

    def seconds(steps: int, cache: str) -> float:
        short = replace(experiment, steps=steps, test_lengths=(experiment.train_length,), test_examples=1)
        job = TrainingJob(short, *entry, seeds=(0,), rate=experiment.rates[0])
        started = time.perf_counter()
        jobs.run(job, device, cache=Path(cache))
        return time.perf_counter() - started

    try:
        with tempfile.TemporaryDirectory() as cache:
            few, many = 1, 1 + CALIBRATION
            for steps in (few, many):  # what the first run of each sets up
                seconds(steps, cache)
            return max(seconds(many, cache) - seconds(few, cache), 1e-4) / CALIBRATION
    finally:
        torch.set_num_threads(threads)


# ---- files


def _runs(
    experiment: Experiment, entry: Entry, seeds: list[int], rates: dict[Entry, float], backend: ExecutionBackend
) -> list[TrainingJob]:
    """On a GPU all seeds of an entry are one stack; cores share them out."""
    together = [tuple(seeds)] if backend.device.type == "cuda" else [(seed,) for seed in seeds]
    return [TrainingJob(experiment, *entry, seeds=some, rate=rates[entry]) for some in together]


def refuse_occupied(folder: Path) -> None:
    """A folder that holds an experiment, when a new one is wanted there."""
    if (folder / EXPERIMENT_FILE).exists():
        raise BadInput(
            f"{folder} holds an experiment already: go on with it (--resume), or choose another folder (--out)"
        )


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
