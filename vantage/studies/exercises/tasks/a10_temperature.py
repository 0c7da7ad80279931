"""A10: a softmax with a temperature that does not overflow."""

from __future__ import annotations

import torch
from torch import Tensor

from vantage.kernels.reference import normalise
from vantage.spec.parts import Argmax, Softmax
from vantage.studies.exercises.exercise import Ask, Exercise
from vantage.studies.exercises.real import draw
from vantage.studies.exercises.words import Mistake, unlike

TASK = """\
Write softmax(x, temperature) without torch's own softmax: the weights exp(x / T) divided by their sum, over the
last axis of a tensor of any shape. T is above 0.

It must hold for scores of many thousands and for temperatures down to 0.001, and where some scores (not all of
a row) are −∞. As T goes to 0 the result goes to argmax, as T grows to uniform."""

STARTER = """\
# vantage exercise A10: softmax with a temperature
import torch


def softmax(x, temperature):
    \"\"\"(..., n) -> (..., n), without torch.softmax\"\"\"
    raise NotImplementedError
"""

ANSWER = """\
# vantage exercise A10: softmax with a temperature
import torch


def softmax(x, temperature):
    \"\"\"(..., n) -> (..., n), without torch.softmax\"\"\"
    top = x.max(dim=-1, keepdim=True).values
    exps = torch.exp((x - top) / temperature)
    return exps / exps.sum(-1, keepdim=True)
"""

WORDS = """\
Subtracting the same number from all scores of a row multiplies every exponential by the same factor, which the
division takes out again. With the largest subtracted, the largest exponent is 0: nothing overflows, and the sum
is at least 1, so nothing is divided by 0 either. It may be subtracted before or after the division by T; before
it, less is rounded away. The largest is that of each row, not of the whole tensor: a row far below the rest
would become all zeros, and 0 / 0."""


def _right(x: Tensor, temperature: float) -> Tensor:
    return normalise(x.reshape(1, 1, -1, x.shape[-1]), None, Softmax(temperature))[0].reshape(x.shape)


def _mistakes(x: Tensor, t: float) -> list[Mistake]:
    exps = ((x - x.amax(-1, keepdim=True)) / t).exp()
    made: list[Mistake] = [
        (_right(x, 1.0), f"the temperature is ignored: divide the scores by it (here by {t:g})"),
        (_right(x, 1 / t), "the scores are multiplied by the temperature; they are divided by it"),
        (
            _right(x, 1.0) / t,
            "the weights are divided by the temperature; it is the scores that are, before the exponential",
        ),
        (exps, "the exponentials are not divided by their sum"),
        (_right(x, t * t), "the scores are divided by the temperature twice"),
    ]
    if x.numel() > x.shape[-1]:  # in a single row these are no mistakes
        made += [
            (
                (x / t).flatten().softmax(0).view_as(x),
                "the softmax runs over the whole tensor; it runs over the last axis, so that each row adds up to 1",
            ),
            (
                exps / exps.sum(),
                "the exponentials are divided by the sum of all of them; each row has a sum of its own (keepdim=True), "
                "so that it adds up to 1",
            ),
        ]
    made += [
        (
            ((x / t).softmax(i)),
            f"the softmax runs over axis {i}; it runs over the last axis, so that each row adds up to 1",
        )
        for i in range(x.dim() - 1)
    ]
    return made


def _tolerance(x: Tensor, t: float) -> float:
    """What float32 may lose where x / T is rounded before the largest is subtracted, which is right as well."""
    largest = float((x[x.isfinite()] / t).abs().max())
    return max(1e-5, 2 * torch.finfo(torch.float32).eps * largest)


def plain(ask: Ask) -> str | None:
    for seed, (shape, t) in enumerate((((4,), 2.0), ((3, 3), 0.5), ((2, 3, 5), 3.0), ((1, 1), 0.7), ((6, 2), 1.0))):
        x = draw(*shape, seed=seed)
        got = ask.call("softmax", x, t)
        words = unlike(got, _right(x, t), f"softmax of shape {shape} at T = {t:g}", _mistakes(x, t), tolerance=1e-5)
        if words is not None:
            return words
    return None


def _stable(ask: Ask, x: Tensor, t: float, what: str) -> str | None:
    got, wanted = ask.call("softmax", x, t), _right(x, t)
    if isinstance(got, Tensor) and got.shape == wanted.shape and not bool(got.isfinite().all()):
        row = got.isfinite().all(-1)
        if x.dim() > 1 and bool(row.any()):
            return (
                f"{what}: some rows are NaN and others are not. Subtract the largest score of each row, not of the "
                "whole tensor: a row far below it becomes 0 / 0"
            )
        return (
            f"{what}: NaN or inf comes out, because the exponentials overflow (or all become 0). Subtract the largest "
            "score of the row before the exponential"
        )
    return unlike(got, wanted, what, _mistakes(x, t), tolerance=_tolerance(x, t))


def large(ask: Ask) -> str | None:
    for x in (torch.tensor([10000.0, 9999.0, 9990.0]), torch.tensor([-20000.0, -20001.0, -20002.5])):
        words = _stable(ask, x, 1.5, f"softmax of scores about {float(x[0]):,.0f}")
        if words is not None:
            return words
    return _stable(ask, torch.tensor([[500.0, 499.0], [-500.0, -501.0]]), 1.0, "rows that are 1,000 apart")


def cold_and_hot(ask: Ask) -> str | None:
    x = torch.tensor([[0.3, 1.2, -0.5, 1.1]])
    words = _stable(ask, x, 1e-3, "softmax at T = 0.001")
    if words is not None:
        return words
    hard = normalise(x[None, None], None, Argmax())[0][0, 0]
    cold = ask.call("softmax", x, 1e-3)
    if not torch.allclose(cold.double(), hard.double(), atol=1e-6):
        return "at T = 0.001 the largest score should have all the weight"
    return unlike(ask.call("softmax", x, 1e6), torch.full((1, 4), 0.25), "softmax at T = 1,000,000", _mistakes(x, 1e6))


def masked(ask: Ask) -> str | None:
    x = torch.tensor([[1.0, -torch.inf, 2.0], [-torch.inf, -torch.inf, -3.0]])
    return _stable(ask, x, 0.5, "a row with −∞ in it")


EXERCISE = Exercise(
    tag="A10",
    title="Softmax with a temperature",
    task=TASK,
    starter=STARTER,
    answer=ANSWER,
    words=WORDS,
    names=("softmax",),
    checks=(
        ("plain scores", plain),
        ("large scores", large),
        ("cold and hot", cold_and_hot),
        ("scores of −∞", masked),
    ),
)
