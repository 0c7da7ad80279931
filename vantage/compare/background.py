"""``python -m vantage.compare.background FOLDER``: an experiment in a process of its own, reported in lines of JSON.

What to do stands in the folder: ``order.json`` (an experiment, and perhaps a budget), or the experiment that was begun
there. The process ends itself, with all its workers, when its standard input is closed: whoever started it may be gone.
"""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any, final

from vantage.compare.budget import Budget
from vantage.compare.executors import LocalBackend
from vantage.compare.experiment import Experiment, experiment_of
from vantage.compare.jobs import Entry, LossPoint
from vantage.compare.metadata import experiment_in, report_metadata
from vantage.compare.names import EXPERIMENT_FILE
from vantage.compare.report import write_report
from vantage.compare.results import Key, RunResult
from vantage.compare.run import run_experiment
from vantage.errors import VantageError

REQUEST_FILE = "order.json"
STEP_LINE_S = 0.5  # seconds between two lines about steps
GRACE_S = 5.0  # seconds to end in, when the parent process is gone


@final
class JsonLines:
    """An observer that writes lines."""

    def __init__(self) -> None:
        self._total = self._steps = 0
        self._started, self._reported = time.monotonic(), 0.0

    def began(self, experiment: Experiment, total: int, finished: int) -> None:
        self._total, self._started = total, time.monotonic()
        emit("began", runs=len(experiment.wanted()), before=finished, steps=experiment.steps)
        self._progress()

    def timed(self, entries: int, total: int) -> None:
        """The note before it says what is being done."""

    def advanced(self, steps: int) -> None:
        self._steps += steps
        if time.monotonic() - self._reported > STEP_LINE_S:
            self._progress()

    def learned(self, point: LossPoint) -> None:
        if math.isfinite(point.loss):  # a model that diverged has no line, and JSON no such number
            emit("learned", **_named(point.entry), step=point.step, steps=point.steps, loss=point.loss)

    def chose(self, entry: Entry, rate: float) -> None:
        emit("chose", **_named(entry), rate=rate)

    def finished(self, results: list[RunResult]) -> None:
        self._progress()
        emit("finished", runs=[asdict(result) for result in results])

    def note(self, text: str) -> None:
        emit("note", text=text)

    def _progress(self) -> None:
        self._reported = time.monotonic()
        passed = self._reported - self._started
        left = passed * (self._total - self._steps) / self._steps if self._steps else None
        emit("progress", done=min(self._steps, self._total), total=self._total, left_s=left)


def _named(entry: Entry) -> dict[str, str]:
    """The task, and what competes in it by the name that results have."""
    return {"task": entry[0], "entry": Key(*entry, seed=0).entry}


def emit(event: str, **fields: Any) -> None:
    sys.stdout.write(json.dumps({"event": event, **fields}) + "\n")
    sys.stdout.flush()


def write_request(folder: Path, experiment: Experiment, budget: float | None) -> None:
    """A budget counts from now on: the process that does it has yet to be started."""
    folder.mkdir(parents=True, exist_ok=True)
    request = {"study": asdict(experiment), "budget": budget, "asked_at": time.time()}
    (folder / REQUEST_FILE).write_text(json.dumps(request))


def run(folder: Path) -> Path:
    """The whole experiment, and its report."""
    backend = LocalBackend.detect()
    budget: Budget | None = None
    resume = (folder / EXPERIMENT_FILE).exists()
    if resume:
        experiment = experiment_in(folder)
    else:
        request = json.loads((folder / REQUEST_FILE).read_text())
        experiment = experiment_of(request["study"], str(folder / REQUEST_FILE))
        if request["budget"] is not None:
            budget = Budget(request["budget"], request.get("asked_at", time.time()), time.time)
    results = run_experiment(experiment, folder, backend, resume=resume, observer=JsonLines(), budget=budget)
    experiment = experiment_in(folder)  # as it fitted the budget
    return write_report(folder, report_metadata(experiment, folder, results), results)


def _end_with_the_parent() -> None:
    """When standard input ends, this process does, and its workers with it: all are in one group."""

    def watch() -> None:
        while os.read(0, 4096):
            pass
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(GRACE_S)
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


def _stop(number: int, frame: object) -> None:
    raise SystemExit(128 + number)  # on the way out the workers are ended


def main(folder: str) -> int:
    signal.signal(signal.SIGTERM, _stop)
    os.nice(5)  # whoever looks at the page goes first
    _end_with_the_parent()
    try:
        page = run(Path(folder))
    except VantageError as e:
        emit("error", message=str(e))
        return 2
    emit("done", page=page.name)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))
