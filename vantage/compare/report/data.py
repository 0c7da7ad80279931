"""The numbers of a report for programs: a line of CSV for each run and length, and everything as JSON."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, is_dataclass
from typing import Any

from vantage.compare.learning import Chance, task_learning
from vantage.compare.report.summary import summary
from vantage.compare.result_table import ResultTable
from vantage.compare.results import RunResult
from vantage.compare.statistics import Estimate, mean_reciprocal_rank
from vantage.compare.verdicts import (
    PairedComparison,
    Verdict,
    comparisons,
    overall_comparisons,
    overall_tasks,
    rank_entries,
)

COLUMNS = (
    *("task", "position", "attention", "seed", "learning_rate", "steps", "parameters", "operations", "diverged"),
    *("length", "beyond_training", "exact", "tokens", "loss", "rows"),
)


def csv_text(table: ResultTable) -> str:
    """How long a run took is left out: it is another number every time, and the rest is not."""
    groups = sorted({name for run in table.results for score in run.scores for name in score.groups})
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow([*COLUMNS, *(f"exact: {name}" for name in groups)])
    for run in sorted(table.results, key=lambda run: run.key):
        key = run.key
        about = [key.task, key.position, key.attention, key.seed, run.lr, run.steps, run.parameters, run.operations]
        about.append("yes" if run.diverged else "no")
        if not run.scores:
            writer.writerow([*about, *[""] * (len(COLUMNS) - len(about) + len(groups))])
        for score in run.scores:
            beyond = "yes" if score.length > table.trained(key.task) else "no"
            values = [score.length, beyond, score.exact, score.tokens, score.loss, score.rows]
            writer.writerow([*about, *values, *(score.groups.get(name, "") for name in groups)])
    return file.getvalue()


VERDICTS = ("about", "what", "mark", "verdict", "entry", "published", "ours", "low", "high", "why", "source")


def verdicts_text(verdicts: Mapping[str, Sequence[Verdict]]) -> str:
    """A line for each verdict, or for each number that is set beside ours; without an entry it is the effect."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(VERDICTS)
    for about, group in verdicts.items():
        for one in group:
            numbers = [("", one.theirs, one.effect), *((b.entry, b.theirs, b.ours) for b in one.beside)]
            for entry, theirs, ours in numbers:
                ends = [""] * 3 if ours is None else [_finite(x) for x in (ours.value, ours.low, ours.high)]
                values = [entry, "" if theirs is None else theirs, *ends]
                writer.writerow([about, one.what, one.mark, one.word, *values, one.why, one.source])
    return file.getvalue()


def _finite(number: float) -> float | str:
    return number if math.isfinite(number) else ""


def json_text(table: ResultTable, metadata: Mapping[str, Any], verdicts: Mapping[str, Sequence[Verdict]]) -> str:
    content = {
        "study": metadata,
        "short": summary(table, metadata),
        "tasks": {task: _task(table, task, metadata["chance"]) for task in table.tasks},
        "overall": {
            "tasks": overall_tasks(table, metadata["chance"]),
            "pairs": [_pair(pair) for pair in overall_comparisons(table, metadata["chance"])],
        },
        "mean_reciprocal_rank": ranks(table, metadata["chance"]),
        "verdicts": verdicts,
        "runs": [_run(run) for run in sorted(table.results, key=lambda run: run.key)],
    }
    return json.dumps(_plain(content), indent=1, allow_nan=False) + "\n"


def ranks(table: ResultTable, chance: Chance | None = None) -> dict[str, Estimate]:
    """Mean reciprocal rank over the tasks that somebody learned, beyond the training length."""
    return mean_reciprocal_rank([table.ranked(task, "beyond") for task in ranked_tasks(table, chance)])


def ranked_tasks(table: ResultTable, chance: Chance | None = None) -> list[str]:
    return [
        task
        for task in table.counted
        if len(table.ranked(task, "beyond")) > 1 and not task_learning(table, task, chance).nobody
    ]


def _task(table: ResultTable, task: str, chance: Chance) -> dict[str, Any]:
    entries = table.entries(task)
    return {
        "trained_to": table.trained(task),
        "measure": "perplexity" if table.measure(task) == "loss" else table.measure(task),
        "lengths": {n: {entry: table.estimate(task, entry, [n]) for entry in entries} for n in table.lengths(task)},
        "within": {entry: table.estimate(task, entry, "within") for entry in entries},
        "beyond": {entry: table.estimate(task, entry, "beyond") for entry in entries},
        "learning": task_learning(table, task, chance),
        "places": rank_entries(table, task, chance=chance),
        "pairs": [_pair(pair) for pair in comparisons(table, task, chance=chance)],
    }


def _pair(pair: PairedComparison) -> dict[str, Any]:
    return {**asdict(pair), "verdict": pair.word}


def _run(run: RunResult) -> dict[str, Any]:
    return {name: value for name, value in asdict(run).items() if name != "seconds"}


def _plain(value: Any) -> Any:
    """JSON has no infinity and no NaN: null stands where there is no number."""
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, str | int | float | bool | None) else str(value)
