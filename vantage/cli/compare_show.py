"""How a comparison goes, on a terminal: a bar, a table that fills, and the verdicts at the end."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from vantage.compare.conduct import Entry
    from vantage.compare.results import Result, Score
    from vantage.compare.study import Study


def told(task: str, score: Score) -> str:
    """A score as a person says it: a perplexity of text, or the share of rows that are right."""
    if task.startswith(("text", "perplexity")):
        return f"{math.exp(min(score.loss, 700)):.2f}"
    return f"{score.exact:.1%}"


def line(result: Result) -> str:
    """A finished run in one line."""
    scores = ", ".join(f"{told(result.key.task, s)} at {s.length}" for s in result.scores) or "diverged"
    return f"{result.key.task}: {result.key.entry}, {result.key.seed}: {scores}"


def show_verdicts(report: Path) -> None:
    """What stands beside the papers, and the claims that were measured, in words."""
    said: dict[str, Any] = json.loads(report.read_text())
    for about, verdicts in said["verdicts"].items():
        measured = [one for one in verdicts if one["word"] != "not measured"]
        if not measured or (about == "controls" and len(said["verdicts"]) == 2 and not measured):
            continue
        heading = {"controls": "Controls", "claims": "Claims, measured"}.get(about)
        if heading is None:
            paper = said["study"]["papers"][about]
            heading = f"Beside {paper['source']}: {paper['title']}"
        print(f"\n{heading}")
        for one in measured:
            mark = f" [{one['mark']}]" if one["mark"] else ""
            print(f"  {one['what']}{mark}: {one['word']}")
            for pair in one["beside"]:
                print(f"    {pair['entry']}: published {_number(pair['theirs'])}, ours {_with_ends(pair['ours'])}")
            print(f"    {one['why']}")
        rest = len(verdicts) - len(measured)
        if rest:
            print(f"  {rest} more not measured by this study: see the report")
    if any(about.startswith("published") for about in said["verdicts"]):
        print("\n[R] recomputed from the paper's raw logs, [T] read in a transcription of its table")
        for note in said["study"]["notes"]:
            print(f"  {note}")
    print()


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}" if abs(value) < 1 else f"{value:.2f}"


def _with_ends(found: dict[str, float | None] | None) -> str:
    if found is None or found["value"] is None:
        return "not measured"
    if found["low"] is None or found["high"] is None:
        return _number(found["value"])
    return f"{_number(found['value'])} [{_number(found['low'])}, {_number(found['high'])}]"


class Display:
    """A bar over all steps with the time left, and a table that fills as runs finish."""

    def __init__(self) -> None:
        self._live: Any = None
        self._bar: Any = None
        self._task: Any = None
        self._study: Any = None
        self._results: list[Result] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def began(self, study: Study, total: int, done: int) -> None:
        self._study = study
        came = f", {done} of {len(study.wanted())} results there before" if done else ""
        print(f"{study.trainings()} runs of {study.steps} steps{came}", file=sys.stderr)
        if sys.stderr.isatty():
            self._draw(total)

    def moved(self, steps: int) -> None:
        if self._bar is not None:
            self._bar.advance(self._task, steps)

    def chose(self, entry: Entry, rate: float) -> None:
        if self._live is None:
            print(f"{entry[0]}: {entry[1]} takes a learning rate of {rate:g}", file=sys.stderr)

    def finished(self, results: list[Result]) -> None:
        self._results += results
        if self._live is not None:
            self._live.update(self._group())
            return
        for r in results:
            print(line(r), file=sys.stderr)

    def note(self, text: str) -> None:
        if self._live is not None:
            self._live.console.print(text)
        else:
            print(text, file=sys.stderr)

    def _draw(self, total: int) -> None:
        from rich.console import Console
        from rich.live import Live
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

        self._bar = Progress(TextColumn("comparing"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
        self._task = self._bar.add_task("comparing", total=total)
        self._live = Live(self._group(), console=Console(stderr=True), refresh_per_second=2)
        self._live.start()

    def _group(self) -> Any:
        from rich.console import Group
        from rich.table import Table

        lengths = sorted({self._study.train_length, *self._study.test_lengths})
        table = Table("task", "entry", "runs", *(f"at {n}" for n in lengths))
        for task, entry in dict.fromkeys((r.key.task, r.key.entry) for r in sorted(self._results, key=lambda r: r.key)):
            own = [r for r in self._results if (r.key.task, r.key.entry) == (task, entry)]
            table.add_row(task, entry, _runs(own), *(_mean(own, n) for n in lengths))
        return Group(table, self._bar)


def _runs(own: list[Result]) -> str:
    lost = sum(r.diverged for r in own)
    return f"{len(own)}" + (f", {lost} diverged" if lost else "")


def _mean(own: list[Result], n: int) -> str:
    from dataclasses import replace

    scores = [s for r in own if (s := r.at(n)) is not None]
    if not scores:
        return ""
    mean = replace(
        scores[0],
        exact=sum(s.exact for s in scores) / len(scores),
        loss=sum(s.loss for s in scores) / len(scores),
    )
    return told(own[0].key.task, mean)
