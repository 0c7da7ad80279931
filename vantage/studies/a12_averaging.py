"""A12: averaging two values with one query, and what gain that takes."""

from __future__ import annotations

import torch
from torch import Tensor

from vantage.figures import Figure, Heat, Line, Lines
from vantage.studies.shared.attention import attend
from vantage.studies.shared.findings import compared, conclude
from vantage.studies.shared.models import F64, random_normal
from vantage.studies.study import Number, Progress, Result, Values
from vantage.studies.text import StudyText

TEXT = StudyText.beside(__file__)

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
    words = TEXT.conclusion(low=low, smallest=1 / 100)
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
    return [Figure("averaging", TEXT.caption("averaging"), (over, cells))]


STUDY = TEXT.study(
    "A12",
    run,
    (
        TEXT.parameter("keys", 10, 2, 1000),
        TEXT.parameter("gain", 3.0, 0.0, 40.0),
    ),
    seconds=1.0,
)
