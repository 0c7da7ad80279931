"""What a comparison finds out: one result for each run, kept as a line of JSON as soon as the run is done."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from vantage.files import append_text

FILE = "runs.jsonl"


@dataclass(frozen=True, order=True)
class Key:
    """Which run: what is compared is the position (or the attention) within a task, over the same seeds."""

    task: str
    position: str  # as people say it: "rope", "none (bidirectional)", "randomised rope"
    attention: str  # "multi-head", "multi-query", "grouped-query 2"
    seed: int

    @property
    def entry(self) -> str:
        """What competes: the position, with the attention where that is not the plain one."""
        return self.position if self.attention == "multi-head" else f"{self.position}, {self.attention}"


@dataclass(frozen=True)
class TestScore:
    """One test set of one run."""

    length: int
    exact: float  # the share of rows that are right in every token
    tokens: float
    loss: float
    rows: int
    groups: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class RunResult:
    """One run, finished or diverged (then it has no scores, and it is counted)."""

    key: Key
    lr: float  # the one that the search chose for this task and entry
    steps: int
    parameters: int
    operations: float  # floating-point operations of the training, counted
    seconds: float  # its share of the time of the stack it was trained in
    diverged: bool
    scores: tuple[TestScore, ...] = ()

    def at(self, length: int) -> TestScore | None:
        return next((score for score in self.scores if score.length == length), None)


def write_results(path: Path, results: Iterable[RunResult]) -> None:
    """Add finished runs to the file; a line is whole or not there."""
    append_text(path, "".join(json.dumps(asdict(result)) + "\n" for result in results))


def read_results(path: Path) -> list[RunResult]:
    """The runs that are finished. A line that was cut short by a kill does not count."""
    results: dict[Key, RunResult] = {}
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            fields: dict[str, Any] = json.loads(line)
        except json.JSONDecodeError:
            continue
        scores = tuple(TestScore(**score) for score in fields.pop("scores"))
        result = RunResult(key=Key(**fields.pop("key")), scores=scores, **fields)
        results[result.key] = result
    return list(results.values())
