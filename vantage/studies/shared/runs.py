"""Training runs and comparisons inside a study, reported as the progress of the study."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from vantage.compare.executors import LocalBackend
from vantage.compare.experiment import Experiment
from vantage.compare.jobs import LossPoint
from vantage.compare.result_table import ResultTable
from vantage.compare.results import RunResult
from vantage.compare.run import Entry, run_experiment
from vantage.compare.statistics import Estimate
from vantage.figures import Line, Lines
from vantage.studies.study import Progress
from vantage.training.log import ScoreRecord, StepRecord

AT_MOST = 7  # lines of a panel


class TrainingProgress:
    """A training run's report, as the progress of a study: from ``low`` to ``high`` of it."""

    def __init__(self, progress: Progress, low: float, high: float, what: str):
        self.progress, self.low, self.high, self.what = progress, low, high, what
        self.steps = 1

    def begun(self, step: int, steps: int, about: str) -> None:
        self.steps = steps

    def stepped(self, record: StepRecord) -> None:
        share = self.low + (self.high - self.low) * record.step / self.steps
        self.progress(share, f"{self.what}: step {record.step} of {self.steps}, loss {record.loss:.3f}")

    def scored(self, records: list[ScoreRecord]) -> None: ...
    def saved(self, where: Path) -> None: ...
    def note(self, text: str) -> None: ...


class ComparisonProgress:
    """A comparison's steps, as the progress of a study."""

    def __init__(self, progress: Progress):
        self._progress = progress
        self._total, self._done, self._doing = 1, 0, "training"

    def timed(self, entries: int, total: int) -> None:
        """A study has no budget to fit."""

    def began(self, experiment: Experiment, total: int, finished: int) -> None:
        self._total = max(1, total)
        self._progress(0.0, self._doing)

    def advanced(self, steps: int) -> None:
        self._done += steps
        self._progress(min(0.99, self._done / self._total), self._doing)

    def learned(self, point: LossPoint) -> None:
        """A study shows no curve of its losses."""

    def chose(self, entry: Entry, rate: float) -> None:
        self._doing = f"training; {entry[1]} on {entry[0]} at a rate of {rate:g}"

    def finished(self, results: list[RunResult]) -> None:
        for result in results:
            self._doing = f"trained {result.key.entry} on {result.key.task}, seed {result.key.seed}"
        self.advanced(0)

    def note(self, text: str) -> None:
        self._progress(min(0.99, self._done / self._total), text)


def run_comparison(experiment: Experiment, progress: Progress, workers: int) -> list[RunResult]:
    """Every run of an experiment, on the cores or the GPU of this machine."""
    with tempfile.TemporaryDirectory() as folder:
        backend = LocalBackend.detect(workers=workers or None)
        return run_experiment(experiment, Path(folder), backend, observer=ComparisonProgress(progress))


def bounds(estimate: Estimate) -> tuple[float, float]:
    return estimate.low, estimate.high


def over_lengths(view: ResultTable, task: str, entries: Sequence[str], chance: float | None) -> tuple[Lines, ...]:
    """The share right over the length, with its intervals; a panel for every few entries."""
    lengths = view.lengths(task)
    lines = []
    for entry in entries:
        estimates = [view.estimate(task, entry, [n]) for n in lengths]
        measured = [(n, e) for n, e in zip(lengths, estimates, strict=True) if e is not None]
        low, high = [e.low for _, e in measured], [e.high for _, e in measured]
        lines.append(Line(entry, [n for n, _ in measured], [e.value for _, e in measured], low, high))
    marks = () if chance is None else (("chance", chance),)
    return tuple(
        Lines(
            f"{task}, trained to length {view.trained(task)}",
            "length",
            "share right",
            tuple(lines[i : i + AT_MOST]),
            marks=marks,
        )
        for i in range(0, len(lines), AT_MOST)
    )
