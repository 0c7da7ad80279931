"""P11: a head that tells its position without an encoding."""

from __future__ import annotations

import torch
from torch import Tensor

from vantage.studies.exercises.differences import check_tensor, describe_value
from vantage.studies.exercises.exercise import StudentCode
from vantage.studies.exercises.library_parts import attend, random_normal
from vantage.studies.exercises.text import ExerciseText

TEXT = ExerciseText.beside(__file__)


def _given(student: StudentCode, first: Tensor) -> tuple[Tensor, Tensor] | str:
    got = student.call("keys_and_values", first)
    length = len(first)
    if not isinstance(got, list | tuple) or len(got) != 2:
        return TEXT.feedback("no pair", value=describe_value(got))
    keys, values = got
    if isinstance(keys, Tensor) and (keys.dim() != 2 or len(keys) != length or not keys.shape[1]):
        return TEXT.feedback("shape of K", shape=tuple(keys.shape), tokens=length)
    wrong = check_tensor(keys, (length, 2), "K") if not isinstance(keys, Tensor) else None
    wrong = wrong or check_tensor(values, (length, 1), "V")
    if wrong is not None:
        return wrong
    keys, values = keys.double(), values.double()
    if not bool(keys.isfinite().all() and values.isfinite().all()):
        return TEXT.feedback("not finite")
    return keys, values


def _first(length: int) -> Tensor:
    first = torch.zeros(length)
    first[0] = 1.0
    return first


def output(student: StudentCode) -> str | None:
    for seed, length in enumerate((4, 1, 2, 9, 30)):
        got = _given(student, _first(length))
        if isinstance(got, str):
            return got
        keys, values = got
        queries = random_normal(length, keys.shape[1], seed=seed, dtype=torch.float64) * 2
        out = attend(queries, keys, values, causal=True).out[:, 0]
        wanted = 1 / torch.arange(1, length + 1, dtype=torch.float64)
        if not torch.allclose(out, wanted, atol=1e-5):
            return _why(keys, values, out, length)
    return None


def _why(keys: Tensor, values: Tensor, out: Tensor, length: int) -> str:
    shown = ", ".join(f"{float(v):.3f}" for v in out[:4])
    outputs = TEXT.feedback("outputs", tokens=length, outputs=shown, more=", …" if length > 4 else "")
    if not torch.allclose(keys, keys[:1].expand_as(keys)):
        return TEXT.feedback("keys differ", outputs=outputs)
    column = values[:, 0]
    if bool((column == 1).all()):
        return TEXT.feedback("all ones", outputs=outputs)
    if float(column[-1]) == 1 and not bool(column[:-1].any()):
        return TEXT.feedback("last token", outputs=outputs)
    if not bool(column.any()):
        return TEXT.feedback("all zeros", outputs=outputs)
    if (
        length > 2
        and torch.allclose(column.diff(), column.diff()[:1].expand(length - 1))
        and bool(column.diff()[0] != 0)
    ):
        return TEXT.feedback("counts", outputs=outputs)
    if torch.allclose(column, 1 / torch.arange(1, length + 1, dtype=torch.float64)):
        return TEXT.feedback("already 1/t", outputs=outputs)
    return TEXT.feedback("another mean", outputs=outputs)


def token_by_token(student: StudentCode) -> str | None:
    """The same tokens in another order: row i follows first[i]."""
    one = _given(student, _first(6))
    if isinstance(one, str):
        return one
    order = torch.tensor([3, 1, 0, 5, 4, 2])
    other = _given(student, _first(6)[order])
    if isinstance(other, str):
        return other
    for name, straight, moved in zip("KV", one, other, strict=True):
        if not torch.allclose(straight[order], moved, atol=1e-6):
            return TEXT.feedback("made of the place", name=name)
    return None


EXERCISE = TEXT.exercise(
    "P11", ("keys_and_values",), (("the outputs are 1, 1/2, 1/3, …", output), ("token by token", token_by_token))
)
