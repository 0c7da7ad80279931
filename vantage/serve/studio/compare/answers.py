"""What the Compare page is told."""

from __future__ import annotations

from typing import Literal

from vantage.serve.studio.answers import StudioAnswer

ComparisonState = Literal["running", "done", "stopped", "error"]


class CompareDefaults(StudioAnswer):
    tasks: list[str]
    positions: list[str]
    attention: list[str]
    train_length: int
    test_lengths: list[int]
    seeds: int
    steps: int | None
    budget: str
    batch: int
    width: int
    layers: int
    heads: int
    test_examples: int


class CompareChoices(StudioAnswer):
    """What the form offers. ``control``: the position that takes part in the tasks of ``controlled`` alone.

    ``about``: what each name stands for, where that is known.
    """

    tasks: list[str]
    positions: list[str]
    attention: list[str]
    control: str
    controlled: list[str]
    about: dict[str, str]
    defaults: CompareDefaults


class ComparisonEntry(StudioAnswer):
    """A comparison in the list. ``report``: whether there is one."""

    name: str
    when: str
    title: str
    state: ComparisonState
    report: bool


class ComparisonStarted(StudioAnswer):
    id: str


class ComparisonStopped(StudioAnswer):
    id: str
    stopped: bool


class LengthScore(StudioAnswer):
    """The share of rows, or of tokens, that are right."""

    length: int
    score: float


class CompareRow(StudioAnswer):
    """One task and entry: its runs, what is scored there, and the mean score at each length."""

    task: str
    entry: str
    measure: Literal["exact", "tokens"]
    runs: int
    diverged: int
    at: list[LengthScore]


class CompareProgress(StudioAnswer):
    """The event ``progress``. ``left_s``: seconds, as far as they are known. The event ``curve`` is a figure."""

    done: int
    total: int
    left_s: float | None
    rows: list[CompareRow]
    message: str


class CompareDone(StudioAnswer):
    """The event ``done``: the name of the report, and what it says in short."""

    report: str
    short: list[str]
