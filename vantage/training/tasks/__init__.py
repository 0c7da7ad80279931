"""Tasks to train and test on, each a small pure generator. ``task`` makes one from its name and parameters."""

from __future__ import annotations

from dataclasses import fields

from vantage.errors import BadInput, unknown
from vantage.training.tasks.addition import Addition
from vantage.training.tasks.arithmetic import ModularArithmetic
from vantage.training.tasks.case import CaseConversion
from vantage.training.tasks.copying import Copy, Reverse
from vantage.training.tasks.needles import MultiNeedle
from vantage.training.tasks.ordering import Ordering
from vantage.training.tasks.regular import CycleNavigation, EvenPairs, Parity, Summation
from vantage.training.tasks.retrieval import Lookup, Passkey
from vantage.training.tasks.scan import Scan
from vantage.training.tasks.sorting import BucketSort, Sort
from vantage.training.tasks.stack import StackManipulation
from vantage.training.tasks.strings import DuplicateString, MissingDuplicate, OddsFirst
from vantage.training.tasks.task import Example, Task, check_lengths, words

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
    "Lookup",
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
    "check_lengths",
    "task",
    "words",
]

TASKS: dict[str, type] = {
    "case": CaseConversion,
    "ordering": Ordering,
    "copy": Copy,
    "reverse": Reverse,
    "sort": Sort,
    "addition": Addition,
    "summation": Summation,
    "parity": Parity,
    "modular-arithmetic": ModularArithmetic,
    "duplicate-string": DuplicateString,
    "missing-duplicate": MissingDuplicate,
    "odds-first": OddsFirst,
    "bucket-sort": BucketSort,
    "even-pairs": EvenPairs,
    "cycle-navigation": CycleNavigation,
    "stack": StackManipulation,
    "scan": Scan,
    "lookup": Lookup,
    "passkey": Passkey,
    "multi-needle": MultiNeedle,
}


def task(which: str | Task, **parameters: object) -> Task:
    """A task by name, with its parameters, or as an object that is one already."""
    if not isinstance(which, str):
        if isinstance(which, type) or not isinstance(which, Task):
            hint = f": write {which.__name__}(...)" if isinstance(which, type) else ""
            raise BadInput(f"task={which!r} is neither a name nor a task{hint}")
        if parameters:
            raise BadInput(f"{which} has its parameters already, and got {', '.join(parameters)} besides")
        return which
    if which not in TASKS:
        raise BadInput(unknown("task", which, TASKS))
    known = [field.name for field in fields(TASKS[which])]
    for name in parameters:
        if name not in known:
            raise BadInput(unknown(f"parameter of {which!r}", name, known))
    # A list is what a TOML file has where we have a tuple.
    return TASKS[which](**{name: tuple(v) if isinstance(v, list) else v for name, v in parameters.items()})
