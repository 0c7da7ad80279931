"""A6: splitting into heads and merging them again."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from vantage.attention import GroupedQuery
from vantage.attention.scorer import merge_heads
from vantage.spec.masks import Everything
from vantage.studies.exercises.differences import Mistake, compare_tensors
from vantage.studies.exercises.exercise import StudentCode
from vantage.studies.exercises.library_parts import attention_module, random_normal
from vantage.studies.exercises.text import ExerciseText

TEXT = ExerciseText.beside(__file__)


SHAPES = ((1, 3, 2, 4), (2, 5, 4, 2), (3, 1, 2, 3), (2, 4, 1, 6), (2, 6, 3, 1))  # batch, tokens, heads, d


def _mistakes(x: Tensor, heads: int) -> list[Mistake]:
    B, T, width = x.shape
    d = width // heads
    return [
        (x.reshape(B, heads, T, d), TEXT.feedback("split by a view")),
        (x.reshape(B, T, d, heads).permute(0, 3, 1, 2), TEXT.feedback("every heads-th number")),
        (x.reshape(B, T, heads, d).transpose(1, 2).flip(1), TEXT.feedback("heads reversed")),
    ]


def split(student: StudentCode) -> str | None:
    for seed, (B, T, heads, d) in enumerate(SHAPES):
        x = random_normal(B, T, heads * d, seed=seed)
        # The real module's own projection to queries, with the identity for its weight.
        real: Any = attention_module(GroupedQuery(heads), heads * d, Everything(), seed)
        with torch.no_grad():
            real.qkv.weight.copy_(torch.eye(heads * d).repeat(3, 1))
            wanted = real.project(x)[0]
        got = student.call("split_heads", x, heads)
        words = compare_tensors(got, wanted, f"split_heads of {tuple(x.shape)} into {heads} heads", _mistakes(x, heads))
        if words is not None:
            return words
    return None


def merge(student: StudentCode) -> str | None:
    for seed, (B, T, heads, d) in enumerate(SHAPES):
        x = random_normal(B, heads, T, d, seed=seed)
        slips: list[Mistake] = [
            (x.reshape(B, T, heads * d), TEXT.feedback("merged by a view")),
            (x.permute(0, 2, 3, 1).reshape(B, T, heads * d), TEXT.feedback("numbers alternate")),
        ]
        got = student.call("merge_heads", x)
        words = compare_tensors(got, merge_heads(x), f"merge_heads of {tuple(x.shape)}", slips)
        if words is not None:
            return words
    return None


def there_and_back(student: StudentCode) -> str | None:
    x = random_normal(2, 7, 12, seed=9)
    for heads in (1, 2, 3, 4, 6, 12):
        back = student.call("merge_heads", student.call("split_heads", x, heads))
        if not isinstance(back, Tensor) or back.shape != x.shape or not torch.equal(back, x):
            return TEXT.feedback("not undone", heads=heads)
    return None


EXERCISE = TEXT.exercise(
    "A6",
    ("split_heads", "merge_heads"),
    (("split_heads", split), ("merge_heads", merge), ("there and back", there_and_back)),
)
