"""K1: how many keys are projected, with a cache and without."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from vantage.model import build, decoder
from vantage.studies.exercises.exercise import Ask, Exercise
from vantage.studies.exercises.words import whole

TASK = """\
A decoder starts from one input token and generates n tokens, one for each step. Every step reads the input
token and what was generated so far; the last token that is generated is never read. Count how often one layer
projects a token to its key:

- without_cache(n): in all n steps together, when every step reads everything again;
- with_cache(n): the same when keys and values are kept;
- times(n, t): how often, without a cache, the key of the t-th token that is read is projected. The input token
  has t = 0, the first generated one t = 1, …

The counts are compared with those of a real model."""

STARTER = """\
# vantage exercise K1: count the projections


def without_cache(n):
    raise NotImplementedError


def with_cache(n):
    raise NotImplementedError


def times(n, t):
    raise NotImplementedError
"""

ANSWER = """\
# vantage exercise K1: count the projections


def without_cache(n):
    return n * (n + 1) // 2


def with_cache(n):
    return n


def times(n, t):
    return n - t
"""

WORDS = """\
Step s reads s tokens, the input and s − 1 generated ones: 1 + 2 + … + n = n (n + 1) / 2 projections. With a
cache each step projects only the token that is new, n in all. The input's key is projected in every step, n
times; y₁ is not there yet when y₁ is generated, so its key is needed n − 1 times; the last token's never. Two
documents count one too many there: the key of a token is not needed to generate that token."""


@cache
def _counted(n: int) -> tuple[dict[int, int], dict[int, int]]:
    """How often each place was projected in a real layer: without a cache and with one."""
    model = build(decoder(vocab=7, width=8, layers=1, heads=2)).eval()
    counts: dict[int, int] = {}

    def count(module: Any, args: tuple[Any, ...]) -> None:
        for place in args[1].pos.pos[0].tolist():
            counts[place] = counts.get(place, 0) + 1

    sublayer: Any = model.blocks[0].steps[0]  # pyright: ignore[reportIndexIssue] (a block's steps)
    sublayer.sublayer.register_forward_pre_hook(count)
    found = []
    for kept in (None, model.new_cache()):
        counts.clear()
        told = torch.tensor([[3]])
        with torch.no_grad():
            for _ in range(n):
                read = told if kept is None else told[:, -1:]
                told = torch.cat([told, model(read, cache=kept)[:, -1:].argmax(-1)], 1)
        found.append(dict(counts))
    return found[0], found[1]


LENGTHS = (1, 2, 5, 12)


def without(ask: Ask) -> str | None:
    for n in LENGTHS:
        slips = [
            (n * n, "every step is taken to read n tokens; step s reads s of them: 1 + 2 + … + n"),
            (n * (n - 1) // 2, "this is 1 + … + (n − 1): the last step reads n tokens, and the first reads one"),
            ((n + 1) * (n + 2) // 2, "this counts one step too many: the last token that is generated is never read"),
            (n, "this is the count with a cache"),
            (n * (n + 1), "each token is counted twice; only the keys are asked for"),
            (n * n // 2, "half of n² is near, but 1 + 2 + … + n is n (n + 1) / 2"),
        ]
        words = whole(ask.call("without_cache", n), sum(_counted(n)[0].values()), f"without_cache({n})", slips)
        if words is not None:
            return words
    return None


def with_one(ask: Ask) -> str | None:
    for n in LENGTHS:
        slips = [
            (n + 1, "the last token that is generated is never read, so its key is not projected"),
            (n - 1, "the input token's key has to be projected too, once"),
            (n * (n + 1) // 2, "this is the count without a cache: with one, each key is projected once"),
            (1, "this is one step; n steps are asked for"),
        ]
        words = whole(ask.call("with_cache", n), sum(_counted(n)[1].values()), f"with_cache({n})", slips)
        if words is not None:
            return words
    return None


TIMES: tuple[tuple[Callable[[int, int], int], str], ...] = (
    (lambda n, t: n, "this is the input token's count for every t: later tokens come later, and are read less often"),
    (
        lambda n, t: n - t + 1,
        "one too many: a token's key is not needed to generate that token itself, so y₁'s is projected n − 1 times "
        "(two documents have this slip)",
    ),
    (lambda n, t: n - t - 1, "one too few: the input token (t = 0) is read in every one of the n steps"),
    (lambda n, t: t + 1, "the other way round: the earliest token is projected the most often"),
    (lambda n, t: 1, "once is the count with a cache; times asks for the one without"),
)


def each(ask: Ask) -> str | None:
    for n in (5, 1, 2, 12):
        got = [ask.call("times", n, t) for t in range(n)]
        slip = next((words for make, words in TIMES if got == [make(n, t) for t in range(n)]), None)
        for t in range(n):
            wrong = whole(got[t], _counted(n)[0][t], f"times({n}, {t})")
            if wrong is not None:
                return slip or wrong
    return None


EXERCISE = Exercise(
    tag="K1",
    title="Count the projections",
    task=TASK,
    starter=STARTER,
    answer=ANSWER,
    words=WORDS,
    names=("without_cache", "with_cache", "times"),
    checks=(("without a cache", without), ("with a cache", with_one), ("token by token", each)),
)
