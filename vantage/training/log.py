"""What a run leaves behind while it runs: a line of JSON for each step and each evaluation, and TensorBoard's files.

A number is written so that it reads back to the bit: two runs that computed the same have the same lines, their
times apart. The line of a step that a resumed run does again is taken out first.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from vantage.errors import CheckpointError
from vantage.files import replacing
from vantage.training.tensorboard import Events

FILE = "log.jsonl"


@dataclass(frozen=True)
class StepRecord:
    """One step: ``loss`` is the mean over its targets (nats), before the update."""

    step: int  # how many have been done with this one
    loss: float
    lr: float
    norm: float  # of the gradient, before clipping
    targets: int
    seconds: float


@dataclass(frozen=True)
class ScoreRecord:
    """One evaluation of one set."""

    step: int
    set: str
    loss: float
    tokens: float  # the share of targets that are the likeliest token
    exact: float  # the share of rows in which all are
    rows: int
    groups: Mapping[str, float] = field(default_factory=dict)  # the share of exact rows in each group


class Reporter(Protocol):
    """Who is told how a run goes: the command line's display, a page, or nobody."""

    def begun(self, step: int, steps: int, about: str) -> None: ...
    def stepped(self, record: StepRecord) -> None: ...
    def scored(self, records: list[ScoreRecord]) -> None: ...
    def saved(self, where: Path) -> None: ...
    def note(self, text: str) -> None: ...


class SilentReporter:
    """Nobody."""

    def begun(self, step: int, steps: int, about: str) -> None: ...
    def stepped(self, record: StepRecord) -> None: ...
    def scored(self, records: list[ScoreRecord]) -> None: ...
    def saved(self, where: Path) -> None: ...
    def note(self, text: str) -> None: ...


class TrainLog:
    """The log of a run in its folder; a run that goes on from ``step`` keeps the lines up to it."""

    def __init__(self, folder: Path, step: int):
        self._folder, path = folder, folder / FILE
        with self._clear_errors():
            folder.mkdir(parents=True, exist_ok=True)
            if path.exists():
                _rewrite(path, [line for _, line in _lines(path) if line["step"] <= step])
            self._events = Events(folder / "tensorboard", step)
            self._file = path.open("a")

    def stepped(self, record: StepRecord) -> None:
        with self._clear_errors():
            self._line({"kind": "step", **asdict(record)})
            self._events.scalars(record.step, {"loss": record.loss, "lr": record.lr, "norm": record.norm})

    def scored(self, records: list[ScoreRecord]) -> None:
        with self._clear_errors():
            for record in records:
                self._line({"kind": "score", **asdict(record)})
                values = {"loss": record.loss, "tokens": record.tokens, "exact": record.exact}
                self._events.scalars(record.step, {f"{record.set}/{name}": value for name, value in values.items()})

    def close(self) -> None:
        for file in (self._file, self._events):
            with contextlib.suppress(OSError):  # every line was flushed: what failed then has been said
                file.close()

    @contextlib.contextmanager
    def _clear_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as e:
            raise CheckpointError(
                f"the log in {self._folder} could not be written: {e}. The checkpoints are as they were; free some "
                "space and continue with --resume"
            ) from e

    def _line(self, values: dict[str, Any]) -> None:
        self._file.write(json.dumps(values) + "\n")
        self._file.flush()


def read_log(folder: str | Path) -> tuple[list[StepRecord], list[ScoreRecord]]:
    """The steps and the evaluations of a run, finished or not."""
    steps, scores = [], []
    path = Path(folder) / FILE
    for number, line in _lines(path):
        try:
            kind = line.pop("kind")
            if kind == "step":
                steps.append(StepRecord(**line))
            else:
                scores.append(ScoreRecord(**line))
        except (KeyError, TypeError) as e:
            raise _bad(path, number, f"is no step and no evaluation ({e})") from e
    return steps, scores


def _lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Every whole line with its number, from 1; the last may have been cut short by a kill."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                record = json.loads(line.decode())
            except (ValueError, RecursionError) as e:  # UnicodeDecodeError is a ValueError
                if not line.endswith(b"\n"):
                    return
                raise _bad(path, number, f"is not JSON ({e})") from e
            if not isinstance(record, dict) or not isinstance(record.get("step"), int):
                raise _bad(path, number, f"is no object with a step ({record!r:.60})")
            yield number, record


def _bad(path: Path, number: int, what: str) -> CheckpointError:
    return CheckpointError(f"{path}, line {number} {what}: remove that line, or train again in another folder")


def _rewrite(path: Path, lines: list[dict[str, Any]]) -> None:
    with replacing(path) as part, part.open("w") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
