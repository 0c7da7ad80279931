"""The words and files of an exercise, in the folder of its checks.

``text.md`` has the title, the sections Task and Explanation (why the answer is as it is), which are shown line by line
as they stand, and Feedback: one ``### name`` for everything that may be said to a student, with ``{name}`` for what
the check computes. ``starter.py`` is what a student begins with, ``answer.py`` a full answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from vantage.studies.exercises.exercise import CheckFunction, Exercise
from vantage.studies.text import read_sections, unwrap

SECTIONS = {"Task", "Explanation", "Feedback"}


@dataclass(frozen=True)
class ExerciseText:
    folder: Path
    title: str
    task: str
    explanation: str
    starter: str
    answer: str
    messages: Mapping[str, str]

    @classmethod
    def beside(cls, file: str) -> Self:
        """The text of the exercise whose checks are in this file: ``ExerciseText.beside(__file__)``."""
        folder = Path(file).parent
        title, sections = read_sections(folder / "text.md")
        if unknown := sorted({key.partition("/")[0] for key in sections if key} - SECTIONS):
            raise ImportError(f"{folder.name}/text.md has a section {unknown[0]!r}; there may be {sorted(SECTIONS)}")
        starter, answer = (folder.joinpath(name).read_text(encoding="utf-8") for name in ("starter.py", "answer.py"))
        messages = {key.partition("/")[2]: unwrap(body) for key, body in sections.items() if "/" in key}
        return cls(folder, title, sections["Task"], sections["Explanation"], starter, answer, messages)

    def feedback(self, name: str, /, **values: Any) -> str:
        """What is said to a student, with what was computed filled in."""
        if name not in self.messages:
            raise KeyError(f"{self.folder.name}/text.md has no feedback {name!r}")
        return self.messages[name].format(**values)

    def exercise(
        self, tag: str, names: tuple[str, ...], checks: tuple[tuple[str, CheckFunction], ...], *, numbers: bool = False
    ) -> Exercise:
        """``names``: what the student's file must define; ``numbers``: they are numbers, not functions."""
        return Exercise(tag, self.title, self.task, self.starter, self.answer, self.explanation, names, checks, numbers)
