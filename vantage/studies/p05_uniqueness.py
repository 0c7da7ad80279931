"""P5: no two whole positions have the same sinusoidal encoding; how near do they come?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from vantage.figures import Figure, Line, Lines
from vantage.functional import sinusoid
from vantage.position.angles import frequencies
from vantage.studies.shared.findings import compared, conclude, judged
from vantage.studies.study import Progress, Result, Values
from vantage.studies.text import StudyText

TEXT = StudyText.beside(__file__)

CHUNK = 1 << 18  # positions at a time: some tens of megabytes at the widest
# Pair 0 has whole angles, which float64 holds exactly; a million radians of pair 1 it knows to 1e-10.
ROUNDING = 1e-9


@dataclass(frozen=True)
class Nearest:
    """The records: at each of these distances two positions come nearer to each other than at any before it."""

    dim: int
    distances: tuple[int, ...]
    apart: tuple[float, ...]


def run(values: Values, progress: Progress) -> Result:
    top, dim = int(values["positions"]), int(values["dim"])
    dim += dim % 2
    dims = sorted({2, 4, dim})
    total, done = sum(dims), 0
    closest: list[Nearest] = []
    for d in dims:
        closest.append(nearest(d, top, _part(progress, done / total, d / total, f"d = {d}")))
        done += d
    shift = _same_everywhere(4, closest[1].distances[-1])
    fast = frequencies(dim, 10000.0)
    numbers = [
        compared("distance between PE(t) and PE(t + k): change with t", shift, 0.0, within=ROUNDING * 100),
        *(
            judged(
                f"nearest within {top:,} positions at d = {n.dim}: at k = {n.distances[-1]:,}",
                n.apart[-1],
                n.apart[-1] > ROUNDING,
            )
            for n in closest
        ),
    ]
    slips = [
        judged(
            "can two whole positions coincide? The least distance found",
            min(n.apart[-1] for n in closest),
            min(n.apart[-1] for n in closest) <= ROUNDING,
            "in theory",
        ),
        judged(
            f"frequency of i = 0, and of the last i at d = {dim}",
            f"{float(fast[0]):g} and {float(fast[-1]):.3g}",
            bool(fast[0] < fast[-1]),
            "small i is the low frequency",
        ),
    ]
    words = TEXT.conclusion()
    progress(1.0, "done")
    return conclude(words, numbers, [_figure(closest, top)], slips)


def _part(progress: Progress, first: float, share: float, doing: str) -> Callable[[float], None]:
    return lambda done: progress(first + share * done, doing)


def nearest(dim: int, top: int, tell: Callable[[float], None] | None = None, chunk: int = CHUNK) -> Nearest:
    """The records of ‖PE(0) − PE(k)‖ for k = 1 … top. By P3 the distance of any two positions k apart is this one."""
    zero = sinusoid(torch.zeros((), dtype=torch.long), dim)
    least, at, apart = float("inf"), [], []
    for start in range(1, top + 1, chunk):
        k = torch.arange(start, min(start + chunk, top + 1))
        off = (sinusoid(k, dim) - zero).square().sum(-1).sqrt()
        low = off.cummin(0).values
        new = torch.cat((torch.tensor([True]), low[1:] < low[:-1])) & (off < least)
        at += k[new].tolist()
        apart += off[new].tolist()
        least = min(least, float(low[-1]))
        if tell is not None:
            tell(min(1.0, (start + chunk) / top))
    return Nearest(dim, tuple(at), tuple(apart))


def _same_everywhere(dim: int, k: int) -> float:
    starts = torch.tensor([0, 1, 17, 1000, 123_456])
    off = (sinusoid(starts + k, dim) - sinusoid(starts, dim)).norm(dim=-1)
    return float(off.max() - off.min())


def _figure(closest: list[Nearest], top: int) -> Figure:
    lines = []
    for n in closest:
        stair = [float(k) for k in n.distances for _ in range(2)]  # a record holds until the next
        x, y = [*stair[1:], float(top)], [a for a in n.apart for _ in range(2)]
        lines.append(Line(f"d = {n.dim}", x, y))
    panel = Lines(
        "nearest approach", "positions looked at", "least ‖PE(0) − PE(k)‖", tuple(lines), log_x=True, log_y=True
    )
    return Figure("approach", TEXT.caption("approach"), (panel,))


STUDY = TEXT.study(
    "P5",
    run,
    (
        TEXT.parameter("positions", 10_000_000, 1000, 20_000_000),
        TEXT.parameter("dim", 8, 2, 16),
    ),
    seconds=6.0,
)
