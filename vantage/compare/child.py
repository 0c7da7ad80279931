"""``python -m vantage.compare.child FOLDER``: a study in a process of its own, told in lines of JSON.

What to do stands in the folder: ``order.json`` (a study, and perhaps a budget), or the study that was begun there. The
process ends itself, with all its workers, when its standard input is closed: whoever started it may be gone.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any, final

from vantage.compare.conduct import STUDY, Entry, Place, conduct, within
from vantage.compare.facts import facts, study_in
from vantage.compare.report import write_report
from vantage.compare.results import Result
from vantage.compare.study import Study, study_of
from vantage.errors import VantageError

ORDER = "order.json"
EVERY = 0.5  # seconds between two lines about steps
GRACE = 5.0  # seconds to end in, when the one who started it is gone


@final
class Teller:
    """A watcher that writes lines."""

    def __init__(self) -> None:
        self._total = self._done = 0
        self._began, self._spoke = time.monotonic(), 0.0

    def began(self, study: Study, total: int, done: int) -> None:
        self._total, self._began = total, time.monotonic()
        tell("began", runs=len(study.wanted()), before=done, steps=study.steps)
        self._progress()

    def moved(self, steps: int) -> None:
        self._done += steps
        if time.monotonic() - self._spoke > EVERY:
            self._progress()

    def chose(self, entry: Entry, rate: float) -> None:
        tell("chose", task=entry[0], position=entry[1], attention=entry[2], rate=rate)

    def finished(self, results: list[Result]) -> None:
        self._progress()
        tell("finished", runs=[asdict(result) for result in results])

    def note(self, text: str) -> None:
        tell("note", text=text)

    def _progress(self) -> None:
        self._spoke = time.monotonic()
        passed = self._spoke - self._began
        left = passed * (self._total - self._done) / self._done if self._done else None
        tell("progress", done=min(self._done, self._total), total=self._total, left_s=left)


def tell(what: str, **said: Any) -> None:
    sys.stdout.write(json.dumps({"event": what, **said}) + "\n")
    sys.stdout.flush()


def write_order(folder: Path, study: Study, budget: float | None) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ORDER).write_text(json.dumps({"study": asdict(study), "budget": budget}))


def run(folder: Path) -> Path:
    """The whole study, and its report."""
    place = Place.here()
    resume = (folder / STUDY).exists()
    if resume:
        study = study_in(folder)
    else:
        order = json.loads((folder / ORDER).read_text())
        study = study_of(order["study"], str(folder / ORDER))
        if order["budget"] is not None:
            tell("note", text="timing a few steps of each entry, to fit the budget")
            study = within(study, order["budget"], place)
    results = conduct(study, folder, place, resume=resume, watcher=Teller())
    return write_report(folder, facts(study, folder), results)


def _end_with_the_starter() -> None:
    """When standard input ends, this process does, and its workers with it: all are in one group."""

    def watch() -> None:
        while os.read(0, 4096):
            pass
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(GRACE)
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


def _stop(number: int, frame: object) -> None:
    raise SystemExit(128 + number)  # on the way out the workers are ended


def main(folder: str) -> int:
    signal.signal(signal.SIGTERM, _stop)
    os.nice(5)  # whoever looks at the page goes first
    _end_with_the_starter()
    try:
        page = run(Path(folder))
    except VantageError as e:
        tell("error", message=str(e))
        return 2
    tell("done", page=page.name)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))
