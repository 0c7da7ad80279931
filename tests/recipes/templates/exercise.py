"""A90: the weights of keys that are all alike."""

from __future__ import annotations

import torch

from vantage.studies.exercises.differences import compare_tensors
from vantage.studies.exercises.exercise import StudentCode
from vantage.studies.exercises.library_parts import attend, random_normal
from vantage.studies.exercises.text import ExerciseText

TEXT = ExerciseText.beside(__file__)


def several(student: StudentCode) -> str | None:
    for count in (1, 3, 8):
        wanted = attend(random_normal(1, 4, seed=count), torch.ones(count, 4), torch.ones(count, 1)).weights
        assert wanted is not None
        mistakes = [(torch.ones(count), TEXT.feedback("not normalised", count=count))]
        words = compare_tensors(student.call("weights", count), wanted[0], f"weights({count})", mistakes)
        if words is not None:
            return words
    return None


EXERCISE = TEXT.exercise("A90", ("weights",), (("several numbers of keys", several),))
