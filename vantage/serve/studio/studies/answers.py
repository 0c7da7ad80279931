"""What the Studies page is told."""

from __future__ import annotations

from vantage.figures import Figure
from vantage.serve.studio.answers import StudioAnswer
from vantage.studies.study import Number, Parameter, Value, Verdict


class StudyEntry(StudioAnswer):
    """A study before it is run. ``seconds``: about how long it takes; ``needs``: models."""

    tag: str
    title: str
    sources: list[str]
    statement: str
    explanation: str
    parameters: tuple[Parameter, ...]
    seconds: float
    trains: bool
    needs: list[str]


class StudyResult(StudioAnswer):
    """The event ``result``."""

    verdict: Verdict
    words: str
    numbers: tuple[Number, ...]
    figures: tuple[Figure, ...]
    values: dict[str, Value]
    seconds: float
    command: str


class ExerciseEntry(StudioAnswer):
    tag: str
    title: str
    task: str
    starter: str


class CheckResult(StudioAnswer):
    name: str
    passed: bool
    words: str


class GradeAnswer(StudioAnswer):
    """``held``: what kept the code within bounds while it ran."""

    passed: bool
    checks: list[CheckResult]
    output: str
    held: list[str]


class ExerciseAnswer(StudioAnswer):
    """How it can be done, and why."""

    code: str
    words: str
