"""Tasks to train and test on, each a small pure generator. ``task`` makes one from its name and parameters."""

from __future__ import annotations

from dataclasses import fields

from vantage.errors import BadInput, unknown
from vantage.spec.registry import Registry, entries_of
from vantage.training.tasks import (
    addition,
    arithmetic,
    case,
    copying,
    ordering,
    regular,
    retrieval,
    scan,
    sorting,
    stack,
    strings,
)
from vantage.training.tasks.addition import Addition
from vantage.training.tasks.arithmetic import ModularArithmetic
from vantage.training.tasks.case import CaseConversion
from vantage.training.tasks.copying import Copy, Reverse
from vantage.training.tasks.needles import MultiNeedle
from vantage.training.tasks.ordering import Ordering
from vantage.training.tasks.regular import CycleNavigation, EvenPairs, Parity, Summation
from vantage.training.tasks.retrieval import KeyLookup, Passkey
from vantage.training.tasks.scan import Scan
from vantage.training.tasks.sorting import BucketSort, Sort
from vantage.training.tasks.stack import StackManipulation
from vantage.training.tasks.strings import DuplicateString, MissingDuplicate, OddsFirst
from vantage.training.tasks.task import Example, Guessable, Task, check_lengths, spaced, text_of, words

__all__ = [
    "TASKS",
    "Addition",
    "BucketSort",
    "CaseConversion",
    "Copy",
    "CycleNavigation",
    "DuplicateString",
    "EvenPairs",
    "Example",
    "Guessable",
    "KeyLookup",
    "MissingDuplicate",
    "ModularArithmetic",
    "MultiNeedle",
    "OddsFirst",
    "Ordering",
    "Parity",
    "Passkey",
    "Reverse",
    "Scan",
    "Sort",
    "StackManipulation",
    "Summation",
    "Task",
    "chance_of",
    "check_lengths",
    "spaced",
    "task",
    "text_of",
    "words",
]

TASKS: Registry[Task] = Registry(
    "task",
    (
        case.ENTRY,
        ordering.ENTRY,
        copying.COPY,
        copying.REVERSE,
        sorting.SORT,
        addition.ENTRY,
        regular.SUMMATION,
        regular.PARITY,
        arithmetic.ENTRY,
        strings.DUPLICATE_STRING,
        strings.MISSING_DUPLICATE,
        strings.ODDS_FIRST,
        sorting.BUCKET_SORT,
        regular.EVEN_PAIRS,
        regular.CYCLE_NAVIGATION,
        stack.ENTRY,
        scan.ENTRY,
        retrieval.LOOKUP,
        retrieval.PASSKEY,
        *entries_of(
            "vantage.training.tasks",
            "needles",
        ),
    ),
    needs=("symbols", "shortest", "sample"),
)


def task(which: str | Task, **parameters: object) -> Task:
    """A task by name, with its parameters, or as an object that is one already."""
    if not isinstance(which, str):
        if isinstance(which, type) or not isinstance(which, Task):
            hint = f": write {which.__name__}(...)" if isinstance(which, type) else ""
            raise BadInput(f"task={which!r} is neither a name nor a task{hint}")
        if parameters:
            raise BadInput(f"{which} has its parameters already, and got {', '.join(parameters)} besides")
        return which
    config = TASKS[which].config
    known = [field.name for field in fields(config)]  # pyright: ignore[reportArgumentType] (every task is a dataclass)
    for name in parameters:
        if name not in known:
            raise BadInput(unknown(f"parameter of {which!r}", name, known))
    # A list is what a TOML file has where we have a tuple.
    return config(**{name: tuple(v) if isinstance(v, list) else v for name, v in parameters.items()})


def chance_of(name: str) -> float | None:
    """The share of rows that a guess gets right in this task; ``None``: so few that nobody counts them."""
    task = TASKS[name].make() if name in TASKS else None
    return task.chance if isinstance(task, Guessable) else None
