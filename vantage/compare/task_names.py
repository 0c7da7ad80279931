"""The tasks by the names that an experiment knows them by."""

from __future__ import annotations

from vantage.compare import text as texts
from vantage.compare.names import VARIANTS
from vantage.errors import BadInput, unknown
from vantage.training.tasks import TASKS, Task, task


def task_of(name: str) -> Task:
    if name in VARIANTS:
        base, parameters = VARIANTS[name]
        return task(base, **parameters)
    if name not in TASKS:
        raise BadInput(unknown("task", name, [*TASKS, *VARIANTS, texts.NAME]))
    return task(name)
