"""The few statistics a benchmark needs: the median, the middle half, and ratios round by round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which ``share`` of the values lie, linear between neighbours (as numpy's default)."""
    if not values:
        raise ValueError("no values: a quantile needs at least one")
    if not 0 <= share <= 1:
        raise ValueError(f"share={share}: use a number from 0 to 1")
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def median(values: Sequence[float]) -> float:
    return quantile(values, 0.5)


@dataclass(frozen=True)
class Summary:
    """The median, and the quartiles around it: half of all values lie between low and high."""

    n: int
    median: float
    low: float
    high: float


def summarise(values: Sequence[float]) -> Summary:
    return Summary(len(values), median(values), quantile(values, 0.25), quantile(values, 0.75))


@dataclass(frozen=True)
class Ratio:
    """``a`` over ``b``: the ratio of the medians, and the quartiles of the ratios round by round.

    Neighbouring rounds share whatever else the machine was doing, so the spread of their ratios says
    more about the comparison than the spread of either side does.
    """

    value: float
    low: float
    high: float


def ratio(a_rounds: Sequence[Sequence[float]], b_rounds: Sequence[Sequence[float]]) -> Ratio:
    """Each argument holds the samples of one contestant, round by round."""
    if len(a_rounds) != len(b_rounds):
        raise ValueError(f"{len(a_rounds)} rounds against {len(b_rounds)}: the rounds must pair up")
    by_round = [median(a) / median(b) for a, b in zip(a_rounds, b_rounds, strict=True)]
    value = median(flat(a_rounds)) / median(flat(b_rounds))
    return Ratio(value, quantile(by_round, 0.25), quantile(by_round, 0.75))


def flat(rounds: Sequence[Sequence[float]]) -> list[float]:
    return [value for samples in rounds for value in samples]
