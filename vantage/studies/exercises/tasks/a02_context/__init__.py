"""A2: a context vector, worked by hand."""

from __future__ import annotations

import torch
from torch import Tensor

from vantage.attention import Dot, RecurrentAttention
from vantage.studies.exercises.differences import compare_numbers
from vantage.studies.exercises.exercise import StudentCode
from vantage.studies.exercises.text import ExerciseText

TEXT = ExerciseText.beside(__file__)


STATES = ((1.0, 0.0), (0.0, 1.0), (1.0, 1.0))
STATE = (0.5, 0.2)


def _parts() -> tuple[Tensor, Tensor, Tensor]:
    """Scores, weights and context, from the real attention of a recurrent decoder."""
    states = torch.tensor([STATES], dtype=torch.float64)
    state = torch.tensor([STATE], dtype=torch.float64)
    context, weights = RecurrentAttention(Dot())(state, states)
    return Dot()(state, states)[0], weights[0], context[0]


def scores(student: StudentCode) -> str | None:
    wanted = _parts()[0]
    slips = [
        ((wanted / 2**0.5).tolist(), TEXT.feedback("scores scaled")),
        (wanted.exp().tolist(), TEXT.feedback("scores are exponentials")),
    ]
    return compare_numbers(student.value("SCORES"), wanted.tolist(), "SCORES", slips)


def weights(student: StudentCode) -> str | None:
    score, wanted, _ = _parts()
    slips = [
        ([0.3374, 0.2501, 0.4125], TEXT.feedback("weights of the document")),
        (score.exp().tolist(), TEXT.feedback("weights are exponentials")),
        ((score / score.sum()).tolist(), TEXT.feedback("weights are shares of the scores")),
        ((2.0**score / (2.0**score).sum()).tolist(), TEXT.feedback("weights with base 2")),
        ((score / 2**0.5).softmax(-1).tolist(), TEXT.feedback("weights of scaled scores")),
    ]
    return compare_numbers(student.value("WEIGHTS"), wanted.tolist(), "WEIGHTS", slips)


def context(student: StudentCode) -> str | None:
    score, weight, wanted = _parts()
    states = torch.tensor(STATES, dtype=torch.float64)
    slips = [
        ([0.7499, 0.6626], TEXT.feedback("context of the document")),
        ((score @ states).tolist(), TEXT.feedback("context with scores")),
        ((score.exp() @ states).tolist(), TEXT.feedback("context with exponentials")),
        (states.mean(0).tolist(), TEXT.feedback("context is the mean")),
        (wanted.flip(0).tolist(), TEXT.feedback("context in the wrong order")),
        ((weight @ states / 3).tolist(), TEXT.feedback("context divided by 3")),
    ]
    return compare_numbers(student.value("CONTEXT"), wanted.tolist(), "CONTEXT", slips)


EXERCISE = TEXT.exercise(
    "A2",
    ("SCORES", "WEIGHTS", "CONTEXT"),
    (("the scores", scores), ("the weights", weights), ("the context", context)),
    numbers=True,
)
