"""A5: the causal mask, also for queries that come after a cache."""

from __future__ import annotations

import torch
from torch import Tensor

from vantage.spec.masks import Causal, dense
from vantage.spec.positions import Positions
from vantage.studies.exercises.exercise import Ask, Exercise
from vantage.studies.exercises.words import Mistake, not_a_tensor, unlike

TASK = """\
Write causal_mask(queries, keys). It returns a float tensor of shape (queries, keys) that is added to the
scores: 0 where the query may see the key, −∞ where it may not. A query sees itself and everything before it.

The queries are the last ones of the sequence: causal_mask(4, 4) is for a whole sequence of four, causal_mask(1,
4) is for the fourth token when the keys of the first three came out of a cache."""

STARTER = """\
# vantage exercise A5: the causal mask
import torch


def causal_mask(queries, keys):
    \"\"\"(queries, keys): 0 where a query may see a key, -inf where it may not\"\"\"
    raise NotImplementedError
"""

ANSWER = """\
# vantage exercise A5: the causal mask
import torch


def causal_mask(queries, keys):
    \"\"\"(queries, keys): 0 where a query may see a key, -inf where it may not\"\"\"
    at = torch.arange(keys - queries, keys)[:, None]  # where the queries stand
    hidden = torch.arange(keys)[None, :] > at
    return torch.zeros(queries, keys).masked_fill(hidden, float("-inf"))
"""

WORDS = """\
Query i of a whole sequence stands at position i and sees the keys at j ≤ i: zeros up to and on the diagonal, −∞
above it. With a cache the queries are the last of the keys, so the first of them stands at keys − queries, not
at 0: a single new token sees every key, and its row is all zeros. A mask that always starts at the top left
corner would show it only the first key. −∞ and not a large negative number: exp(−∞) is exactly 0 whatever the
scores are."""


def _wanted(queries: int, keys: int) -> Tensor:
    q, k = Positions.arange(1, queries, keys - queries), Positions.arange(1, keys)
    return torch.zeros(queries, keys).masked_fill(~dense(Causal(), q.against(k))[0, 0], -torch.inf)


def _mistakes(queries: int, keys: int) -> list[Mistake]:
    right = _wanted(queries, keys)
    seen = right == 0
    start = keys - queries
    full = torch.full((queries, keys), -torch.inf)
    return [
        (
            full.triu(start),
            "the mask hides the diagonal: a token sees itself (with it hidden, the first token sees "
            "nothing at all and its softmax is NaN)",
        ),
        (
            torch.zeros(queries, keys).masked_fill(seen, -torch.inf),
            "the mask is turned around: what may be seen is −∞ and what lies ahead is 0",
        ),
        (
            torch.zeros(queries, keys).masked_fill(torch.ones(queries, keys).tril(start - 1).bool(), -torch.inf),
            "the mask hides the past and shows the future: j > i is what must be −∞",
        ),
        (seen.float(), "these are ones and zeros, to multiply with; the mask is added to the scores: 0 and −∞"),
        ((~seen).float(), "these are zeros and ones; where the key is hidden it should be −∞, not 1"),
        (
            torch.zeros(queries, keys).masked_fill(torch.ones(queries, keys).triu(1).bool(), -torch.inf),
            f"the first query is taken to stand at position 0. It stands at keys − queries = {start}: with a cache the "
            "queries are the last of the sequence",
        ),
        (torch.zeros(queries, keys), "nothing is hidden"),
        (
            torch.zeros(queries, keys).masked_fill(torch.ones(queries, keys).triu(start + 2).bool(), -torch.inf),
            "each query also sees the token right after it: the diagonal is shifted by one",
        ),
    ]


def _one(ask: Ask, queries: int, keys: int) -> str | None:
    got, what = ask.call("causal_mask", queries, keys), f"causal_mask({queries}, {keys})"
    wanted = _wanted(queries, keys)
    wrong = not_a_tensor(got, wanted.shape, what)
    if wrong is not None:
        return wrong
    if got.dtype == torch.bool:
        return f"{what} holds true and false; the mask is added to the scores: 0 and −∞, as floats"
    finite = got.isfinite() & (got < -1e4)
    if bool(finite.any()) and bool(((got == 0) | finite).all()):
        number = float(got[finite][0])
        return f"{what} holds {number:g} where it should hold −∞ (float('-inf')): large scores would still get through"
    return unlike(got, wanted, what, _mistakes(queries, keys), floats=False)


def whole(ask: Ask) -> str | None:
    return next((w for n in (4, 1, 2, 9) if (w := _one(ask, n, n)) is not None), None)


def cached(ask: Ask) -> str | None:
    return next((w for q, k in ((1, 4), (2, 5), (3, 11), (1, 2)) if (w := _one(ask, q, k)) is not None), None)


EXERCISE = Exercise(
    tag="A5",
    title="The causal mask",
    task=TASK,
    starter=STARTER,
    answer=ANSWER,
    words=WORDS,
    names=("causal_mask",),
    checks=(("a whole sequence", whole), ("queries that come after a cache", cached)),
)
