"""K3: keys, values and an output, worked by hand."""

from __future__ import annotations

from typing import Any

import torch

from vantage.attention import GroupedQuery
from vantage.spec.masks import Causal
from vantage.studies.exercises.differences import compare_numbers
from vantage.studies.exercises.exercise import StudentCode
from vantage.studies.exercises.library_parts import attention_module, run_module
from vantage.studies.exercises.text import ExerciseText

TEXT = ExerciseText.beside(__file__)


X = [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]
WK = [[1.0, 2.0], [0.0, 1.0]]
WV = [[0.5, -0.5], [1.0, 0.5]]


def _parts() -> tuple[Any, Any, Any]:
    """K, V and the last output, from the real module."""
    part: Any = attention_module(GroupedQuery(1), 2, Causal())
    with torch.no_grad():
        part.qkv.weight.copy_(torch.cat([torch.eye(2), torch.tensor(WK), torch.tensor(WV)], 1).T)
        part.out.weight.copy_(torch.eye(2))
        _, k, v = part.project(torch.tensor([X]))
    return k[0, 0].tolist(), v[0, 0].tolist(), run_module(part, torch.tensor([X]))[0, -1].tolist()


def _columns(w: list[list[float]]) -> Any:
    return (torch.tensor(X) @ torch.tensor(w).T).tolist()


def keys(student: StudentCode) -> str | None:
    right, values, _ = _parts()
    slips = [
        (_columns(WK), TEXT.feedback("key as a column")),
        (X, TEXT.feedback("keys are tokens")),
        (values, TEXT.feedback("keys are values")),
    ]
    return compare_numbers(student.value("K"), right, "K", slips)


def values(student: StudentCode) -> str | None:
    right = _parts()[1]
    slips = [
        (_columns(WV), TEXT.feedback("value as a column")),
        (_parts()[0], TEXT.feedback("values are keys")),
        (X, TEXT.feedback("values are tokens")),
    ]
    return compare_numbers(student.value("V"), right, "V", slips)


def out(student: StudentCode) -> str | None:
    k, v, right = _parts()
    mean = torch.tensor(v).mean(0).tolist()
    slips = [
        (mean, TEXT.feedback("output is the mean")),
        (v[0], TEXT.feedback("output of x1")),
        (v[1], TEXT.feedback("output is v2")),
        (k[-1], TEXT.feedback("output is a key")),
        (torch.tensor(v).sum(0).tolist(), TEXT.feedback("output without weights")),
    ]
    return compare_numbers(student.value("OUT"), right, "OUT", slips, tolerance=6e-3)


EXERCISE = TEXT.exercise(
    "K3", ("K", "V", "OUT"), (("the keys", keys), ("the values", values), ("the output", out)), numbers=True
)
