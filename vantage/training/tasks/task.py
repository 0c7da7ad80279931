"""What a task is: a pure generator of questions with exactly one right answer, of a length that is asked for."""

from __future__ import annotations

import re
import string
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from vantage.errors import BadInput


@dataclass(frozen=True)
class Example:
    """One question and its answer, as ids into the symbols of its task."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    group: str = ""  # scored apart as well, as in "swap 1"


@runtime_checkable
class Task(Protocol):
    """A frozen dataclass whose fields are the parameters of the task. It has no state and draws on no other numbers."""

    @property
    def symbols(self) -> tuple[str, ...]:
        """The vocabulary of prompts and answers. What marks their ends is not in it: the collator adds that."""
        ...

    @property
    def shortest(self) -> int:
        """The least length that makes sense. What a length counts stands in the docstring of each task."""
        ...

    def sample(self, rng: np.random.Generator, length: int) -> Example:
        """One example of this length. The same random numbers give the same example."""
        ...


@dataclass(frozen=True)
class LetterTask(ABC):
    """What tasks have in common whose prompts are strings of the first ``tokens`` letters, of any length."""

    tokens: int

    def __post_init__(self) -> None:
        whole(self, "tokens", self.tokens, 1)

    @property
    def symbols(self) -> tuple[str, ...]:
        return alphabet(self.tokens)

    @property
    def shortest(self) -> int:
        return 1

    @abstractmethod
    def sample(self, rng: np.random.Generator, length: int) -> Example: ...


@runtime_checkable
class Guessable(Protocol):
    """A task whose answer is one of a few symbols."""

    @property
    def chance(self) -> float:
        """The share of rows that a guess gets right."""
        ...


def words(task: Task, example: Example) -> str:
    """An example as one readable line: prompt → answer.

    ``spaced`` says whether spaces stand between symbols.
    """
    return f"{text_of(task, example.prompt)} → {text_of(task, example.answer)}"


def text_of(task: Task, ids: Iterable[int]) -> str:
    """Symbols as text: what a person writes to a model that was trained on the task, and reads from it."""
    return (" " if spaced(task.symbols) else "").join(task.symbols[i] for i in ids)


def spaced(symbols: Iterable[str]) -> bool:
    """Whether spaces stand between symbols. None are needed where each is one character or a word in brackets."""
    symbols = list(symbols)
    longer = [symbol for symbol in symbols if len(symbol) > 1]
    return not all(re.fullmatch("<[^<>]+>", symbol) for symbol in longer) or (bool(longer) and "<" in symbols)


def check_lengths(task: Task, lengths: Iterable[int]) -> None:
    """Refuse now, before anything is trained, each length that ``sample`` would refuse later."""
    for length in lengths:
        task.sample(np.random.Generator(np.random.Philox(key=[0, 0])), length)


def fits(task: Task, length: int) -> None:
    """Refuse a length that is too small, or none."""
    if isinstance(length, bool) or not isinstance(length, (int, np.integer)):
        raise BadInput(f"length={length!r} is not a whole number")
    if length < task.shortest:
        raise BadInput(f"{task} has no example of length {length}: the shortest is {task.shortest}")


def too_long(task: Task, length: int, longest: int, instead: str) -> BadInput:
    """What to raise for a length that is too great. ``instead``: what to change."""
    return BadInput(f"{task} has no example of length {length}: the longest is {longest}. {instead}")


def whole(task: Task, field: str, value: object, least: int, most: int | None = None) -> None:
    """Refuse a parameter that is not a whole number within its bounds."""
    good = isinstance(value, int) and not isinstance(value, bool) and value >= least and (most is None or value <= most)
    if not good:
        wanted = f"from {least} on" if most is None else f"from {least} to {most}"
        raise BadInput(f"{type(task).__name__}: {field}={value!r} is not a whole number {wanted}")


def one_of(task: Task, field: str, value: object, choices: tuple[str, ...]) -> None:
    """Refuse a parameter that is none of the words it may be."""
    if value not in choices:
        raise BadInput(f"{type(task).__name__}: {field}={value!r} is none of {', '.join(map(repr, choices))}")


def alphabet(count: int) -> tuple[str, ...]:
    """Names for ``count`` tokens that mean nothing: letters as long as they last, then t0, t1, …"""
    return tuple(string.ascii_lowercase[:count]) if count <= 26 else tuple(f"t{i}" for i in range(count))


def numbers(count: int) -> tuple[str, ...]:
    """0, 1, …, count - 1."""
    return tuple(map(str, range(count)))


def depth(place: int, places: int) -> str:
    """Which quarter of a prompt what is asked for stands in, as a group."""
    quarter = 4 * place // places
    return f"depth {25 * quarter}-{25 * quarter + 25}%"
