"""How an experiment is getting on, in a terminal: a bar, a table that fills, and the verdicts at the end."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from vantage.cli.progress import LivePicture

if TYPE_CHECKING:
    from vantage.compare.experiment import Experiment
    from vantage.compare.jobs import LossPoint
    from vantage.compare.results import RunResult, TestScore
    from vantage.compare.run import Entry


def format_score(task: str, score: TestScore, measure: str = "exact") -> str:
    """A score as it is shown: a perplexity of text, or the share of rows, or of tokens, that are right."""
    if task.startswith(("text", "perplexity")):
        return f"{math.exp(min(score.loss, 700)):.2f}"
    return f"{score.tokens if measure == 'tokens' else score.exact:.1%}"


def result_line(result: RunResult, measure: str = "exact") -> str:
    """A finished run in one line."""
    scores = ", ".join(f"{format_score(result.key.task, s, measure)} at {s.length}" for s in result.scores)
    scores = scores or "diverged"
    return f"{result.key.task}: {result.key.entry}, {result.key.seed}: {scores}"


def show_verdicts(report: Path) -> None:
    """What was found in short, what stands beside the papers, and the claims that were measured, in words."""
    content: dict[str, Any] = json.loads(report.read_text())
    print("\nIn short")
    for sentence in content["short"]:
        print(f"  {sentence}")
    for sentence in content["study"]["cuts"]:
        print(f"  {sentence}")
    for about, verdicts in content["verdicts"].items():
        measured = [one for one in verdicts if one["word"] != "not measured"]
        if not measured or (about == "controls" and len(content["verdicts"]) == 2 and not measured):
            continue
        heading = {"controls": "Controls", "claims": "Claims, measured"}.get(about)
        if heading is None:
            paper = content["study"]["papers"][about]
            heading = f"Beside {paper['source']}: {paper['title']}"
        print(f"\n{heading}")
        for one in measured:
            mark = f" [{one['mark']}]" if one["mark"] else ""
            print(f"  {one['what']}{mark}: {one['word']}")
            for pair in one["beside"]:
                print(f"    {pair['entry']}: published {_number(pair['theirs'])}, ours {_with_interval(pair['ours'])}")
            print(f"    {one['why']}")
        rest = len(verdicts) - len(measured)
        if rest:
            print(f"  {rest} more not measured by this experiment: see the report")
    if any(about.startswith("published") for about in content["verdicts"]):
        print("\n[R] recomputed from the paper's raw logs, [T] read in a transcription of its table")
        for note in content["study"]["notes"]:
            print(f"  {note}")
    print()


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}" if abs(value) < 1 else f"{value:.2f}"


def _with_interval(estimate: dict[str, float | None] | None) -> str:
    if estimate is None or estimate["value"] is None:
        return "not measured"
    if estimate["low"] is None or estimate["high"] is None:
        return _number(estimate["value"])
    return f"{_number(estimate['value'])} [{_number(estimate['low'])}, {_number(estimate['high'])}]"


class ExperimentDisplay:
    """A bar over all steps with the time left, and a table that fills as runs finish."""

    def __init__(self) -> None:
        self._picture = LivePicture()
        self._bar: Any = None
        self._task: Any = None
        self._experiment: Any = None
        self._results: list[RunResult] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._picture.__exit__(kind, error, trace)

    def timed(self, entries: int, total: int) -> None:
        if sys.stderr.isatty():
            from rich.spinner import Spinner

            self._picture.draw(Spinner("dots", f"timed {entries} of {total}"))

    def began(self, experiment: Experiment, total: int, finished: int) -> None:
        self._experiment = experiment
        before = f", {finished} of {len(experiment.wanted())} results finished before" if finished else ""
        self.note(f"{experiment.trainings()} runs of {experiment.steps} steps{before}")
        if sys.stderr.isatty():
            self._draw(total)

    def advanced(self, steps: int) -> None:
        if self._bar is not None:
            self._bar.advance(self._task, steps)

    def learned(self, point: LossPoint) -> None:
        """The picture shows scores."""

    def chose(self, entry: Entry, rate: float) -> None:
        if not self._picture.drawn:
            print(f"{entry[0]}: {entry[1]} takes a learning rate of {rate:g}", file=sys.stderr)

    def finished(self, results: list[RunResult]) -> None:
        self._results += results
        if self._picture.drawn:
            self._picture.draw(self._group())
            return
        for r in results:
            print(result_line(r, self._measure(r.key.task)), file=sys.stderr)

    def _measure(self, task: str) -> str:
        return self._experiment.measures().get(task, "exact")

    def note(self, text: str) -> None:
        self._picture.note(text)

    def _draw(self, total: int) -> None:
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

        self._bar = Progress(TextColumn("comparing"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
        self._task = self._bar.add_task("comparing", total=total)
        self._picture.draw(self._group(), refresh_per_second=2)

    def _group(self) -> Any:
        from rich.console import Group
        from rich.table import Table

        lengths = sorted({self._experiment.train_length, *self._experiment.test_lengths})
        table = Table("task", "entry", "runs", *(f"at {n}" for n in lengths))
        for task, entry in dict.fromkeys((r.key.task, r.key.entry) for r in sorted(self._results, key=lambda r: r.key)):
            own = [r for r in self._results if (r.key.task, r.key.entry) == (task, entry)]
            table.add_row(task, entry, _runs(own), *(_mean(own, n, self._measure(task)) for n in lengths))
        return Group(table, self._bar)


def _runs(own: list[RunResult]) -> str:
    lost = sum(r.diverged for r in own)
    return f"{len(own)}" + (f", {lost} diverged" if lost else "")


def _mean(own: list[RunResult], n: int, measure: str) -> str:
    from dataclasses import replace

    scores = [s for r in own if (s := r.at(n)) is not None]
    if not scores:
        return ""
    mean = replace(
        scores[0],
        exact=sum(s.exact for s in scores) / len(scores),
        tokens=sum(s.tokens for s in scores) / len(scores),
        loss=sum(s.loss for s in scores) / len(scores),
    )
    return format_score(own[0].key.task, mean, measure)
