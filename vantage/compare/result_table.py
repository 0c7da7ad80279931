"""The results of an experiment as a table: a task, an entry, some lengths, and what each seed scored there."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from vantage.compare.results import RunResult, TestScore
from vantage.compare.statistics import Estimate, Sample, estimate, row_noise
from vantage.errors import BadInput, unknown

Part = Literal["within", "beyond"]
MEASURES = ("exact", "tokens", "loss")


def normalise_name(name: str) -> str:
    """A name however it was written: "randomized RoPE" and "randomised-rope" are one."""
    for old, new in (("randomized", "randomised"), ("(", ""), (")", ""), (" ", "-"), ("_", "-")):
        name = name.lower().replace(old, new)
    return name


def normalise_task(name: str) -> str:
    """``copy(kind='one')`` and ``copy(kind="one")`` are one."""
    return "".join(letter for letter in name.lower() if letter not in " \"'")


def is_control(entry: str) -> bool:
    """A control is shown and tested, and takes no place among those that compete."""
    return normalise_name(entry.partition(",")[0]).endswith("-bidirectional")


ASPECTS = (", sliding", ", over position")


def is_aspect(task: str) -> bool:
    """The same runs, read in another way: shown, and not counted a second time where tasks are."""
    return task.endswith(ASPECTS)


def perplexity(loss: float) -> float:
    return math.exp(min(loss, 700.0))


@dataclass(frozen=True)
class ResultTable:
    """Results with what it takes to read them: how long the training rows were, and what is scored in which task.

    ``measures`` names "exact", "tokens" or "loss" for a task; without it "loss" where the name begins with "text" or
    "perplexity", and "exact" everywhere else.

    A run that diverged scores 0, as one who uses it would find; its loss counts as the worst of the task at that
    length. A run that has not all of the lengths asked for is left out.
    """

    results: tuple[RunResult, ...]
    train_length: int | Mapping[str, int]
    measures: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for task, measure in self.measures.items():
            if measure not in MEASURES:
                raise BadInput(f"measures: {task!r}: {unknown('measure', measure, MEASURES)}")

    @functools.cached_property
    def _runs(self) -> dict[tuple[str, str], list[RunResult]]:
        runs: dict[tuple[str, str], list[RunResult]] = {}
        for result in sorted(self.results, key=lambda result: result.key):
            runs.setdefault((result.key.task, result.key.entry), []).append(result)
        return runs

    @property
    def tasks(self) -> list[str]:
        return list(dict.fromkeys(task for task, _ in self._runs))

    @property
    def counted(self) -> list[str]:
        """The tasks, each once however its runs were read."""
        return [task for task in self.tasks if not is_aspect(task)]

    @property
    def all_entries(self) -> list[str]:
        return sorted({entry for _, entry in self._runs})

    def entries(self, task: str, *, controls: bool = True) -> list[str]:
        return [entry for at, entry in self._runs if at == task and (controls or not is_control(entry))]

    def runs(self, task: str, entry: str) -> list[RunResult]:
        return self._runs.get((task, entry), [])

    def trained(self, task: str) -> int:
        if isinstance(self.train_length, int):
            return self.train_length
        if task not in self.train_length:
            raise BadInput(f"no train_length for {task!r}. There are: {', '.join(self.train_length)}")
        return self.train_length[task]

    def measure(self, task: str) -> str:
        return self.measures.get(task, "loss" if task.startswith(("text", "perplexity")) else "exact")

    def lengths(self, task: str, part: Part | None = None) -> list[int]:
        lengths = sorted({s.length for r in self.results if r.key.task == task for s in r.scores})
        trained = self.trained(task)
        return [length for length in lengths if part is None or (length > trained) == (part == "beyond")]

    def groups(self, task: str) -> list[str]:
        names = {name for r in self.results if r.key.task == task for s in r.scores for name in s.groups}
        return sorted(names, key=lambda name: ([int(word) for word in name.split() if word.isdigit()], name))

    def diverged(self, task: str, entry: str) -> int:
        return sum(run.diverged for run in self.runs(task, entry))

    # --------------------------------------------------------------------------------------------------- samples

    def sample(self, task: str, entry: str, where: Part | Iterable[int], measure: str | None = None) -> Sample | None:
        """What each seed scored, in the mean of the lengths, each of which counts the same."""
        lengths = self.lengths(task, where) if isinstance(where, str) else list(where)
        measure = measure or self.measure(task)
        seeds, values, noise, rows = [], [], [], []
        for run in self.runs(task, entry) if lengths else []:
            scores = [self._worst(task, length, measure) if run.diverged else run.at(length) for length in lengths]
            complete = [score for score in scores if score is not None]
            if len(complete) < len(scores):
                continue
            points = [self._value(task, score, measure) for score in complete]
            seeds.append(run.key.seed)
            values.append(sum(points) / len(points))
            noise.append(0.0 if measure == "loss" or run.diverged else _noise(points, [s.rows for s in complete]))
            rows.append(sum(score.rows for score in complete))
        return _sample_of(seeds, values, noise, rows, measure)

    def group(self, task: str, entry: str, name: str, where: Part) -> Sample | None:
        """A group of rows alone, such as swaps of neighbours. How many rows it had is taken to be an even share."""
        seeds, values, noise = [], [], []
        for run in self.runs(task, entry):
            scores = [s for s in (run.at(length) for length in self.lengths(task, where)) if s and name in s.groups]
            if not scores and not run.diverged:
                continue
            points = [score.groups[name] for score in scores] or [0.0]
            seeds.append(run.key.seed)
            values.append(sum(points) / len(points))
            noise.append(_noise(points, [max(1, s.rows // len(s.groups)) for s in scores]) if scores else 0.0)
        return _sample_of(seeds, values, noise, [], "exact")

    def estimate(
        self, task: str, entry: str, where: Part | Iterable[int], measure: str | None = None
    ) -> Estimate | None:
        """As people read it: accuracy, or perplexity where the loss is scored (its geometric mean)."""
        sample = self.sample(task, entry, where, measure)
        if sample is None:
            return None
        result = estimate(sample)
        return result.mapped(perplexity) if (measure or self.measure(task)) == "loss" else result

    def ranked(self, task: str, where: Part | Iterable[int]) -> dict[str, Sample]:
        """Larger is better in all of them: the loss is turned round. Without the controls."""
        samples: dict[str, Sample] = {}
        for entry in self.entries(task, controls=False):
            if (sample := self.sample(task, entry, where)) is not None:
                samples[entry] = sample.negated() if self.measure(task) == "loss" else sample
        return samples

    def _value(self, task: str, score: TestScore, measure: str) -> float:
        value = {"exact": score.exact, "tokens": score.tokens, "loss": score.loss}[measure]
        if math.isfinite(value):
            return value
        worst = self._worst(task, score.length, measure)
        return 0.0 if worst is None else self._value(task, worst, measure)

    def _worst(self, task: str, length: int, measure: str) -> TestScore | None:
        """What a run that diverged counts as. None where no run has a loss there to take the worst of."""
        if measure != "loss":
            return TestScore(length, 0.0, 0.0, math.nan, 0)
        losses = [s.loss for r in self.results if r.key.task == task and (s := r.at(length)) and math.isfinite(s.loss)]
        return TestScore(length, 0.0, 0.0, max(losses), 0) if losses else None


def _noise(points: list[float], rows: list[int]) -> float:
    return math.sqrt(sum(row_noise(point, n) ** 2 for point, n in zip(points, rows, strict=True))) / len(points)


def _sample_of(
    seeds: list[int], values: list[float], noise: list[float], rows: list[int], measure: str
) -> Sample | None:
    if not seeds:
        return None
    bounds = (0.0, math.inf) if measure == "loss" else (0.0, 1.0)
    behind = min((n for n in rows if n), default=0) if measure != "loss" else 0
    return Sample(tuple(seeds), tuple(values), tuple(noise), behind, bounds)
