"""The documents' problem sets: exercises with a starter, an answer and a grader that says what is wrong.

Names are imported when they are first used: which exercises there are is known without torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vantage.studies.exercises.exercise import Check, Exercise, Grade
    from vantage.studies.exercises.grading import grade, grade_many
    from vantage.studies.exercises.registry import exercises
    from vantage.studies.exercises.tasks.a09_heat_maps import heat_maps_png, puzzle

_HOME = {
    **dict.fromkeys(("Check", "Exercise", "Grade"), "exercise"),
    **dict.fromkeys(("grade", "grade_many"), "grading"),
    **dict.fromkeys(("heat_maps_png", "puzzle"), "tasks.a09_heat_maps"),
    "exercises": "registry",
}

__all__ = ["Check", "Exercise", "Grade", "exercises", "grade", "grade_many", "heat_maps_png", "puzzle"]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
