"""A6: splitting into heads and merging them again."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from vantage.attention import GroupedQuery
from vantage.attention.scorer import merge_heads
from vantage.spec.masks import Everything
from vantage.studies.exercises.exercise import Ask, Exercise
from vantage.studies.exercises.real import draw, module
from vantage.studies.exercises.words import Mistake, unlike

TASK = """\
Multi-head attention projects every token to a vector of heads · d numbers and reads it as heads vectors of d,
one after the other. Write

- split_heads(x, heads): x (batch, tokens, heads · d) to (batch, heads, tokens, d);
- merge_heads(x): back, (batch, heads, tokens, d) to (batch, tokens, heads · d).

Head h of a token is the h-th piece of d numbers of its vector."""

STARTER = """\
# vantage exercise A6: split into heads and merge
import torch


def split_heads(x, heads):
    \"\"\"(batch, tokens, heads * d) -> (batch, heads, tokens, d)\"\"\"
    raise NotImplementedError


def merge_heads(x):
    \"\"\"(batch, heads, tokens, d) -> (batch, tokens, heads * d)\"\"\"
    raise NotImplementedError
"""

ANSWER = """\
# vantage exercise A6: split into heads and merge
import torch


def split_heads(x, heads):
    \"\"\"(batch, tokens, heads * d) -> (batch, heads, tokens, d)\"\"\"
    batch, tokens, width = x.shape
    return x.reshape(batch, tokens, heads, width // heads).transpose(1, 2)


def merge_heads(x):
    \"\"\"(batch, heads, tokens, d) -> (batch, tokens, heads * d)\"\"\"
    batch, heads, tokens, d = x.shape
    return x.transpose(1, 2).reshape(batch, tokens, heads * d)
"""

WORDS = """\
The last axis is cut into (heads, d), which only gives the numbers another name, and then the axes of tokens and
heads change places, which moves them. A single view to (batch, heads, tokens, d) has the right shape and the
wrong content: it hands whole tokens to different heads. Merging does the two steps backwards; a transposed
tensor is not contiguous, so reshape (or contiguous and view) is needed at the end."""

SHAPES = ((1, 3, 2, 4), (2, 5, 4, 2), (3, 1, 2, 3), (2, 4, 1, 6), (2, 6, 3, 1))  # batch, tokens, heads, d


def _mistakes(x: Tensor, heads: int) -> list[Mistake]:
    B, T, width = x.shape
    d = width // heads
    return [
        (
            x.reshape(B, heads, T, d),
            "this is a single view: the shape is right, but the numbers of a token are spread "
            "over the heads. Cut the last axis into (heads, d) first, then exchange the axes of tokens and heads",
        ),
        (
            x.reshape(B, T, d, heads).permute(0, 3, 1, 2),
            "head h gets every heads-th number of a token; it should get d "
            "numbers that stand together, the h-th piece: view as (…, heads, d), not (…, d, heads)",
        ),
        (x.reshape(B, T, heads, d).transpose(1, 2).flip(1), "the heads come in reverse order"),
    ]


def split(ask: Ask) -> str | None:
    for seed, (B, T, heads, d) in enumerate(SHAPES):
        x = draw(B, T, heads * d, seed=seed)
        # The real module's own projection to queries, with the identity for its weight.
        real: Any = module(GroupedQuery(heads), heads * d, Everything(), seed)
        with torch.no_grad():
            real.qkv.weight.copy_(torch.eye(heads * d).repeat(3, 1))
            wanted = real.project(x)[0]
        got = ask.call("split_heads", x, heads)
        words = unlike(got, wanted, f"split_heads of {tuple(x.shape)} into {heads} heads", _mistakes(x, heads))
        if words is not None:
            return words
    return None


def merge(ask: Ask) -> str | None:
    for seed, (B, T, heads, d) in enumerate(SHAPES):
        x = draw(B, heads, T, d, seed=seed)
        slips: list[Mistake] = [
            (
                x.reshape(B, T, heads * d),
                "this is a single view: it puts numbers of different tokens side by side. "
                "Exchange the axes of heads and tokens first, then flatten (heads, d)",
            ),
            (
                x.permute(0, 2, 3, 1).reshape(B, T, heads * d),
                "the numbers of the heads alternate; each head's d numbers "
                "should stand together: flatten (heads, d), not (d, heads)",
            ),
        ]
        got = ask.call("merge_heads", x)
        words = unlike(got, merge_heads(x), f"merge_heads of {tuple(x.shape)}", slips)
        if words is not None:
            return words
    return None


def there_and_back(ask: Ask) -> str | None:
    x = draw(2, 7, 12, seed=9)
    for heads in (1, 2, 3, 4, 6, 12):
        back = ask.call("merge_heads", ask.call("split_heads", x, heads))
        if not isinstance(back, Tensor) or back.shape != x.shape or not torch.equal(back, x):
            return f"split into {heads} heads and merged again, x is not what it was: one does not undo the other"
    return None


EXERCISE = Exercise(
    tag="A6",
    title="Split into heads and merge",
    task=TASK,
    starter=STARTER,
    answer=ANSWER,
    words=WORDS,
    names=("split_heads", "merge_heads"),
    checks=(("split_heads", split), ("merge_heads", merge), ("there and back", there_and_back)),
)
