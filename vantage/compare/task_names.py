"""The tasks by the names that an experiment knows them by."""

from __future__ import annotations

from typing import Any

from vantage.compare import text as texts
from vantage.errors import BadInput, unknown
from vantage.training.tasks import TASKS, Task, task

# Names with the parameters that the papers used.
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "copy-one": ("copy", {"kind": "one"}),
    "copy-replace": ("copy", {"kind": "replace"}),
    "copy-twice": ("copy", {"times": 2}),
    "reverse-twice": ("reverse", {"times": 2}),
    "addition-reversed": ("addition", {"order": "reversed"}),
    "scan-actions": ("scan", {"count": "actions"}),
    "modular-arithmetic-brackets": ("modular-arithmetic", {"brackets": True}),
}


def task_of(name: str) -> Task:
    if name in VARIANTS:
        base, parameters = VARIANTS[name]
        return task(base, **parameters)
    if name not in TASKS:
        raise BadInput(unknown("task", name, [*TASKS, *VARIANTS, texts.NAME]))
    return task(name)
