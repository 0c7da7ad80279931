"""A study carried out: searches, then runs, on the cores of this machine or on its GPU, each kept when it is done.

Whatever stops it, the finished runs are in the folder, and ``resume`` goes on with the others. A run is a pure
function of the study and its key, so it does not matter when, where and beside what it was computed.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import queue
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch

from vantage.compare import jobs
from vantage.compare.jobs import Job
from vantage.compare.report import machine
from vantage.compare.results import FILE, Result, read_results, write_results
from vantage.compare.study import Study
from vantage.errors import BadInput, VantageError

STUDY, SEARCHES = "study.json", "searches.jsonl"
FEWEST = 50  # steps: what is trained for less says nothing
CALIBRATION = 12  # steps that are timed before a budget is divided
RETRIES = 3  # of a worker that died

Entry = tuple[str, str, str]  # task, position, attention


class Watcher(Protocol):
    """Who is told how a study goes."""

    def began(self, study: Study, total: int, done: int) -> None: ...
    def moved(self, steps: int) -> None: ...
    def chose(self, entry: Entry, rate: float) -> None: ...
    def finished(self, results: list[Result]) -> None: ...
    def note(self, text: str) -> None: ...


class Nobody:
    def began(self, study: Study, total: int, done: int) -> None: ...
    def moved(self, steps: int) -> None: ...
    def chose(self, entry: Entry, rate: float) -> None: ...
    def finished(self, results: list[Result]) -> None: ...
    def note(self, text: str) -> None: ...


class Lost(VantageError):
    """A worker died again and again on the same job. What was finished is kept."""


@dataclass(frozen=True)
class Place:
    """Where a study runs."""

    device: torch.device
    workers: int

    @staticmethod
    def here(device: str | None = None, workers: int | None = None) -> Place:
        made = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        return Place(made, workers or (1 if made.type == "cuda" else cores))


def conduct(
    study: Study, folder: Path, place: Place, *, resume: bool = False, watcher: Watcher | None = None
) -> list[Result]:
    """Every run of the study, in the order of its keys."""
    told = Nobody() if watcher is None else watcher
    _claim(study, folder, resume)
    done = {result.key: result for result in read_results(folder / FILE)}
    rates = _read_searches(folder / SEARCHES)
    todo = {
        entry: [k.seed for k in study.wanted() if k not in done and _entry(k) == entry] for entry in study.entries()
    }
    todo = {entry: seeds for entry, seeds in todo.items() if seeds}
    searched = [Job(study, *entry) for entry in todo if entry not in rates and len(study.rates) > 1]
    rates |= {entry: study.rates[0] for entry in todo if len(study.rates) == 1}
    work = sum(j.steps * j.models for j in searched) + sum(study.steps * len(seeds) for seeds in todo.values())
    told.began(study, work, len(done))
    ready = [job for entry, seeds in todo.items() if entry in rates for job in _runs(study, entry, seeds, rates, place)]
    with _Crew(place, told) as crew:
        for job in [*searched, *ready]:
            crew.submit(job)
        for job, outcome in crew.outcomes():
            entry = (job.task, job.position, job.attention)
            if job.searches:
                rates[entry] = outcome
                _write_search(folder / SEARCHES, entry, outcome)
                told.chose(entry, outcome)
                for one in _runs(study, entry, todo[entry], rates, place):
                    crew.submit(one)
            else:
                write_results(folder / FILE, outcome)
                done |= {result.key: result for result in outcome}
                told.finished(outcome)
    return [done[key] for key in study.wanted()]


def within(study: Study, seconds: float, place: Place) -> Study:
    """The study with as many steps as fit a budget of time; refused if that is too few to mean anything."""
    cost = 0.0
    for entry in study.entries():
        cost += _step_seconds(study, entry, place) * (study.seeds + len(study.rates) * study.search)
    steps = int(0.85 * seconds * place.workers / cost)
    if steps < FEWEST:
        needed = FEWEST * cost / place.workers / 0.85
        raise BadInput(
            f"a budget of {seconds:.0f} s gives each run {steps} steps, and fewer than {FEWEST} say nothing: allow "
            f"{needed / 60:.0f} minutes or more, or compare fewer encodings, tasks or seeds"
        )
    return replace(study, steps=min(steps, study.steps))


def _step_seconds(study: Study, entry: Entry, place: Place) -> float:
    """Of one model, on one worker."""
    short = replace(study, steps=CALIBRATION, test_lengths=(study.train_length,), test_examples=1)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        job = Job(short, *entry, seeds=(0,), rate=study.rates[0])
        jobs.run(replace(job, study=replace(short, steps=1)), place.device)  # what the first step sets up
        started = time.perf_counter()
        jobs.run(job, place.device)
        return (time.perf_counter() - started) / CALIBRATION
    finally:
        torch.set_num_threads(threads)


# ---- workers


class _Crew:
    """Processes that each train one job at a time, on one thread; or, on a GPU, this process alone."""

    def __init__(self, place: Place, told: Watcher):
        self.place, self.told = place, told
        self._waiting: dict[Future[Any], Job] = {}
        self._tries: dict[Job, int] = {}
        self._context = multiprocessing.get_context("spawn")
        self._steps: Any = self._context.Queue()
        self._pool: ProcessPoolExecutor | None = None
        self._alone: list[Job] = []

    def __enter__(self) -> _Crew:
        return self

    def __exit__(self, *why: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            for process in multiprocessing.active_children():
                process.terminate()

    def submit(self, job: Job) -> None:
        if self.place.device.type == "cuda":
            self._alone.append(job)
            return
        if self._pool is None:
            self._pool = ProcessPoolExecutor(
                self.place.workers, self._context, initializer=_ready, initargs=(self._steps,)
            )
        self._waiting[self._pool.submit(_work, job)] = job

    def outcomes(self) -> Iterator[tuple[Job, Any]]:
        """Each job with what came of it: a rate, or results."""
        while self._alone:
            job = self._alone.pop(0)
            before = 0

            def tell(step: int) -> None:
                nonlocal before
                self.told.moved((step - before) * job.models)  # noqa: B023 (called within this turn)
                before = step

            yield job, _do(job, self.place.device, tell)
        while self._waiting:
            finished, _ = wait(self._waiting, timeout=0.5, return_when=FIRST_COMPLETED)
            self._drain()
            broken = [f for f in finished if isinstance(f.exception(), BrokenProcessPool)]
            if broken:
                self._again()
                continue
            for future in finished:
                job = self._waiting.pop(future)
                yield job, future.result()

    def _again(self) -> None:
        """A worker was killed: its pool is gone with it. Start another with what was not finished."""
        unfinished = list(self._waiting.values())
        self._waiting.clear()
        self._pool = None
        for job in unfinished:
            self._tries[job] = self._tries.get(job, 0) + 1
            if self._tries[job] > RETRIES:
                raise Lost(
                    f"workers died {RETRIES} times while training {job.position} on {job.task}: too little memory?"
                )
        self.told.note("a worker died; its runs start again")
        for job in unfinished:
            self.submit(job)

    def _drain(self) -> None:
        while True:
            try:
                self.told.moved(self._steps.get_nowait())
            except queue.Empty:
                return


_said: Any = None  # in a worker: where it says how many steps it has done


def _ready(steps: Any) -> None:
    global _said
    _said = steps
    torch.set_num_threads(1)


def _work(job: Job) -> Any:
    every = 25

    def tell(step: int) -> None:
        if step % every == 0:
            _said.put(every)

    return _do(job, torch.device("cpu"), tell)


def _do(job: Job, device: torch.device, tell: Callable[[int], None]) -> Any:
    return jobs.search(job, device, tell) if job.searches else jobs.run(job, device, tell)


# ---- files


def _runs(study: Study, entry: Entry, seeds: list[int], rates: dict[Entry, float], place: Place) -> list[Job]:
    """On a GPU all seeds of an entry are one stack; cores share them out."""
    together = [tuple(seeds)] if place.device.type == "cuda" else [(seed,) for seed in seeds]
    return [Job(study, *entry, seeds=some, rate=rates[entry]) for some in together]


def _claim(study: Study, folder: Path, resume: bool) -> None:
    path = folder / STUDY
    if path.exists():
        before = json.loads(path.read_text())
        if not resume:
            raise BadInput(f"{folder} holds a study already: go on with it (--resume), or say another folder (--out)")
        if before["fingerprint"] != study.fingerprint():
            raise BadInput(f"{folder} holds another study: give the same settings, or another folder (--out)")
        return
    folder.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    said = {"fingerprint": study.fingerprint(), "study": asdict(study), "versions": machine()}
    part.write_text(json.dumps(said, indent=1))
    part.replace(path)


def _entry(key: Any) -> Entry:
    return (key.task, key.position, key.attention)


def _read_searches(path: Path) -> dict[Entry, float]:
    found: dict[Entry, float] = {}
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            said = json.loads(line)
        except json.JSONDecodeError:
            continue
        found[said["task"], said["position"], said["attention"]] = said["rate"]
    return found


def _write_search(path: Path, entry: Entry, rate: float) -> None:
    with path.open("a") as file:
        file.write(json.dumps({"task": entry[0], "position": entry[1], "attention": entry[2], "rate": rate}) + "\n")
        file.flush()
        os.fsync(file.fileno())
