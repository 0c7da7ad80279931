"""Training runs and comparisons inside a study, reported as the progress of the study."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from vantage.compare.cells import View
from vantage.compare.conduct import Entry, Place, conduct
from vantage.compare.results import Result
from vantage.compare.statistics import Estimate
from vantage.compare.study import Study
from vantage.figures import Line, Lines
from vantage.studies.study import Progress
from vantage.training.log import Scored, Stepped

AT_MOST = 7  # lines of a panel


class TrainingProgress:
    """A training run's report, as the progress of a study: from ``low`` to ``high`` of it."""

    def __init__(self, progress: Progress, low: float, high: float, what: str):
        self.progress, self.low, self.high, self.what = progress, low, high, what
        self.steps = 1

    def begun(self, step: int, steps: int, about: str) -> None:
        self.steps = steps

    def stepped(self, record: Stepped) -> None:
        share = self.low + (self.high - self.low) * record.step / self.steps
        self.progress(share, f"{self.what}: step {record.step} of {self.steps}, loss {record.loss:.3f}")

    def scored(self, records: list[Scored]) -> None: ...
    def saved(self, where: Path) -> None: ...
    def note(self, text: str) -> None: ...


class ComparisonProgress:
    """A comparison's steps, as the progress of a study."""

    def __init__(self, progress: Progress):
        self._progress = progress
        self._total, self._done, self._doing = 1, 0, "training"

    def began(self, study: Study, total: int, done: int) -> None:
        self._total = max(1, total)
        self._progress(0.0, self._doing)

    def moved(self, steps: int) -> None:
        self._done += steps
        self._progress(min(0.99, self._done / self._total), self._doing)

    def chose(self, entry: Entry, rate: float) -> None:
        self._doing = f"training; {entry[1]} on {entry[0]} at a rate of {rate:g}"

    def finished(self, results: list[Result]) -> None:
        for result in results:
            self._doing = f"trained {result.key.entry} on {result.key.task}, seed {result.key.seed}"
        self.moved(0)

    def note(self, text: str) -> None:
        self._progress(min(0.99, self._done / self._total), text)


def run_comparison(study: Study, progress: Progress, workers: int) -> list[Result]:
    """Every run of a comparison, on the cores or the GPU of this machine."""
    with tempfile.TemporaryDirectory() as folder:
        place = Place.here(workers=workers or None)
        return conduct(study, Path(folder), place, watcher=ComparisonProgress(progress))


def bounds(estimate: Estimate) -> tuple[float, float]:
    return estimate.low, estimate.high


def over_lengths(view: View, task: str, entries: Sequence[str], chance: float | None) -> tuple[Lines, ...]:
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
