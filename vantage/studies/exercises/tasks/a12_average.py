"""A12: a query that averages two values, and one that copies."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from vantage.studies.exercises.exercise import Ask, Exercise
from vantage.studies.exercises.real import attend, draw
from vantage.studies.exercises.words import not_a_tensor

TASK = """\
The keys k_1 … k_n are orthonormal: each has length 1, and the dot product of two is 0. Attention here does not
scale: the weights are the softmax of q · k_j.

- Write copy_query(keys, a): a query for which nearly all weight (over 0.99) lies on key a, so that the output
  copies v_a.
- Write average_query(keys, a, b): a query for which a and b have a weight between 0.49 and 0.5 each, so that
  the output is their mean.

keys is a tensor (n, d), a and b are row numbers (a ≠ b), n goes up to 200. Return a tensor of shape (d,), of
numbers that stay below 10,000 in size."""

STARTER = """\
# vantage exercise A12: copy one value, average two
import torch


def copy_query(keys, a):
    \"\"\"a query (d,) that puts nearly all weight on key a\"\"\"
    raise NotImplementedError


def average_query(keys, a, b):
    \"\"\"a query (d,) that puts half the weight on key a and half on key b\"\"\"
    raise NotImplementedError
"""

ANSWER = """\
# vantage exercise A12: copy one value, average two
import torch

GAIN = 20.0


def copy_query(keys, a):
    \"\"\"a query (d,) that puts nearly all weight on key a\"\"\"
    return GAIN * keys[a]


def average_query(keys, a, b):
    \"\"\"a query (d,) that puts half the weight on key a and half on key b\"\"\"
    return GAIN * (keys[a] + keys[b])
"""

WORDS = """\
q = g (k_a + k_b) has the dot product g with k_a and with k_b and 0 with every other key, because they are
orthonormal. The weight of a is e^g / (2 e^g + n − 2): it goes to a half only as the gain g grows, and how fast
depends on n. The document takes g = 1 and calls the result about a half; for n = 100 it is 0.026. With g = 20,
e^g is half a billion, and the other keys have nothing left."""


def _keys(n: int, d: int, seed: int) -> Tensor:
    return torch.linalg.qr(draw(d, n, seed=seed, dtype=torch.float64)).Q.T.float().contiguous()


CASES = ((2, 2, 0, 1), (5, 5, 3, 1), (10, 16, 9, 0), (100, 100, 17, 62), (200, 256, 0, 199))


def _weights(got: Tensor, keys: Tensor) -> Tensor:
    return attend(got[None].float(), keys, torch.eye(len(keys)), scale=1.0).weights[0]  # pyright: ignore[reportOptionalSubscript] (asked for)


def _bad_query(got: object, d: int, what: str) -> str | None:
    wrong = not_a_tensor(got, (d,), what)
    if wrong is not None:
        return wrong
    assert isinstance(got, Tensor)
    if not bool(got.isfinite().all()) or float(got.abs().max()) >= 10_000:
        return f"{what} has numbers that are not finite or 10,000 and more: a gain of 20 or 30 is enough"
    return None


def copying(ask: Ask) -> str | None:
    for n, d, a, _ in CASES:
        keys = _keys(n, d, n)
        got, what = ask.call("copy_query", keys, a), f"copy_query over {n} keys"
        wrong = _bad_query(got, d, what)
        if wrong is not None:
            return wrong
        weight = _weights(got, keys)
        if float(weight[a]) > 0.99:
            continue
        best = int(weight.argmax())
        if best != a:
            return f"{what}: key {best} gets the most weight, {float(weight[best]):.3f}, and not key {a}"
        return (
            f"{what}: key {a} gets a weight of {float(weight[a]):.3f}. Its direction is right, its length is not: the "
            f"other {n - 1} keys have a score of 0 each, and e^0 = 1 adds up. Use a larger gain"
        )
    return None


def averaging(ask: Ask) -> str | None:
    for n, d, a, b in CASES:
        keys = _keys(n, d, n)
        got, what = ask.call("average_query", keys, a, b), f"average_query over {n} keys"
        wrong = _bad_query(got, d, what)
        if wrong is not None:
            return wrong
        weight = _weights(got, keys)
        mine = float(weight[a]), float(weight[b])
        if min(mine) < 0.49:
            return _unbalanced(mine, n, a, b, what)
    return None


def _unbalanced(mine: tuple[float, float], n: int, a: int, b: int, what: str) -> str:
    found = f"{what}: keys {a} and {b} get {mine[0]:.3f} and {mine[1]:.3f}"
    if abs(mine[0] - mine[1]) < 0.01 and max(mine) > 1.5 / n:
        one = math.e / (2 * math.e + n - 2)
        return (
            f"{found}, equal but not a half: the gain is too small. The weight is e^g / (2e^g + n − 2), which for "
            f"g = 1 and n = {n} is {one:.3f}, whatever the document says: use a larger g"
        )
    if max(mine) > 0.9:
        only = a if mine[0] > mine[1] else b
        return f"{found}: only key {only} is asked for. Both keys should have the same score"
    if abs(mine[0] - mine[1]) < 0.01:
        return f"{found}, no more than any other key: is it k_a + k_b, the sum of the two rows of keys?"
    return f"{found}: they should be equal. Give both keys the same gain"


def any_gain(ask: Ask) -> str | None:
    """The query must depend on the keys that are given."""
    one, other = _keys(8, 8, 1), _keys(8, 8, 2)
    first, second = ask.call("average_query", one, 0, 1), ask.call("average_query", other, 0, 1)
    if torch.equal(first, second):
        return "other keys give the same query: it must be made of the rows of keys"
    return None


EXERCISE = Exercise(
    tag="A12",
    title="Copy one value, average two",
    task=TASK,
    starter=STARTER,
    answer=ANSWER,
    words=WORDS,
    names=("copy_query", "average_query"),
    checks=(("copying", copying), ("averaging", averaging), ("it looks at the keys", any_gain)),
)
