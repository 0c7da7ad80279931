"""Which exercises there are: a folder each in ``tasks``, named by its tag (``a04_attention`` is A4)."""

from __future__ import annotations

import ast
import importlib
import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import MappingProxyType

from vantage.studies.exercises.exercise import Exercise
from vantage.studies.exercises.text import ExerciseText
from vantage.studies.registry import LETTERS

FOLDER = re.compile(rf"([{''.join(LETTERS).lower()}])(\d\d)_[a-z0-9_]+")
FIRST_LINE = re.compile(r"^\ufeff?#\s*vantage exercise\s+([A-Za-z]\d+(?:-[a-z0-9]+)?)\b")


def exercises() -> dict[str, Exercise]:
    """Every exercise by its tag, in the order of the documents."""
    return dict(_all())


def folders() -> list[str]:
    """The names of the folders, in the order of the documents. Nothing is imported."""
    names = [path.name for path in Path(__file__).with_name("tasks").iterdir() if FOLDER.fullmatch(path.name)]
    return sorted(names, key=lambda name: (list(LETTERS).index(name[0].upper()), name))


def tags() -> list[str]:
    """Every tag, in the order of the documents. Nothing is imported."""
    return list(texts())


def texts() -> dict[str, ExerciseText]:
    """The words of every exercise by its tag, as its files have them. Nothing is imported: the first line of a starter
    names its exercise."""
    known = [ExerciseText.beside(str(Path(__file__).with_name("tasks") / name / "__init__.py")) for name in folders()]
    matches = [(FIRST_LINE.match(text.starter), text) for text in known]
    return {match[1]: text for match, text in matches if match is not None}


def shown_text(tag: str) -> ExerciseText:
    """What an exercise shows. It is imported only where its code makes that (A9 draws a puzzle)."""
    text = texts()[tag]
    for node in ast.parse((text.folder / "__init__.py").read_text(encoding="utf-8")).body:
        match node:
            case ast.Assign([ast.Name("EXERCISE")], ast.Call(ast.Attribute(ast.Name("TEXT"), "exercise"))):
                return text
    own = exercises()[tag]
    computed = {"task": own.task, "starter": own.starter, "answer": own.answer, "explanation": own.words}
    return replace(text, title=own.title, **computed)


@cache
def _all() -> MappingProxyType[str, Exercise]:
    table: dict[str, Exercise] = {}
    for name in folders():
        exercise = vars(importlib.import_module(f"vantage.studies.exercises.tasks.{name}")).get("EXERCISE")
        number = f"{name[0].upper()}{int(name[1:3])}"
        if not isinstance(exercise, Exercise) or exercise.tag.partition("-")[0] != number:
            raise ImportError(f"tasks/{name} must end with EXERCISE = TEXT.exercise({number!r}, …)")
        if exercise.tag in table:
            raise ImportError(f"two folders are exercise {exercise.tag}")
        table[exercise.tag] = exercise
    return MappingProxyType(table)
