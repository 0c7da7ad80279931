"""K3: keys, values and an output, worked by hand."""

from __future__ import annotations

from typing import Any

import torch

from vantage.attention import GroupedQuery
from vantage.spec.masks import Causal
from vantage.studies.exercises.exercise import Ask, Exercise
from vantage.studies.exercises.real import module, run
from vantage.studies.exercises.words import by_hand

TASK = """\
Three tokens, x1 = (1, 2), x2 = (3, 4), x3 = (5, 6), are row vectors: k = x W^K and v = x W^V, with

    W^Q = [[1, 0], [0, 1]]    W^K = [[1, 2], [0, 1]]    W^V = [[0.5, −0.5], [1, 0.5]]

Work out what the cache holds after three steps: the keys K and the values V, a row for each token. Then OUT,
what x3 gets by causal attention with scores divided by √2, to two decimals. Write them into the file."""

STARTER = """\
# vantage exercise K3: keys and values by hand
# Replace every None.

K = [[None, None], [None, None], [None, None]]
V = [[None, None], [None, None], [None, None]]
OUT = [None, None]
"""

ANSWER = """\
# vantage exercise K3: keys and values by hand
# x3: k = (5, 5·2 + 6) = (5, 16), v = (5·0.5 + 6, −5·0.5 + 6·0.5) = (8.5, 0.5)

K = [[1, 4], [3, 10], [5, 16]]
V = [[2.5, 0.5], [5.5, 0.5], [8.5, 0.5]]
OUT = [8.5, 0.5]  # scores 29, 75, 121 over √2: the last takes all but e^(−32.5)
"""

WORDS = """\
Row vectors multiply from the left: the first number of k is x · the first column of W^K. For x1 that is (1·1 +
2·0, 1·2 + 2·1) = (1, 4). The scores of x3's query (5, 6) are 29, 75 and 121; divided by √2 the last leads by
32.5, so its weight is 1 − 7·10^(−15), and the output is v3 = (8.5, 0.5). This is the last step that is needed
to generate x4: neither q4 nor k4 takes part, though the document works them out."""

X = [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]
WK = [[1.0, 2.0], [0.0, 1.0]]
WV = [[0.5, -0.5], [1.0, 0.5]]


def _parts() -> tuple[Any, Any, Any]:
    """K, V and the last output, from the real module."""
    part: Any = module(GroupedQuery(1), 2, Causal())
    with torch.no_grad():
        part.qkv.weight.copy_(torch.cat([torch.eye(2), torch.tensor(WK), torch.tensor(WV)], 1).T)
        part.out.weight.copy_(torch.eye(2))
        _, k, v = part.project(torch.tensor([X]))
    return k[0, 0].tolist(), v[0, 0].tolist(), run(part, torch.tensor([X]))[0, -1].tolist()


def _columns(w: list[list[float]]) -> Any:
    return (torch.tensor(X) @ torch.tensor(w).T).tolist()


def keys(ask: Ask) -> str | None:
    right, values, _ = _parts()
    slips = [
        (_columns(WK), "this is W^K x, with x as a column; here x is a row: k = x W^K"),
        (X, "these are the tokens; multiply them by W^K"),
        (values, "these are the values"),
    ]
    return by_hand(ask.value("K"), right, "K", slips)


def values(ask: Ask) -> str | None:
    right = _parts()[1]
    slips = [
        (_columns(WV), "this is W^V x, with x as a column; here x is a row: v = x W^V"),
        (_parts()[0], "these are the keys"),
        (X, "these are the tokens; multiply them by W^V"),
    ]
    return by_hand(ask.value("V"), right, "V", slips)


def out(ask: Ask) -> str | None:
    k, v, right = _parts()
    mean = torch.tensor(v).mean(0).tolist()
    slips = [
        (mean, "this is the plain mean of the values; the scores 29, 75 and 121 are far from equal"),
        (v[0], "this is what x1 gets: it sees itself alone. x3 is asked for"),
        (v[1], "this is v2; the largest score of x3 is with its own key"),
        (k[-1], "this is the key of x3; the output is made of values"),
        (torch.tensor(v).sum(0).tolist(), "the values are added up without weights"),
    ]
    return by_hand(ask.value("OUT"), right, "OUT", slips, tolerance=6e-3)


EXERCISE = Exercise(
    tag="K3",
    title="Keys and values by hand",
    task=TASK,
    starter=STARTER,
    answer=ANSWER,
    words=WORDS,
    names=("K", "V", "OUT"),
    checks=(("the keys", keys), ("the values", values), ("the output", out)),
    numbers=True,
)
