"""A10: a softmax with a temperature that does not overflow."""

from __future__ import annotations

import torch
from torch import Tensor

from vantage.kernels.reference import normalise
from vantage.spec.normalisers import Argmax, Softmax
from vantage.studies.exercises.differences import Mistake, compare_tensors
from vantage.studies.exercises.exercise import StudentCode
from vantage.studies.exercises.library_parts import random_normal
from vantage.studies.exercises.text import ExerciseText

TEXT = ExerciseText.beside(__file__)


def _right(x: Tensor, temperature: float) -> Tensor:
    return normalise(x.reshape(1, 1, -1, x.shape[-1]), None, Softmax(temperature))[0].reshape(x.shape)


def _mistakes(x: Tensor, t: float) -> list[Mistake]:
    exps = ((x - x.amax(-1, keepdim=True)) / t).exp()
    mistakes: list[Mistake] = [
        (_right(x, 1.0), TEXT.feedback("ignored", temperature=t)),
        (_right(x, 1 / t), TEXT.feedback("multiplied")),
        (_right(x, 1.0) / t, TEXT.feedback("weights divided")),
        (exps, TEXT.feedback("not normalised")),
        (_right(x, t * t), TEXT.feedback("divided twice")),
    ]
    if x.numel() > x.shape[-1]:  # in a single row these are no mistakes
        mistakes += [
            ((x / t).flatten().softmax(0).view_as(x), TEXT.feedback("whole tensor")),
            (exps / exps.sum(), TEXT.feedback("one sum for all")),
        ]
    mistakes += [(((x / t).softmax(i)), TEXT.feedback("other axis", axis=i)) for i in range(x.dim() - 1)]
    return mistakes


def _tolerance(x: Tensor, t: float) -> float:
    """What float32 may lose where x / T is rounded before the largest is subtracted, which is right as well."""
    largest = float((x[x.isfinite()] / t).abs().max())
    return max(1e-5, 2 * torch.finfo(torch.float32).eps * largest)


def plain(student: StudentCode) -> str | None:
    for seed, (shape, t) in enumerate((((4,), 2.0), ((3, 3), 0.5), ((2, 3, 5), 3.0), ((1, 1), 0.7), ((6, 2), 1.0))):
        x = random_normal(*shape, seed=seed)
        got = student.call("softmax", x, t)
        words = compare_tensors(
            got, _right(x, t), f"softmax of shape {shape} at T = {t:g}", _mistakes(x, t), tolerance=1e-5
        )
        if words is not None:
            return words
    return None


def _stable(student: StudentCode, x: Tensor, t: float, what: str) -> str | None:
    got, wanted = student.call("softmax", x, t), _right(x, t)
    if isinstance(got, Tensor) and got.shape == wanted.shape and not bool(got.isfinite().all()):
        row = got.isfinite().all(-1)
        if x.dim() > 1 and bool(row.any()):
            return TEXT.feedback("maximum of the tensor", what=what)
        return TEXT.feedback("overflow", what=what)
    return compare_tensors(got, wanted, what, _mistakes(x, t), tolerance=_tolerance(x, t))


def large(student: StudentCode) -> str | None:
    for x in (torch.tensor([10000.0, 9999.0, 9990.0]), torch.tensor([-20000.0, -20001.0, -20002.5])):
        words = _stable(student, x, 1.5, f"softmax of scores about {float(x[0]):,.0f}")
        if words is not None:
            return words
    return _stable(student, torch.tensor([[500.0, 499.0], [-500.0, -501.0]]), 1.0, "rows that are 1,000 apart")


def cold_and_hot(student: StudentCode) -> str | None:
    x = torch.tensor([[0.3, 1.2, -0.5, 1.1]])
    words = _stable(student, x, 1e-3, "softmax at T = 0.001")
    if words is not None:
        return words
    hard = normalise(x[None, None], None, Argmax())[0][0, 0]
    cold = student.call("softmax", x, 1e-3)
    if not torch.allclose(cold.double(), hard.double(), atol=1e-6):
        return TEXT.feedback("not all on the largest")
    return compare_tensors(
        student.call("softmax", x, 1e6), torch.full((1, 4), 0.25), "softmax at T = 1,000,000", _mistakes(x, 1e6)
    )


def masked(student: StudentCode) -> str | None:
    x = torch.tensor([[1.0, -torch.inf, 2.0], [-torch.inf, -torch.inf, -3.0]])
    return _stable(student, x, 0.5, "a row with −∞ in it")


EXERCISE = TEXT.exercise(
    "A10",
    ("softmax",),
    (
        ("plain scores", plain),
        ("large scores", large),
        ("cold and hot", cold_and_hot),
        ("scores of −∞", masked),
    ),
)
