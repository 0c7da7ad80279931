"""Bars and lines of means over samples, with their intervals of 95 %."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from vantage.figures import Bars
from vantage.figures.chart import Line
from vantage.studies.shared.findings import interval, mean


def mean_bars(title: str, label: str, samples: Mapping[str, Sequence[float]]) -> Bars:
    """One bar for each name, of the mean of its samples."""
    ends = [interval(some) for some in samples.values()]
    return Bars(
        title, label, tuple(samples), ((label, [mean(some) for some in samples.values()]),),
        ([low for low, _ in ends],), ([high for _, high in ends],),
    )  # fmt: skip


def mean_line(name: str, x: Sequence[float], samples: Sequence[Sequence[float]]) -> Line:
    """At each ``x`` the mean of the samples there."""
    ends = [interval(some) for some in samples]
    return Line(
        name, x, [mean(some) for some in samples], [low for low, _ in ends], [high for _, high in ends]
    )  # fmt: skip
