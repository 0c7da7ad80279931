"""What an exercise is, and what comes of grading an answer to it."""

from __future__ import annotations

import html
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol


class StudentCode(Protocol):
    """The student's code, as a check sees it: it runs in another process."""

    def call(self, name: str, *args: Any) -> Any:
        """What the function returns. A callable among the arguments runs here, not there."""
        ...

    def value(self, name: str) -> Any:
        """What stands under a name."""
        ...


CheckFunction = Callable[[StudentCode], str | None]  # what is wrong, in words that help; None: nothing


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
    checks: tuple[tuple[str, CheckFunction], ...] = field(repr=False)
    numbers: bool = False  # worked by hand: the names hold numbers, not functions

    def _repr_html_(self) -> str:
        """The task and the starter; the answer is not given away."""
        title, task, starter = (html.escape(text) for text in (f"{self.tag} {self.title}", self.task, self.starter))
        return f"<div><h3>{title}</h3><p style='white-space:pre-wrap'>{task}</p><pre>{starter}</pre></div>"


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

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><th style='text-align:left'>{html.escape(check.name)}</th><td>{_word(check.passed)}</td>"
            f"<td style='text-align:left;white-space:pre-wrap'>{html.escape(check.words)}</td></tr>"
            for check in self.checks
        )
        printed = f"<p>It printed:</p><pre>{html.escape(self.output)}</pre>" if self.output else ""
        title = f"{html.escape(self.tag)}: {_word(self.passed)}"
        return f"<div><h3>{title}</h3><table><tbody>{rows}</tbody></table>{printed}</div>"


def _word(passed: bool) -> str:
    return "passed" if passed else "not passed"
