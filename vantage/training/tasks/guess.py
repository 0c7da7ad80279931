"""What a guess gets in a task: the level that a model must rise above to have learned anything of it."""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Hashable, Sequence
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
    """Of whoever never looks at the prompt: the commonest answer, or the commonest symbol at each place, perhaps behind
    the symbol that stands before it in the answer (which is what there is to see where one token is repeated).

    Counted in examples of this length: learned from one half of them and tried on the other, as the commonest of a few
    would always do well among themselves. A task that states its own chance is believed.
    """
    answers = [task.sample(np.random.Generator(np.random.Philox(key=[1, i])), length).answer for i in range(ROWS)]
    exact = task.chance if isinstance(task, Guessable) else _share([[("", answer)] for answer in answers])
    by_place = [list(enumerate((*answer, END))) for answer in answers]
    behind = [[((i, answer[i - 1] if i else None), s) for i, s in enumerate((*answer, END))] for answer in answers]
    return GuessScore(exact, max(_share(by_place), _share(behind)))


def _share(rows: Sequence[Sequence[tuple[Hashable, Hashable]]]) -> float:
    """How often what is commonest in a situation in the one half of the rows is right in the other."""
    seen: dict[Hashable, Counter[Hashable]] = {}
    for situation, symbol in itertools.chain.from_iterable(rows[::2]):
        seen.setdefault(situation, Counter())[symbol] += 1
    commonest = {situation: symbols.most_common(1)[0][0] for situation, symbols in seen.items()}
    tried = list(itertools.chain.from_iterable(rows[1::2]))
    return sum(commonest.get(situation) == symbol for situation, symbol in tried) / len(tried)
