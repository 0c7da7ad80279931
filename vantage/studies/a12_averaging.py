"""A12: averaging two values with one query, and what gain that takes."""

from __future__ import annotations

import torch
from torch import Tensor

from vantage.figures import Figure, Heat, Line, Lines
from vantage.studies.shared.attention import attend
from vantage.studies.shared.findings import compared, conclude
from vantage.studies.shared.models import F64, random_normal
from vantage.studies.study import Number, Parameter, Progress, Result, Study, Values

HIGH = 20.0
COUNTS = (2, 10, 100, 1000)
GAINS = tuple(0.25 * i for i in range(57))
CELLS_G, CELLS_N = (0.0, 1.0, 2.0, 4.0, 6.0, 8.0, 12.0), (2, 10, 30, 100, 1000)
ENOUGH = 0.49


def run(values: Values, progress: Progress) -> Result:
    n, g = int(values["keys"]), float(values["gain"])
    curves = {count: _shares(count, GAINS) for count in COUNTS}
    progress(0.5, "gain and number of keys")
    high = _output(100, HIGH)
    right = [
        compared(f"weight of each of the two, n = 100, g = {HIGH:g}", high[0], 0.5, within=1e-6),
        compared(f"weight of all the others, n = 100, g = {HIGH:g}", sum(high[2:]), 0.0, within=1e-6),
        compared("weight of each of the two, n = 2, g = 1", _output(2, 1.0)[0], 0.5, within=1e-9),
    ]
    low = _output(100, 1.0)[0]
    slips = [compared("weight of each of the two, n = 100, g = 1", low, 0.5, within=0.05)]
    also = [Number(f"gain from which each has {ENOUGH:g}, n = {count}", _gain(count)) for count in COUNTS[1:]]
    also.append(Number(f"weight of each of the two, n = {n}, g = {g:g} (yours)", _output(n, g)[0]))
    words = (
        "With q = g(k_a + k_b) the output goes to the mean of the two values as the gain grows. It takes a gain: the "
        "document calls e/(2e + n − 2) about a half, but at n = 100 and g = 1 each of the two has a weight of "
        f"{low:.3f}, hardly more than the {1 / 100:g} of a query that asks for nothing."
    )
    return conclude(words, [*right, *also], _figures(curves), slips)


def _shares(n: int, gains: tuple[float, ...]) -> list[float]:
    """The weight of k_a, for each gain, over n orthonormal keys that are not the unit vectors."""
    keys = _keys(n)
    queries = torch.tensor(gains, dtype=F64)[:, None] * (keys[0] + keys[1])
    return attend(queries, keys, keys)[1][:, 0].tolist()


def _output(n: int, g: float) -> list[float]:
    """The output where the values are unit vectors: how much of each value it holds."""
    keys = _keys(n)
    return attend(g * (keys[0] + keys[1])[None], keys, torch.eye(n, dtype=F64))[0][0].tolist()


def _keys(n: int) -> Tensor:
    """Orthonormal keys. Of many only the first are turned: a QR of 1000 would take longer than all the rest."""
    keys = torch.eye(n, dtype=F64)
    few = min(n, 32)
    keys[:few, :few] = torch.linalg.qr(random_normal(few, few, seed=n)).Q
    return keys


def _gain(n: int) -> float:
    """The least gain with which both have enough, to two places, by halving."""
    low, high = 0.0, 40.0
    while high - low > 0.005:
        middle = (low + high) / 2
        low, high = (low, middle) if _shares(n, (middle,))[0] >= ENOUGH else (middle, high)
    return round(high, 2)


def _figures(curves: dict[int, list[float]]) -> list[Figure]:
    lines = tuple(Line(f"n = {n}", GAINS, y) for n, y in curves.items())
    over = Lines("Weight of each of the two", "gain g", "weight", lines, marks=(("half", 0.5),))
    cells = Heat(
        "Weight of each of the two",
        "keys n",
        "gain g",
        [[round(_shares(n, (g,))[0], 3) for n in CELLS_N] for g in CELLS_G],
        x_ticks=tuple(map(str, CELLS_N)),
        y_ticks=tuple(f"{g:g}" for g in CELLS_G),
        written=True,
    )
    caption = (
        "At a gain of 1 the two are far from a half unless there are no other keys. Ten times as many keys need "
        "about 2.3 more gain, which is log 10."
    )
    return [Figure("averaging", caption, (over, cells))]


STUDY = Study(
    tag="A12",
    title="Averaging two values",
    sources=("S4",),
    statement=(
        "With orthonormal keys, the query k_a + k_b gives scores of 1 for two keys and 0 for the rest, so that each "
        "of the two has the weight e/(2e + n − 2), which the document calls about a half, and the output is about "
        "the mean of v_a and v_b."
    ),
    explanation=(
        "A query can ask for two keys at once by being their sum: it then has the same score with both and 0 with "
        "every key that is orthogonal to them. Two equal scores far above the rest share the weight, and the output "
        "is the mean of two values. That is how one head can bring together two tokens.\n\n"
        "How far above is the question. With unit keys and no gain the two scores are 1 and the others 0: e = 2.7 "
        "against 1 each. Two such keys outweigh a few others, not a hundred: at n = 100 they have 0.026 each. With q "
        "= g(k_a + k_b) the weight is e^g/(2e^g + n − 2), and a gain of log(n) and some more brings it to a half. "
        "The study runs attention over such keys for many g and n."
    ),
    run=run,
    parameters=(
        Parameter("keys", 10, "your number of keys", 2, 1000),
        Parameter("gain", 3.0, "your gain", 0.0, 40.0),
    ),
    seconds=1.0,
)
