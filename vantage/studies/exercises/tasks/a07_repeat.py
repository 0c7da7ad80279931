"""A7: keys and values of a few heads, for many query heads."""

from __future__ import annotations

import torch
from torch import Tensor

from vantage.attention import GroupedQuery
from vantage.kernels.reference import grouped_matmul
from vantage.spec.masks import Everything
from vantage.studies.exercises.exercise import Ask, Exercise
from vantage.studies.exercises.real import draw, module
from vantage.studies.exercises.words import Mistake, unlike, whole

TASK = """\
In grouped-query attention, heads query heads share kv_heads heads of keys and values: the first heads /
kv_heads query heads use the first of them, the next as many the second, and so on. With one it is multi-query
attention.

- Write repeat_kv(k, heads): k (batch, kv_heads, tokens, d) to (batch, heads, tokens, d), where head h is the
  one that query head h uses.
- Write saved(tokens, d, heads): how many multiply-accumulates multi-query attention saves in the projections to
  keys and values, against multi-head attention, for so many tokens, when the model has the width d and every
  head has it too (each projection is d by d)."""

STARTER = """\
# vantage exercise A7: shared keys and values
import torch


def repeat_kv(k, heads):
    \"\"\"(batch, kv_heads, tokens, d) -> (batch, heads, tokens, d)\"\"\"
    raise NotImplementedError


def saved(tokens, d, heads):
    \"\"\"multiply-accumulates that multi-query attention saves\"\"\"
    raise NotImplementedError
"""

ANSWER = """\
# vantage exercise A7: shared keys and values
import torch


def repeat_kv(k, heads):
    \"\"\"(batch, kv_heads, tokens, d) -> (batch, heads, tokens, d)\"\"\"
    return k.repeat_interleave(heads // k.shape[1], dim=1)


def saved(tokens, d, heads):
    \"\"\"multiply-accumulates that multi-query attention saves\"\"\"
    return 2 * tokens * d**2 * (heads - 1)
"""

WORDS = """\
Query head h uses key/value head h // (heads / kv_heads), so each is repeated in place: 0 0 1 1, not 0 1 0 1.
tensor.repeat gives the second, and a model loaded that way is wrong without any error. A projection of one
token by a d × d matrix takes d² multiply-accumulates; multi-head attention has heads of them for keys and heads
for values, multi-query attention one and one, so it saves 2 · tokens · d² · (heads − 1). The queries cost the
same."""


def _wanted(k: Tensor, heads: int) -> Tensor:
    """What the real kernel reads for each query head: the identity as weights."""
    B, _, T, _ = k.shape
    return grouped_matmul(torch.eye(T).expand(B, heads, T, T), k)


def repeat(ask: Ask) -> str | None:
    for seed, (B, G, T, d, heads) in enumerate(((1, 2, 3, 4, 4), (2, 1, 3, 2, 6), (2, 3, 4, 2, 6), (1, 4, 5, 3, 4))):
        k = draw(B, G, T, d, seed=seed)
        n = heads // G
        slips: list[Mistake] = [
            (
                k.repeat(1, n, 1, 1),
                "the heads come as 0 1 0 1 (tensor.repeat); neighbours share, so it is 0 0 1 1 (repeat_interleave)",
            ),
            (
                k[:, :1].expand(B, heads, T, d),
                "every query head gets the first key/value head: that is right for "
                "multi-query attention alone, here there are more",
            ),
            (
                k.repeat_interleave(n, dim=2).reshape(B, heads, T, d),
                "the tokens are repeated, not the heads: the axis of the heads is 1",
            ),
            (k.repeat_interleave(n, dim=1).flip(1), "the heads come in reverse order"),
        ]
        got = ask.call("repeat_kv", k, heads)
        words = unlike(got, _wanted(k, heads), f"repeat_kv of {tuple(k.shape)} for {heads} heads", slips)
        if words is not None:
            return words
    return None


def _counted(tokens: int, d: int, heads: int) -> int:
    """Of the real modules' projections: each number of a weight is one multiply-accumulate for each token."""
    many, one = (
        tokens * module(GroupedQuery(heads, kv_heads, head_dim=d), d, Everything()).get_parameter("qkv.weight").numel()
        for kv_heads in (heads, 1)
    )
    return many - one


def saving(ask: Ask) -> str | None:
    for tokens, d, heads in ((10, 8, 4), (3, 4, 2), (7, 16, 8), (5, 4, 1)):
        wanted, one = _counted(tokens, d, heads), tokens * d**2
        slips = [
            (
                one * (heads - 1),
                "keys are counted and values are not (or the other way round): both shrink, so it is twice that",
            ),
            (2 * one * heads, "one head of keys and one of values are left: heads − 1 of each are saved, not all"),
            (3 * one * (heads - 1), "the queries are counted as well; every head keeps its own"),
            (2 * tokens * d * (heads - 1), "a projection of one token is d × d multiply-accumulates, not d"),
            (4 * one * (heads - 1), "a multiply-accumulate counts once here, not as two operations"),
        ]
        words = whole(ask.call("saved", tokens, d, heads), wanted, f"saved({tokens}, {d}, {heads})", slips)
        if words is not None:
            return words
    return None


EXERCISE = Exercise(
    tag="A7",
    title="Shared keys and values",
    task=TASK,
    starter=STARTER,
    answer=ANSWER,
    words=WORDS,
    names=("repeat_kv", "saved"),
    checks=(("repeat_kv", repeat), ("what multi-query attention saves", saving)),
)
