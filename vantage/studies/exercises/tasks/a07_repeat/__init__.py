"""A7: keys and values of a few heads, for many query heads."""

from __future__ import annotations

import torch
from torch import Tensor

from vantage.attention import GroupedQuery
from vantage.kernels.reference import grouped_matmul
from vantage.spec.masks import Everything
from vantage.studies.exercises.differences import Mistake, compare_tensors, compare_whole_number
from vantage.studies.exercises.exercise import StudentCode
from vantage.studies.exercises.library_parts import attention_module, random_normal
from vantage.studies.exercises.text import ExerciseText

TEXT = ExerciseText.beside(__file__)


def _wanted(k: Tensor, heads: int) -> Tensor:
    """What the real kernel reads for each query head: the identity as weights."""
    B, _, T, _ = k.shape
    return grouped_matmul(torch.eye(T).expand(B, heads, T, T), k)


def repeat(student: StudentCode) -> str | None:
    for seed, (B, G, T, d, heads) in enumerate(((1, 2, 3, 4, 4), (2, 1, 3, 2, 6), (2, 3, 4, 2, 6), (1, 4, 5, 3, 4))):
        k = random_normal(B, G, T, d, seed=seed)
        n = heads // G
        slips: list[Mistake] = [
            (k.repeat(1, n, 1, 1), TEXT.feedback("repeat")),
            (k[:, :1].expand(B, heads, T, d), TEXT.feedback("first head only")),
            (k.repeat_interleave(n, dim=2).reshape(B, heads, T, d), TEXT.feedback("tokens repeated")),
            (k.repeat_interleave(n, dim=1).flip(1), TEXT.feedback("heads reversed")),
        ]
        got = student.call("repeat_kv", k, heads)
        words = compare_tensors(got, _wanted(k, heads), f"repeat_kv of {tuple(k.shape)} for {heads} heads", slips)
        if words is not None:
            return words
    return None


def _counted(tokens: int, d: int, heads: int) -> int:
    """Of the real modules' projections: each number of a weight is one multiply-accumulate for each token."""
    many, one = (
        tokens
        * attention_module(GroupedQuery(heads, kv_heads, head_dim=d), d, Everything())
        .get_parameter("qkv.weight")
        .numel()
        for kv_heads in (heads, 1)
    )
    return many - one


def saving(student: StudentCode) -> str | None:
    for tokens, d, heads in ((10, 8, 4), (3, 4, 2), (7, 16, 8), (5, 4, 1)):
        wanted, one = _counted(tokens, d, heads), tokens * d**2
        slips = [
            (one * (heads - 1), TEXT.feedback("values forgotten")),
            (2 * one * heads, TEXT.feedback("all heads saved")),
            (3 * one * (heads - 1), TEXT.feedback("queries counted")),
            (2 * tokens * d * (heads - 1), TEXT.feedback("d instead of d squared")),
            (4 * one * (heads - 1), TEXT.feedback("two operations")),
        ]
        words = compare_whole_number(
            student.call("saved", tokens, d, heads), wanted, f"saved({tokens}, {d}, {heads})", slips
        )
        if words is not None:
            return words
    return None


EXERCISE = TEXT.exercise(
    "A7", ("repeat_kv", "saved"), (("repeat_kv", repeat), ("what multi-query attention saves", saving))
)
