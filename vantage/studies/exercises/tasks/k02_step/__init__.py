"""K2: one step of generation with a cache."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from vantage.attention import GroupedQuery
from vantage.cache import LayerPlan, make_cache
from vantage.spec.masks import Causal
from vantage.spec.positions import Positions
from vantage.studies.exercises.differences import Mistake, compare_tensors, describe_value
from vantage.studies.exercises.exercise import StudentCode
from vantage.studies.exercises.library_parts import attend, attention_module, random_normal, run_module
from vantage.studies.exercises.text import ExerciseText

TEXT = ExerciseText.beside(__file__)


def _weights(d: int, e: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    return tuple(random_normal(d, n, seed=seed + i) * d**-0.5 for i, n in enumerate((d, d, e)))


def _real(x: Tensor, weights: tuple[Tensor, Tensor, Tensor]) -> list[tuple[Tensor, Tensor, Tensor]]:
    """out, K and V after each step, from the real module and its cache."""
    d, e = len(weights[0]), weights[2].shape[1]
    part: Any = attention_module(GroupedQuery(1, head_dim=d, value_dim=e), d, Causal())
    with torch.no_grad():
        part.qkv.weight.copy_(torch.cat(weights, 1).T)
    part.out = torch.nn.Identity()  # the head's own output is asked for
    kept = make_cache([LayerPlan(1, d, e, Causal())])
    steps = []
    for t in range(len(x)):
        pos = Positions.arange(1, 1, t)
        with kept.step(pos):
            out = run_module(part, x[None, t : t + 1], pos, tuple(kept.layers))[0, 0]
        view = kept.layers[0].view()
        filled = view.pos.order[0] >= 0
        steps.append((out, view.k[0, 0, filled].clone(), view.v[0, 0, filled].clone()))
    return steps


def _cache_slips(t: int, x: Tensor, keys: Tensor, values: Tensor, which: str) -> list[Mistake]:
    right, other = (keys, values) if which == "K" else (values, keys)
    return [
        (right.flip(0), TEXT.feedback("newest first", which=which)),
        (torch.cat([right[-1:], right[:-1]]), TEXT.feedback("newest first", which=which)),
        (x[: t + 1], TEXT.feedback("tokens kept", which=which)),
        (other, TEXT.feedback("K and V swapped")),
        (right[-1:].expand_as(right), TEXT.feedback("all rows newest", which=which)),
    ]


def _bad_cache(got: Any, t: int, x: Tensor, keys: Tensor, values: Tensor) -> str | None:
    if not isinstance(got, list | tuple) or len(got) != 2:
        return TEXT.feedback("no pair", value=describe_value(got))
    for which, one, wanted in (("K", got[0], keys), ("V", got[1], values)):
        short = isinstance(one, Tensor) and one.dim() == 2 and one.shape[1] == wanted.shape[1] and t > 0
        if short and len(one) == t and torch.allclose(one, wanted[:t], atol=1e-5):
            return TEXT.feedback("not appended", step=t + 1, count=t)
        if short and len(one) == 1:
            return TEXT.feedback("old ones lost", step=t + 1)
        words = compare_tensors(one, wanted, f"{which} after step {t + 1}", _cache_slips(t, x, keys, values, which))
        if words is not None:
            return words
    return None


def _out_slips(
    t: int, x: Tensor, weights: tuple[Tensor, Tensor, Tensor], keys: Tensor, values: Tensor
) -> list[Mistake]:
    q = (x[t] @ weights[0])[None]
    mistakes: list[Mistake] = [
        (attend(q, keys, values, scale=1.0).out[0], TEXT.feedback("not scaled")),
        (attend(q, keys, values, scale=1 / len(x[0])).out[0], TEXT.feedback("divided by d")),
        (attend(x[t : t + 1], keys, values).out[0], TEXT.feedback("token as query")),
        (attend(keys[-1:], keys, values).out[0], TEXT.feedback("wrong projection")),
        (values[-1], TEXT.feedback("itself alone")),
        (values.mean(0), TEXT.feedback("mean")),
    ]
    if t:
        mistakes.append((attend(q, keys[:-1], values[:-1]).out[0], TEXT.feedback("not itself")))
    return mistakes


def _follow(student: StudentCode, d: int, e: int, steps: int, seed: int) -> str | None:
    x, weights = random_normal(steps, d, seed=seed), _weights(d, e, seed + 1)
    kept: Any = None
    for t, (out, keys, values) in enumerate(_real(x, weights)):
        got = student.call("step", x[t], kept, *weights)
        if not isinstance(got, list | tuple) or len(got) != 2:
            return TEXT.feedback("not two", value=describe_value(got))
        words = _bad_cache(got[1], t, x, keys, values)
        if words is None:
            slips = _out_slips(t, x, weights, keys, values)
            words = compare_tensors(got[0], out, f"out of step {t + 1}", slips)
        if words is not None:
            return words
        kept = tuple(got[1])
    return None


def first(student: StudentCode) -> str | None:
    return _follow(student, 4, 4, 1, 0)


def several(student: StudentCode) -> str | None:
    return _follow(student, 4, 4, 6, 10)


def widths(student: StudentCode) -> str | None:
    return next(
        (w for i, (d, e) in enumerate(((8, 3), (2, 5), (16, 16))) if (w := _follow(student, d, e, 4, 20 * i + 20))),
        None,
    )


def whole(student: StudentCode) -> str | None:
    """The same as one causal pass over everything."""
    x, weights = random_normal(5, 6, seed=90), _weights(6, 6, 91)
    wanted = attend(*(x @ w for w in weights), causal=True).out
    kept: Any = None
    for t in range(len(x)):
        got = student.call("step", x[t], kept, *weights)
        if not isinstance(got, list | tuple) or len(got) != 2:
            return TEXT.feedback("not two", value=describe_value(got))
        words = compare_tensors(got[0], wanted[t], f"step {t + 1} against one pass over the whole sequence")
        if words is not None:
            return words
        kept = got[1]
    return None


EXERCISE = TEXT.exercise(
    "K2",
    ("step",),
    (
        ("the first step", first),
        ("several steps", several),
        ("other widths", widths),
        ("as in one pass", whole),
    ),
)
