"""Comparisons that run in processes of their own: started, watched, stopped, gone on with; and their reports."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple, final

from vantage.compare.background import REQUEST_FILE, write_request
from vantage.compare.experiment import Experiment, kept_experiment
from vantage.compare.names import EXPERIMENT_FILE
from vantage.compare.report import JSON, PAGE
from vantage.compare.report.page import MEASURES
from vantage.compare.result_table import ResultTable
from vantage.compare.results import FILE, RunResult, read_results
from vantage.errors import VantageError
from vantage.figures import Figure, Line, Lines
from vantage.serve.errors import ApiError
from vantage.serve.studio.compare.answers import CompareRow, ComparisonEntry, ComparisonState, LengthScore
from vantage.serve.studio.compare.learning import LearningCurves

NAME = re.compile(r"[0-9]{8}-[0-9]{6}-[0-9a-f]{4}")
GRACE_S = 5.0  # seconds between asking a comparison to end and ending it
LOG = "log.txt"
CAN_BE_RESUMED = "it can be continued: finished runs are kept"


class Progress(NamedTuple):
    """Runs finished, of how many, and seconds that are left, as far as they are known."""

    done: int = 0
    total: int = 0
    left_s: float | None = None


@final
class RunningComparison:
    """One comparison's process, and the last that it wrote. Read from any thread."""

    def __init__(self, name: str, folder: Path):
        self.name, self.folder = name, folder
        self.state: ComparisonState = "running"
        self.message = ""
        self.progress, self.learning = Progress(), LearningCurves()
        self.results = len(read_results(folder / FILE))
        with (folder / LOG).open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "vantage.compare.background", str(folder)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        assert self._process.stdout is not None
        self._reader = threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True)
        self._reader.start()

    def _read(self, lines: IO[bytes]) -> None:
        with lines:
            for line in lines:
                with contextlib.suppress(ValueError):  # a line that was cut by a kill
                    self._take(json.loads(line))
        code = self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()
        if self.state == "running":
            self.state = "error"
            ended = f"the comparison ended without a report (exit code {code})"
            self.message = f"{ended}; {CAN_BE_RESUMED}. Its output: {self._last()}"

    def _take(self, event: dict[str, Any]) -> None:
        match event.pop("event"):
            case "progress":
                self.progress = Progress(**event)
            case "finished":
                self.results += len(event["runs"])
            case "learned":
                self.learning.take(**event)
            case "chose":
                self.learning.forget(event["task"], event["entry"])
            case "note":
                self.message = event["text"]
            case "began":
                self.message = ""
            case "error":
                self.state, self.message = "error", event["message"]
            case "done":
                self.progress = Progress(self.progress.total, self.progress.total, 0.0)
                self.state, self.message = "done", ""
            case _:
                pass

    def _last(self) -> str:
        text = (self.folder / LOG).read_text(errors="replace").strip()
        return text[-500:] or "nothing"

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def stop(self) -> None:
        """Ask it to end, with its workers; end it if it does not. Blocks for as long as that takes."""
        if self.state == "running":
            self.state, self.message = "stopped", f"the comparison was stopped; {CAN_BE_RESUMED}"
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(GRACE_S)
        self._reader.join(GRACE_S)


@final
class Comparisons:
    """All comparisons of a studio, in one folder. Their names are ours: one from a request is looked up, never used."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._running: dict[str, RunningComparison] = {}
        self._one = threading.Lock()

    # ---- running them

    def start(self, experiment: Experiment, budget: float | None) -> RunningComparison:
        with self._one:
            self._none_runs()
            name = f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
            write_request(self.folder / name, experiment, budget)
            return self._begin(name)

    def resume(self, name: str) -> RunningComparison:
        with self._one:
            self.known(name)
            if (self.folder / name / PAGE).is_file():
                raise ApiError(409, "finished", f"the comparison {name} is finished: open its report")
            self._none_runs()
            return self._begin(name)

    def _begin(self, name: str) -> RunningComparison:
        comparison = self._running[name] = RunningComparison(name, self.folder / name)
        return comparison

    def _none_runs(self) -> None:
        for name, one in self._running.items():
            if one.state == "running":
                raise ApiError(
                    409, "comparison_running", f"the comparison {name} is running and uses all cores: stop it, or wait"
                )

    def get(self, name: str) -> RunningComparison | None:
        """One that this studio started; ``None``: one of an earlier studio."""
        self.known(name)
        return self._running.get(name)

    def stop(self, name: str) -> None:
        one = self.get(name)
        if one is not None:
            one.stop()

    def close(self) -> None:
        for one in self._running.values():
            one.stop()

    # ---- what there is

    def names(self) -> list[str]:
        """The latest first."""
        if not self.folder.is_dir():
            return []
        folders = (path for path in self.folder.iterdir() if NAME.fullmatch(path.name) and not path.is_symlink())
        return sorted(
            (p.name for p in folders if (p / EXPERIMENT_FILE).is_file() or (p / REQUEST_FILE).is_file()), reverse=True
        )

    def known(self, name: str) -> None:
        if name not in self.names():
            raise ApiError(
                404, "not_found", f"there is no comparison {name[:64]!r}: GET /studio/api/compare lists them"
            )

    def page(self, name: str, file: str) -> bytes:
        """A file of a finished report; ``file`` is one of those that a report has."""
        self.known(name)
        try:
            return (self.folder / name / file).read_bytes()
        except OSError as e:
            raise ApiError(404, "not_found", f"the comparison {name} has no report yet") from e

    def listed(self) -> list[ComparisonEntry]:
        return [self._entry(name) for name in self.names()]

    def reports(self) -> list[ComparisonEntry]:
        return [one for one in self.listed() if one.report]

    def _entry(self, name: str) -> ComparisonEntry:
        report = (self.folder / name / PAGE).is_file()
        one = self._running.get(name)
        state = "done" if report else "stopped" if one is None else one.state
        when = time.strftime("%Y-%m-%dT%H:%M:%S", time.strptime(name[:15], "%Y%m%d-%H%M%S"))
        return ComparisonEntry(name=name, when=when, title=self._title(name), state=state, report=report)

    def _title(self, name: str) -> str:
        try:
            settings = self.settings(name)
            return f"{', '.join(settings['tasks'])}: {', '.join(settings['positions'])}"
        except (OSError, ValueError, KeyError, TypeError):
            return "a comparison that cannot be read"

    def settings(self, name: str) -> dict[str, Any]:
        folder = self.folder / name
        file = folder / EXPERIMENT_FILE if (folder / EXPERIMENT_FILE).is_file() else folder / REQUEST_FILE
        return json.loads(file.read_text())["study"]

    def measures(self, name: str) -> dict[str, str]:
        """What is scored in which task, where it is not whole rows."""
        try:
            return kept_experiment(self.settings(name), name).measures()
        except VantageError:  # it names a part that is not registered now: it can be shown all the same
            return {}

    def short(self, name: str) -> list[str]:
        """What a finished report says in a few sentences. Reports of earlier versions have none."""
        return json.loads((self.folder / name / JSON).read_text()).get("short", [])

    def results(self, name: str) -> list[RunResult]:
        return read_results(self.folder / name / FILE)


# ---- what has been found so far


def rows(results: Sequence[RunResult], measures: Mapping[str, str]) -> list[CompareRow]:
    """One for each task and entry: its runs, and the mean score at each length."""
    grouped: dict[tuple[str, str], list[RunResult]] = {}
    for result in sorted(results, key=lambda result: result.key):
        grouped.setdefault((result.key.task, result.key.entry), []).append(result)
    return [
        CompareRow(
            task=task,
            entry=entry,
            measure="tokens" if measures.get(task) == "tokens" else "exact",
            runs=len(runs),
            diverged=sum(run.diverged for run in runs),
            at=[LengthScore(length=n, score=mean) for n, mean in _means(runs, measures.get(task)).items()],
        )
        for (task, entry), runs in grouped.items()
    ]


def _means(runs: Sequence[RunResult], measure: str | None) -> dict[int, float]:
    lengths = sorted({score.length for run in runs for score in run.scores})
    by_length = {n: [score for run in runs if (score := run.at(n)) is not None] for n in lengths}
    scores = {n: [s.tokens if measure == "tokens" else s.exact for s in at] for n, at in by_length.items()}
    return {n: sum(values) / len(values) for n, values in scores.items()}


def curves(results: Sequence[RunResult], train_length: int, measures: Mapping[str, str]) -> Figure:
    """A panel for each task: the score over the length, with its interval where there are seeds enough for one."""
    table = ResultTable(tuple(results), train_length, measures)
    panels = []
    for task in table.tasks:
        lengths = table.lengths(task)
        lines = tuple(line for entry in table.entries(task) if (line := _line(table, task, entry, lengths)) is not None)
        label = MEASURES[table.measure(task)]
        panels.append(Lines(task, "length", label, lines))
    runs = f"{len(results)} run" + ("s" if len(results) != 1 else "")
    caption = f"{runs} so far, trained up to length {train_length}. Accuracy: rows right in every token."
    return Figure("curves", caption, tuple(panels))


def _line(table: ResultTable, task: str, entry: str, lengths: Sequence[int]) -> Line | None:
    points = [(n, table.estimate(task, entry, [n])) for n in lengths]
    known = [(n, point) for n, point in points if point is not None and math.isfinite(point.value)]
    if not known:
        return None
    bounded = all(math.isfinite(point.low) and math.isfinite(point.high) for _, point in known)
    x, y = [n for n, _ in known], [point.value for _, point in known]
    band = ([p.low for _, p in known], [p.high for _, p in known]) if bounded else (None, None)
    return Line(entry, x, y, *band)
