"""K2: one step of generation with a cache."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from vantage.attention import GroupedQuery
from vantage.cache import LayerPlan, make_cache
from vantage.spec.masks import Causal
from vantage.spec.positions import Positions
from vantage.studies.exercises.exercise import Ask, Exercise
from vantage.studies.exercises.real import attend, draw, module, run
from vantage.studies.exercises.words import Mistake, article, unlike

TASK = """\
Write step(x, cache, wq, wk, wv): one step of a single attention head with a cache. x (d,) is the new token; q =
x wq, k = x wk and v = x wv (row vectors; wq and wk are d × d, wv is d × e). cache is None in the first step and
after that what your function returned the time before.

Return (out, cache): out (e,) is what the new token gets by attending, with scores divided by √d, to all tokens
so far, itself included; cache is the pair (K, V) of all keys (t, d) and values (t, e) in the order in which
they came."""

STARTER = """\
# vantage exercise K2: a step with a cache
import torch


def step(x, cache, wq, wk, wv):
    \"\"\"x (d,), cache None or (K, V) -> out (e,), (K, V)\"\"\"
    raise NotImplementedError
"""

ANSWER = """\
# vantage exercise K2: a step with a cache
import torch


def step(x, cache, wq, wk, wv):
    \"\"\"x (d,), cache None or (K, V) -> out (e,), (K, V)\"\"\"
    q, k, v = x @ wq, (x @ wk)[None], (x @ wv)[None]
    if cache is not None:
        k, v = torch.cat([cache[0], k]), torch.cat([cache[1], v])
    weights = (k @ q / len(q) ** 0.5).softmax(-1)
    return weights @ v, (k, v)
"""

WORDS = """\
Only the new token is projected. Its key and value are put behind those that are there, and only then does its
query look at all of them: a token sees itself. No mask is needed, since nothing lies ahead. Queries are not
kept: a query is asked once. The results are those of the whole sequence at once with a causal mask, row by row,
with a fraction of the projections."""


def _weights(d: int, e: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    return tuple(draw(d, n, seed=seed + i) * d**-0.5 for i, n in enumerate((d, d, e)))


def _real(x: Tensor, weights: tuple[Tensor, Tensor, Tensor]) -> list[tuple[Tensor, Tensor, Tensor]]:
    """out, K and V after each step, from the real module and its cache."""
    d, e = len(weights[0]), weights[2].shape[1]
    part: Any = module(GroupedQuery(1, head_dim=d, value_dim=e), d, Causal())
    with torch.no_grad():
        part.qkv.weight.copy_(torch.cat(weights, 1).T)
    part.out = torch.nn.Identity()  # the head's own output is asked for
    kept = make_cache([LayerPlan(1, d, e, Causal())])
    found = []
    for t in range(len(x)):
        pos = Positions.arange(1, 1, t)
        with kept.step(pos):
            out = run(part, x[None, t : t + 1], pos, tuple(kept.layers))[0, 0]
        view = kept.layers[0].view()
        there = view.pos.order[0] >= 0
        found.append((out, view.k[0, 0, there].clone(), view.v[0, 0, there].clone()))
    return found


def _cache_slips(t: int, x: Tensor, keys: Tensor, values: Tensor, which: str) -> list[Mistake]:
    right, other = (keys, values) if which == "K" else (values, keys)
    return [
        (right.flip(0), f"the newest row of {which} stands first: put it behind the others"),
        (torch.cat([right[-1:], right[:-1]]), f"the newest row of {which} stands first: put it behind the others"),
        (x[: t + 1], f"{which} holds the tokens themselves; keep what the projection makes of them"),
        (other, "K and V have changed places"),
        (right[-1:].expand_as(right), f"all rows of {which} are the newest one: the old ones must stay as they were"),
    ]


def _bad_cache(got: Any, t: int, x: Tensor, keys: Tensor, values: Tensor) -> str | None:
    if not isinstance(got, list | tuple) or len(got) != 2:
        return f"the cache is {article(got)}; return the pair (K, V)"
    for which, one, wanted in (("K", got[0], keys), ("V", got[1], values)):
        short = isinstance(one, Tensor) and one.dim() == 2 and one.shape[1] == wanted.shape[1] and t > 0
        if short and len(one) == t and torch.allclose(one, wanted[:t], atol=1e-5):
            return f"after step {t + 1} the cache holds {t} token(s): the new one was not appended"
        if short and len(one) == 1:
            return (
                f"after step {t + 1} the cache holds one token only: the old ones are lost. Put the new one behind them"
            )
        words = unlike(one, wanted, f"{which} after step {t + 1}", _cache_slips(t, x, keys, values, which))
        if words is not None:
            return words
    return None


def _out_slips(
    t: int, x: Tensor, weights: tuple[Tensor, Tensor, Tensor], keys: Tensor, values: Tensor
) -> list[Mistake]:
    q = (x[t] @ weights[0])[None]
    made: list[Mistake] = [
        (attend(q, keys, values, scale=1.0).out[0], "the scores are not divided by √d"),
        (attend(q, keys, values, scale=1 / len(x[0])).out[0], "the scores are divided by d; it is √d"),
        (attend(x[t : t + 1], keys, values).out[0], "the query is the token itself; project it with wq"),
        (attend(keys[-1:], keys, values).out[0], "the query is projected with wk; use wq"),
        (values[-1], "the new token looks at itself alone; it looks at all tokens so far"),
        (values.mean(0), "every token counts the same; use the softmax of the scores"),
    ]
    if t:
        made.append(
            (
                attend(q, keys[:-1], values[:-1]).out[0],
                "the new token does not see itself: append its key and value before it attends",
            )
        )
    return made


def _follow(ask: Ask, d: int, e: int, steps: int, seed: int) -> str | None:
    x, weights = draw(steps, d, seed=seed), _weights(d, e, seed + 1)
    kept: Any = None
    for t, (out, keys, values) in enumerate(_real(x, weights)):
        got = ask.call("step", x[t], kept, *weights)
        if not isinstance(got, list | tuple) or len(got) != 2:
            return f"step returns {article(got)}; return two things, out and the cache"
        words = _bad_cache(got[1], t, x, keys, values)
        if words is None:
            slips = _out_slips(t, x, weights, keys, values)
            words = unlike(got[0], out, f"out of step {t + 1}", slips)
        if words is not None:
            return words
        kept = tuple(got[1])
    return None


def first(ask: Ask) -> str | None:
    return _follow(ask, 4, 4, 1, 0)


def several(ask: Ask) -> str | None:
    return _follow(ask, 4, 4, 6, 10)


def widths(ask: Ask) -> str | None:
    return next(
        (w for i, (d, e) in enumerate(((8, 3), (2, 5), (16, 16))) if (w := _follow(ask, d, e, 4, 20 * i + 20))), None
    )


def whole(ask: Ask) -> str | None:
    """The same as one causal pass over everything."""
    x, weights = draw(5, 6, seed=90), _weights(6, 6, 91)
    wanted = attend(*(x @ w for w in weights), causal=True).out
    kept: Any = None
    for t in range(len(x)):
        got = ask.call("step", x[t], kept, *weights)
        if not isinstance(got, list | tuple) or len(got) != 2:
            return f"step returns {article(got)}; return two things, out and the cache"
        words = unlike(got[0], wanted[t], f"step {t + 1} against one pass over the whole sequence")
        if words is not None:
            return words
        kept = got[1]
    return None


EXERCISE = Exercise(
    tag="K2",
    title="A step with a cache",
    task=TASK,
    starter=STARTER,
    answer=ANSWER,
    words=WORDS,
    names=("step",),
    checks=(
        ("the first step", first),
        ("several steps", several),
        ("other widths", widths),
        ("as in one pass", whole),
    ),
)
