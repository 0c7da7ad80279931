"""A study carried out: searches, then runs, by whichever crew its place has, each kept when it is done.

Whatever stops it, the finished runs are in the folder, and ``resume`` goes on with the others. A run is a pure
function of the study and its key, so it does not matter when, where and beside what it was computed.
"""

from __future__ import annotations

import json
import math
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Protocol, final

import torch

from vantage.compare import jobs
from vantage.compare.crew import Crew, Ended, Place
from vantage.compare.jobs import Job
from vantage.compare.report import machine
from vantage.compare.results import FILE, Key, Result, read_results, write_results
from vantage.compare.study import Study, trained_on
from vantage.compare.text import NAME as TEXT
from vantage.errors import BadInput, VantageError
from vantage.files import append_text, write_text

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


def conduct(
    study: Study, folder: Path, place: Place, *, resume: bool = False, watcher: Watcher | None = None
) -> list[Result]:
    """Every run of the study, in the order of its keys."""
    told = Nobody() if watcher is None else watcher
    _claim(study, folder, resume)
    done = {result.key: result for result in read_results(folder / FILE)}
    rates = _read_searches(folder / SEARCHES)
    todo: dict[Entry, list[int]] = {}
    for key in study.wanted():
        if key not in done and key.seed not in todo.setdefault(_entry(key), []):
            todo[_entry(key)].append(key.seed)
    todo = {entry: seeds for entry, seeds in todo.items() if seeds}
    searched = [Job(study, *entry) for entry in todo if entry not in rates and len(study.rates) > 1]
    rates |= {entry: study.rates[0] for entry in todo if len(study.rates) == 1}
    steps = sum(j.steps * j.models for j in searched) + sum(study.steps * len(seeds) for seeds in todo.values())
    told.began(study, steps, len(done))
    ready = [job for entry, seeds in todo.items() if entry in rates for job in _runs(study, entry, seeds, rates, place)]
    with place.crew(told.moved) as crew:
        work = _Work(crew, told)
        for job in [*searched, *ready]:
            work.begin(job)
        for job, outcome in work.outcomes():
            entry = (job.task, job.position, job.attention)
            if job.searches:
                rates[entry] = outcome
                _write_search(folder / SEARCHES, entry, outcome)
                told.chose(entry, outcome)
                for one in _runs(study, entry, todo[entry], rates, place):
                    work.begin(one)
            else:
                write_results(folder / FILE, outcome)
                done |= {result.key: result for result in outcome}
                told.finished(outcome)
    return [done[key] for key in study.wanted()]


@final
class _Work:
    """The jobs that a crew has been given: those whose worker died are begun again, a few times."""

    def __init__(self, crew: Crew, told: Watcher):
        self._crew, self._told = crew, told
        self._left: set[Job] = set()
        self._deaths: Counter[Job] = Counter()

    def begin(self, job: Job) -> None:
        self._left.add(job)
        self._crew.begin(job)

    def outcomes(self) -> Iterator[tuple[Job, Any]]:
        """Each job with what came of it: a rate, or results."""
        while self._left:
            fell: list[Job] = []
            for news in self._crew.news():
                if isinstance(news, Ended):
                    self._left.discard(news.job)
                    yield news.job, news.outcome
                else:
                    fell.append(news.job)
            if fell:
                self._again(fell)

    def _again(self, fell: list[Job]) -> None:
        self._deaths.update(fell)
        for job in fell:
            if self._deaths[job] > RETRIES:
                raise Lost(
                    f"workers died {RETRIES} times while training {job.position} on {job.task}: too little memory?"
                )
        self._told.note("a worker died; its runs start again")
        for job in fell:
            self._crew.begin(job)


# ---- budgets


def within(study: Study, seconds: float, place: Place) -> Study:
    """The study with as many steps as fit a budget of time; refused if that is too few to mean anything."""
    cost, tests = place.call(_costs, study, place.device)
    steps = int((0.85 * seconds * place.workers - tests) / cost)
    if steps < FEWEST:
        needed = (FEWEST * cost + tests) / place.workers / 0.85
        raise BadInput(
            f"a budget of {seconds:.0f} s gives each run {max(steps, 0)} steps, and fewer than {FEWEST} say nothing: "
            f"allow {math.ceil(needed / 60)} minutes or more, or compare fewer encodings, tasks or seeds"
        )
    return replace(study, steps=min(steps, study.steps))


def _costs(study: Study, device: torch.device) -> tuple[float, float]:
    """Seconds on one worker: of one step of every run, and of all tests."""
    cost = tests = 0.0
    for entry in study.entries():
        cost += _step_seconds(study, entry, device) * (study.seeds + len(study.rates) * study.search)
        tests += _test_seconds(study, entry, device) * study.seeds
    return cost, tests


def _test_seconds(study: Study, entry: Entry, device: torch.device) -> float:
    """Of reading a text at every length, which takes longer than steps do; the tests of other tasks are short."""
    if entry[0] != TEXT:
        return 0.0
    started = time.perf_counter()
    jobs.run(Job(replace(study, steps=1), *entry, seeds=(0,), rate=study.rates[0]), device)
    return time.perf_counter() - started


def _step_seconds(study: Study, entry: Entry, device: torch.device) -> float:
    """Of one model, on one worker, with examples that lie on the shelf, as most do: all entries share them."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)

    def seconds(steps: int, shelf: str) -> float:
        short = replace(study, steps=steps, test_lengths=(study.train_length,), test_examples=1)
        job = Job(short, *entry, seeds=(0,), rate=study.rates[0])
        started = time.perf_counter()
        jobs.run(job, device, shelf=Path(shelf))
        return time.perf_counter() - started

    try:
        with tempfile.TemporaryDirectory() as shelf:
            few, many = 1, 1 + CALIBRATION
            for steps in (few, many):  # what the first run of each sets up
                seconds(steps, shelf)
            return max(seconds(many, shelf) - seconds(few, shelf), 1e-4) / CALIBRATION
    finally:
        torch.set_num_threads(threads)


# ---- files


def _runs(study: Study, entry: Entry, seeds: list[int], rates: dict[Entry, float], place: Place) -> list[Job]:
    """On a GPU all seeds of an entry are one stack; cores share them out."""
    together = [tuple(seeds)] if place.device.type == "cuda" else [(seed,) for seed in seeds]
    return [Job(study, *entry, seeds=some, rate=rates[entry]) for some in together]


def refuse_held(folder: Path) -> None:
    """A folder that holds a study, when a new one is wanted there."""
    if (folder / STUDY).exists():
        raise BadInput(f"{folder} holds a study already: go on with it (--resume), or say another folder (--out)")


def _claim(study: Study, folder: Path, resume: bool) -> None:
    path = folder / STUDY
    if not resume:
        refuse_held(folder)
    elif path.exists():
        try:
            before = json.loads(path.read_text())["fingerprint"]
        except (ValueError, KeyError, TypeError) as e:
            raise BadInput(f"{path} is damaged ({e}): say another folder (--out)") from e
        if before != study.fingerprint():
            raise BadInput(
                f"{folder} holds a study of other settings, or of a text that has changed since: give those, or "
                "another folder (--out)"
            )
        return
    folder.mkdir(parents=True, exist_ok=True)
    said = {"fingerprint": study.fingerprint(), "study": asdict(study), "versions": machine()}
    write_text(path, json.dumps(said, indent=1))


def _entry(key: Key) -> Entry:
    return (trained_on(key), key.position, key.attention)


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
    line = {"task": entry[0], "position": entry[1], "attention": entry[2], "rate": rate}
    append_text(path, json.dumps(line) + "\n")
