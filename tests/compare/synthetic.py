"""Results as an experiment would have them if its encodings were as good as we say: scattered seeds and test rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from vantage.compare.results import Key, RunResult, TestScore

Skill = Callable[[int], float]  # of a length
LENGTHS = (10, 20, 40, 60, 80, 100)


def falls(over: float) -> Skill:
    """Right up to length 20, then down to a half in so many more."""
    return lambda length: 0.5 + 0.48 * math.exp(-max(0, length - 20) / over)


def experiment(
    skills: Mapping[str, Skill],
    *,
    tasks: Sequence[str] = ("ordering",),
    seeds: int = 3,
    scatter: float = 0.01,
    rows: int = 500,
    lengths: Sequence[int] = LENGTHS,
    attention: str = "multi-head",
    losses: bool = False,
    diverged: Sequence[tuple[str, int]] = (),
    groups: Sequence[str] = (),
) -> list[RunResult]:
    """``losses``: a skill is the loss itself. A seed's luck is the same for all entries of a task."""
    results = []
    for t, task in enumerate(tasks):
        for seed in range(seeds):
            luck = np.random.default_rng([1, t, seed]).normal(0, scatter)
            for e, (position, skill) in enumerate(skills.items()):
                rng = np.random.default_rng([2, t, seed, e])
                fell = (position, seed) in diverged
                scores = [] if fell else [_score(rng, skill(n), luck, n, rows, losses, groups) for n in lengths]
                key = Key(task, position, attention, seed)
                results.append(RunResult(key, 1e-3, 3000, 101_378 + e, 2.5e12, 10.0 + seed, fell, tuple(scores)))
    return results


def _score(
    rng: np.random.Generator, skill: float, luck: float, length: int, rows: int, losses: bool, groups: Sequence[str]
) -> TestScore:
    if losses:
        return TestScore(length, 0.0, 0.3, skill + luck, rows)
    share = float(np.clip(skill + luck, 0, 1))
    exact = rng.binomial(rows, share) / rows
    return TestScore(length, exact, exact, -math.log(max(exact, 1e-3)), rows, dict.fromkeys(groups, exact))
