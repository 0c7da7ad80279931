"""What an exercise is, and what comes of grading an answer to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol


class Ask(Protocol):
    """The student's code, as a check sees it: it runs in another process."""

    def call(self, name: str, *args: Any) -> Any:
        """What the function returns. A callable among the arguments runs here, not there."""
        ...

    def value(self, name: str) -> Any:
        """What stands under a name."""
        ...


Probe = Callable[[Ask], str | None]  # what is wrong, in words that help; None: nothing


@dataclass(frozen=True)
class Exercise:
    """``starter`` and ``answer`` are Python; their first line names the exercise."""

    tag: str
    title: str
    task: str
    starter: str
    answer: str
    words: str  # why the answer is as it is
    names: tuple[str, ...] = field(repr=False)  # what the file must define
    checks: tuple[tuple[str, Probe], ...] = field(repr=False)
    numbers: bool = False  # worked by hand: the names hold numbers, not functions


@dataclass(frozen=True)
class Check:
    """``words``: what is wrong, and what to do about it; empty where it passed."""

    name: str
    passed: bool
    words: str = ""


@dataclass(frozen=True)
class Grade:
    """``output`` is what the code printed. ``held`` names what kept it within bounds while it ran."""

    tag: str
    passed: bool
    checks: tuple[Check, ...]
    output: str = ""
    held: tuple[str, ...] = ()
