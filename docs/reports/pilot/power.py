"""How many seeds the default comparison needs: ``python docs/reports/pilot/power.py``, from the pilot runs beside it.

24 seeds of six encodings on copy and sort, on a GPU: 300 and 500 steps of 32 rows, width 64, 2 layers, 4 heads, a rate
of 3e-3, trained to length 10. What is compared is the share of right tokens, in the mean of the lengths 15, 20 and 40.
"""

from __future__ import annotations

import csv
import itertools
import math
import statistics
from collections import defaultdict
from pathlib import Path

from vantage.compare.result_table import ResultTable
from vantage.compare.results import Key, RunResult, TestScore
from vantage.compare.statistics import student_quantile
from vantage.compare.verdicts import comparisons, overall_comparisons

TRAINED, PAIRS, POWER = 10, 15, 0.9


def runs(steps: int) -> list[RunResult]:
    scores: dict[Key, list[TestScore]] = defaultdict(list)
    with (Path(__file__).parent / "scores.csv").open() as file:
        for row in csv.DictReader(file):
            if int(row["steps"]) == steps:
                key = Key(row["task"], row["position"], "multi-head", int(row["seed"]))
                score = TestScore(int(row["length"]), float(row["exact"]), float(row["tokens"]), 0.0, int(row["rows"]))
                scores[key].append(score)
    return [RunResult(key, 3e-3, steps, 0, 0.0, 0.0, False, tuple(found)) for key, found in scores.items()]


def table(results: list[RunResult]) -> ResultTable:
    return ResultTable(tuple(results), TRAINED, {"copy": "tokens", "sort": "tokens"})


def seeds_needed(effect: float, spread: float) -> int:
    """For Student's paired test at 0.05 / 15, the first step of Holm's correction, to see it in nine of ten cases."""
    for n in range(3, 1000):
        t = student_quantile(1 - 0.05 / PAIRS, n - 1) + student_quantile(2 * POWER - 1, n - 1)
        if abs(effect) * math.sqrt(n) / spread >= t:
            return n
    return 1000


def effects(results: list[RunResult]) -> None:
    for task in ("copy", "sort"):
        samples = table(results).ranked(task, "beyond")
        for a, b in itertools.combinations(sorted(samples, key=lambda e: -samples[e].mean), 2):
            apart = [x - y for x, y in zip(samples[a].values, samples[b].values, strict=True)]
            mean, spread = statistics.mean(apart), statistics.stdev(apart)
            print(f"  {task:5} {a:>10} - {b:10} {mean:+.3f}, spread {spread:.3f}: {seeds_needed(mean, spread)} seeds")


def repetitions(results: list[RunResult], seeds: int) -> None:
    """Experiments of so many seeds, with no seed in two of them."""
    better: dict[tuple[str, frozenset[str]], set[str]] = defaultdict(set)
    for first in range(0, 24 - seeds + 1, seeds):
        own = table([run for run in results if first <= run.key.seed < first + seeds])
        found = {"copy": comparisons(own, "copy"), "sort": comparisons(own, "sort"), "both": overall_comparisons(own)}
        for name, pairs in found.items():
            for pair in pairs:
                if pair.distinguishable:
                    better[name, frozenset((pair.better, pair.worse))].add(pair.better)
        print(
            f"  {seeds} seeds from {first}:",
            {n: f"{sum(p.distinguishable for p in ps)}/{len(ps)}" for n, ps in found.items()},
        )
    print("  decided one way and the other:", sum(len(names) > 1 for names in better.values()))


if __name__ == "__main__":
    for steps in (300, 500):
        print(f"{steps} steps")
        effects(runs(steps))
        for seeds in (3, 5, 8):
            repetitions(runs(steps), seeds)
