"""The tasks by the names that an experiment knows them by."""

from __future__ import annotations

import numpy as np

from vantage.compare.names import TEXT, VARIANTS
from vantage.errors import BadInput, unknown
from vantage.training.tasks import TASKS, Task, task

LONGER = 10  # than a length at which any answer is one symbol


def has_short_answers(name: str) -> bool:
    """Whether an answer is one symbol, also to a longer question."""
    one = task_of(name)
    return len(one.sample(np.random.Generator(np.random.Philox(key=[0, 0])), max(one.shortest, LONGER)).answer) == 1


def task_of(name: str) -> Task:
    if name in VARIANTS:
        base, parameters = VARIANTS[name]
        return task(base, **parameters)
    if name not in TASKS:
        raise BadInput(unknown("task", name, [*TASKS, *VARIANTS, TEXT]))
    return task(name)
