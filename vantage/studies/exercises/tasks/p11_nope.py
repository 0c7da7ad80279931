"""P11: a head that tells its position without an encoding."""

from __future__ import annotations

import torch
from torch import Tensor

from vantage.studies.exercises.exercise import Ask, Exercise
from vantage.studies.exercises.real import attend, draw
from vantage.studies.exercises.words import article, not_a_tensor

TASK = """\
A causal head without any position encoding can still tell where it stands. Write keys_and_values(first). first
is a tensor (T,) that is 1 for the first token of the sequence and 0 for all others: all that the tokens know.
Return the keys K, of shape (T, d) with a d of your choice, and the values V, of shape (T, 1), such that the
head's output at the t-th token (counting from 1) is 1/t, whatever the queries are.

K and V may be made of first, token by token, but not of the place in the sequence: row i may depend on first[i]
alone."""

STARTER = """\
# vantage exercise P11: position without an encoding
import torch


def keys_and_values(first):
    \"\"\"first (T,) -> K (T, d) and V (T, 1), for a causal head whose output is 1, 1/2, 1/3, ...\"\"\"
    raise NotImplementedError
"""

ANSWER = """\
# vantage exercise P11: position without an encoding
import torch


def keys_and_values(first):
    \"\"\"first (T,) -> K (T, d) and V (T, 1), for a causal head whose output is 1, 1/2, 1/3, ...\"\"\"
    keys = torch.ones(len(first), 2)
    values = first[:, None].clone()
    return keys, values
"""

WORDS = """\
If all keys are the same, every query has the same score with each, and the softmax gives each of the t keys it
can see a weight of 1/t. The output is then the mean of the values so far: with a 1 for the first token and 0
for the rest that is 1/t. The causal mask does the counting; without it everybody sees all T tokens and gets
1/T. So a decoder can learn positions by itself, which an encoder cannot."""


def _given(ask: Ask, first: Tensor) -> tuple[Tensor, Tensor] | str:
    got = ask.call("keys_and_values", first)
    length = len(first)
    if not isinstance(got, list | tuple) or len(got) != 2:
        return f"keys_and_values returns {article(got)}; return two tensors, K and V"
    keys, values = got
    if isinstance(keys, Tensor) and (keys.dim() != 2 or len(keys) != length or not keys.shape[1]):
        return f"K has the shape {tuple(keys.shape)}; it should be ({length}, d) for {length} tokens"
    wrong = not_a_tensor(keys, (length, 2), "K") if not isinstance(keys, Tensor) else None
    wrong = wrong or not_a_tensor(values, (length, 1), "V")
    if wrong is not None:
        return wrong
    keys, values = keys.double(), values.double()
    if not bool(keys.isfinite().all() and values.isfinite().all()):
        return "K or V holds numbers that are not finite"
    return keys, values


def _first(length: int) -> Tensor:
    first = torch.zeros(length)
    first[0] = 1.0
    return first


def output(ask: Ask) -> str | None:
    for seed, length in enumerate((4, 1, 2, 9, 30)):
        got = _given(ask, _first(length))
        if isinstance(got, str):
            return got
        keys, values = got
        queries = draw(length, keys.shape[1], seed=seed, dtype=torch.float64) * 2
        out = attend(queries, keys, values, causal=True).out[:, 0]
        wanted = 1 / torch.arange(1, length + 1, dtype=torch.float64)
        if not torch.allclose(out, wanted, atol=1e-5):
            return _why(keys, values, out, length)
    return None


def _why(keys: Tensor, values: Tensor, out: Tensor, length: int) -> str:
    shown = ", ".join(f"{float(v):.3f}" for v in out[:4])
    told = f"for {length} tokens the outputs are {shown}{', …' if length > 4 else ''}, not 1, 1/2, 1/3, …"
    if not torch.allclose(keys, keys[:1].expand_as(keys)):
        return (
            f"{told} The keys differ from each other, so the weights depend on the query: make all rows of K the same"
        )
    column = values[:, 0]
    if bool((column == 1).all()):
        return f"{told} All values are 1, and a mean of ones is 1: only the first token should give 1, the others 0"
    if float(column[-1]) == 1 and not bool(column[:-1].any()):
        return f"{told} V marks the last token; it should mark the first"
    if not bool(column.any()):
        return f"{told} All values are 0: the first token should give 1"
    if (
        length > 2
        and torch.allclose(column.diff(), column.diff()[:1].expand(length - 1))
        and bool(column.diff()[0] != 0)
    ):
        return f"{told} V counts the places: it may know only whether it is the first, and the mask does the counting"
    if torch.allclose(column, 1 / torch.arange(1, length + 1, dtype=torch.float64)):
        return f"{told} V already is 1/t, and the head takes the mean of that: V should be 1, 0, 0, …"
    return f"{told} The output is the mean of the values so far: which values have the mean 1/t?"


def token_by_token(ask: Ask) -> str | None:
    """The same tokens in another order: row i follows first[i]."""
    one = _given(ask, _first(6))
    if isinstance(one, str):
        return one
    order = torch.tensor([3, 1, 0, 5, 4, 2])
    other = _given(ask, _first(6)[order])
    if isinstance(other, str):
        return other
    for name, straight, moved in zip("KV", one, other, strict=True):
        if not torch.allclose(straight[order], moved, atol=1e-6):
            return (
                f"{name} is made of the place in the sequence: when another token is the first one, its rows do not "
                "follow. Row i may depend on first[i] alone, for that is all a token without a position knows"
            )
    return None


EXERCISE = Exercise(
    tag="P11",
    title="Position without an encoding",
    task=TASK,
    starter=STARTER,
    answer=ANSWER,
    words=WORDS,
    names=("keys_and_values",),
    checks=(("the outputs are 1, 1/2, 1/3, …", output), ("token by token", token_by_token)),
)
