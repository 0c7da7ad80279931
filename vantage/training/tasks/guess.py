"""What a guess gets in a task: the level that a model must rise above to have learned anything of it."""

from __future__ import annotations

import functools
from collections import Counter
from dataclasses import dataclass

import numpy as np

from vantage.training.tasks.task import Guessable, Task

ROWS = 2048  # examples that the symbols are counted in
END = -1  # stands behind every answer, and is asked for as well


@dataclass(frozen=True)
class GuessScore:
    """``exact``: the share of rows that are right. ``tokens``: the share of tokens, the end of the answer counted."""

    exact: float
    tokens: float


@functools.lru_cache(64)
def guess_score(task: Task, length: int) -> GuessScore:
    """Of whoever never looks at the prompt, and gives the commonest answer, or at each place its commonest symbol.

    Counted in examples of this length. A task that states its own chance is believed.
    """
    answers = Counter(
        task.sample(np.random.Generator(np.random.Philox(key=[1, i])), length).answer for i in range(ROWS)
    )
    places: dict[int, Counter[int]] = {}
    for answer, times in answers.items():
        for place, symbol in enumerate((*answer, END)):
            places.setdefault(place, Counter())[symbol] += times
    right = sum(symbols.most_common(1)[0][1] for symbols in places.values())
    tokens = right / sum(symbols.total() for symbols in places.values())
    exact = task.chance if isinstance(task, Guessable) else answers.most_common(1)[0][1] / ROWS
    return GuessScore(exact, tokens)
