"""A4: scaled dot-product attention."""

from __future__ import annotations

import torch
from torch import Tensor

from vantage.studies.exercises.exercise import Ask, Exercise
from vantage.studies.exercises.real import attend, draw
from vantage.studies.exercises.words import Mistake, unlike

TASK = """\
Write attention(q, k, v). q has the shape (T, d), k (S, d) and v (S, e): T queries look at S keys, and e may
differ from d. Return the tensor of shape (T, e) whose row i is the sum of all rows of v, each times its weight:
the softmax, over the keys, of q_i · k_j / √d.

It must stand scores of several hundred without overflow. Use torch, but not torch's own attention."""

STARTER = """\
# vantage exercise A4: scaled dot-product attention
import torch


def attention(q, k, v):
    \"\"\"q (T, d), k (S, d), v (S, e) -> (T, e)\"\"\"
    raise NotImplementedError
"""

ANSWER = """\
# vantage exercise A4: scaled dot-product attention
import torch


def attention(q, k, v):
    \"\"\"q (T, d), k (S, d), v (S, e) -> (T, e)\"\"\"
    scores = q @ k.T / q.shape[-1] ** 0.5
    return scores.softmax(-1) @ v
"""

WORDS = """\
q kᵀ holds every score, a row for each query, so the softmax runs along the last axis and each row adds up to 1.
Dividing by √d keeps the variance of the scores at 1 whatever the width: without it wide heads get scores so far
apart that one key takes all the weight. torch's softmax subtracts the largest score first, which changes
nothing in the result and keeps the exponentials from overflowing. (One document says it divides by 1/√d: it
multiplies by that.)"""


def _mistakes(q: Tensor, k: Tensor, v: Tensor) -> list[Mistake]:
    d, s = q.shape[-1], q @ k.T
    plain = s / d**0.5
    made: list[Mistake] = [
        (attend(q, k, v, scale=1.0).out, "the scores are not scaled: divide them by √d before the softmax"),
        (attend(q, k, v, scale=1 / d).out, "the scores are divided by d; it is its square root, √d"),
        (
            attend(q, k, v, scale=d**0.5).out,
            "the scores are multiplied by √d. The document that divides by 1/√d has it wrong: divide by √d",
        ),
        (
            attend(q, k, v, scale=v.shape[-1] ** -0.5).out,
            "the scores are divided by the root of the width of v; it is the width of q and k that counts",
        ),
        (
            attend(q, k, v, scale=len(k) ** -0.5).out,
            "the scores are divided by the root of the number of keys; it is the width of q and k that counts",
        ),
        (
            plain.softmax(0) @ v,
            "the softmax runs over the queries (dim 0): each row should add up to 1, so it runs "
            "over the keys, the last axis",
        ),
        (
            plain.flatten().softmax(0).view_as(plain) @ v,
            "the softmax runs over all scores at once; every query has a softmax of its own, over the last axis",
        ),
        (plain @ v, "there is no softmax: the scores themselves are used as weights"),
        (plain.exp() @ v, "the exponentials are not divided by their sum"),
        (
            attend(q, k, v, causal=True).out if len(q) <= len(k) else s,
            "a causal mask is applied; here every query sees every key",
        ),
    ]
    if q.shape == k.shape:
        made.append((attend(k, q, v).out, "q and k have changed places: row i of the scores belongs to query i"))
    if q.shape == k.shape == v.shape and len(q) == d:
        made.append(((q.T @ k / d**0.5).softmax(-1) @ v, "this is qᵀk, dimensions by dimensions; the scores are q kᵀ"))
    return made


def _shapes(ask: Ask, shapes: list[tuple[int, int, int, int]], dtype: torch.dtype) -> str | None:
    for seed, (queries, keys, d, e) in enumerate(shapes):
        q, k, v = (
            draw(*s, seed=10 * seed + i, dtype=dtype) for i, s in enumerate([(queries, d), (keys, d), (keys, e)])
        )
        got = ask.call("attention", q, k, v)
        what = f"attention of {queries} queries over {keys} keys, d = {d}, e = {e},"
        words = unlike(got, attend(q, k, v).out, what, _mistakes(q, k, v), tolerance=1e-4)
        if words is not None:
            return words
    return None


def square(ask: Ask) -> str | None:
    return _shapes(ask, [(4, 4, 4, 4), (5, 5, 8, 8)], torch.float32)


def other_shapes(ask: Ask) -> str | None:
    return _shapes(ask, [(2, 7, 4, 3), (7, 2, 16, 5), (1, 1, 2, 1), (3, 6, 9, 9)], torch.float32)


def doubles(ask: Ask) -> str | None:
    words = _shapes(ask, [(3, 5, 4, 6)], torch.float64)
    if words is not None:
        return words
    q, k, v = (draw(3, 4, seed=i, dtype=torch.float64) for i in range(3))
    got = ask.call("attention", q, k, v)
    return None if got.dtype == torch.float64 else f"float64 goes in and {got.dtype} comes out: keep the type of q"


def large(ask: Ask) -> str | None:
    q, k, v = 60 * draw(4, 4, seed=1), 60 * draw(6, 4, seed=2), draw(6, 3, seed=3)
    got, wanted = ask.call("attention", q, k, v), attend(q, k, v).out
    if isinstance(got, Tensor) and got.shape == wanted.shape and not bool(got.isfinite().all()):
        return (
            "with scores of some thousands the exponentials overflow and NaN comes out: subtract the largest score of "
            "each row first (torch.softmax does)"
        )
    return unlike(got, wanted, "attention with large scores", _mistakes(q, k, v))


EXERCISE = Exercise(
    tag="A4",
    title="Scaled dot-product attention",
    task=TASK,
    starter=STARTER,
    answer=ANSWER,
    words=WORDS,
    names=("attention",),
    checks=(
        ("as many queries as keys", square),
        ("other shapes", other_shapes),
        ("float64", doubles),
        ("large scores", large),
    ),
)
