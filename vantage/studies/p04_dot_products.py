"""P4: the inner product of two positions depends on their distance, and does not fall with it."""

from __future__ import annotations

import torch
from torch import Tensor

from vantage.figures import Figure, Line, Lines
from vantage.functional import sinusoid
from vantage.studies.shared.findings import compared, conclude, judged
from vantage.studies.shared.models import ROUNDING, max_difference
from vantage.studies.study import Progress, Result, Values
from vantage.studies.text import StudyText

TEXT = StudyText.beside(__file__)

PRINTED = 5e-6
SHIFTS = (1, 10, 1000, 100_000)


def run(values: Values, progress: Progress) -> Result:
    dim, count = int(values["dim"]), int(values["distances"])
    dim += dim % 2
    table = sinusoid(torch.arange(8), 4)
    small, wide = from_zero(count, 4), from_zero(count, dim)
    start = from_zero(count, dim)
    moved = max(max_difference(from_zero(count, dim, shift), start) for shift in SHIFTS)
    rises = int((wide[1:] > wide[:-1]).sum())
    numbers = [
        compared("PE(0)·PE(1) at d = 4", float(table[0] @ table[1]), 1.54025, within=PRINTED),
        compared("PE(5)·PE(6) at d = 4", float(table[5] @ table[6]), 1.54025, within=PRINTED),
        compared("PE(0)·PE(5) at d = 4", float(table[0] @ table[5]), 1.28241, within=PRINTED),
        compared(f"PE(s)·PE(s + k) over s at d = {dim}: largest change", moved, 0.0, within=dim * ROUNDING * 100),
        judged(
            f"nearest neighbours at d = {dim}: PE(0)·PE(1) over PE(0)·PE(0)",
            float(wide[1] / wide[0]),
            bool(wide[1] < wide[0]),
        ),
    ]
    slips = [
        judged("PE(0)·PE(6) at d = 4", float(small[6]), bool(small[6] < small[5]), "below PE(0)·PE(5), being further"),
        judged(f"rises of PE(0)·PE(k) at d = {dim}, k up to {count - 1}", rises, rises == 0, 0),
    ]
    words = TEXT.conclusion()
    progress(1.0, "done")
    return conclude(words, numbers, [_figure(small, wide, dim)], slips)


def from_zero(count: int, dim: int, start: int = 0) -> Tensor:
    """(count,): PE(start)·PE(start + k)."""
    table = sinusoid(torch.arange(start, start + count), dim)
    return table @ table[0]


def _figure(small: Tensor, wide: Tensor, dim: int) -> Figure:
    x = list(range(len(small)))
    lines = [Line("d = 4", x, (small / small[0]).tolist())]
    if dim != 4:
        lines.append(Line(f"d = {dim}", x, (wide / wide[0]).tolist()))
    panel = Lines("inner product over distance", "distance k", "PE(0)·PE(k) / PE(0)·PE(0)", tuple(lines))
    return Figure("products", TEXT.caption("products"), (panel,))


STUDY = TEXT.study(
    "P4",
    run,
    (
        TEXT.parameter("dim", 128, 2, 1024),
        TEXT.parameter("distances", 100, 50, 2000),
    ),
    seconds=0.2,
)
