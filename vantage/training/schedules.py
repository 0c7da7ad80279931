"""How the learning rate changes over a run: pure functions of the step, so a resumed run needs no state of theirs.

``at(step)`` is the factor of the step-th update, counted from 0. A warm-up of n steps gives 1/n, 2/n, … 1, so that
no update is wasted on a rate of 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import cos, pi, sqrt
from typing import Protocol

from vantage.errors import BadInput


class Schedule(Protocol):
    def at(self, step: int) -> float:
        """The factor of the learning rate at this step."""
        ...


@dataclass(frozen=True)
class Constant:
    """1, after a warm-up if there is one."""

    warmup: int = 0

    def __post_init__(self) -> None:
        _check_warmup(self.warmup)

    def at(self, step: int) -> float:
        return _warm(step, self.warmup)


@dataclass(frozen=True)
class Cosine:
    """Half a cosine from 1, where the warm-up ends, to ``floor`` at step ``total``; ``floor`` from there on."""

    total: int
    warmup: int = 0
    floor: float = 0.0

    def __post_init__(self) -> None:
        _check(self.total, self.warmup, self.floor)

    def at(self, step: int) -> float:
        if step < self.warmup:
            return _warm(step, self.warmup)
        gone = min(1.0, (step - self.warmup) / max(1, self.total - self.warmup))
        return self.floor + (1 - self.floor) * (1 + cos(pi * gone)) / 2


# From 1 to 0 while its argument goes from 0 to 1. "sqrt" is 1 - √x (Hägele et al. 2024).
SHAPES: dict[str, Callable[[float], float]] = {
    "linear": lambda gone: 1 - gone,
    "cosine": lambda gone: (1 + cos(pi * gone)) / 2,
    "sqrt": lambda gone: 1 - sqrt(gone),
}


@dataclass(frozen=True)
class WSD:
    """Warm-up, stable, decay (Hu et al. 2024): 1 until the last ``decay`` share of the run, then down to ``floor``."""

    total: int
    warmup: int = 0
    decay: float = 0.2  # a share of total
    floor: float = 0.0
    shape: str = "linear"

    def __post_init__(self) -> None:
        _check(self.total, self.warmup, self.floor)
        if not 0 <= self.decay <= 1:
            raise BadInput(f"decay={self.decay}: give the share of the run that decays, from 0 to 1")
        if self.shape not in SHAPES:
            raise BadInput(f"shape={self.shape!r}: use one of {', '.join(map(repr, SHAPES))}")
        if self.warmup > self.start:
            raise BadInput(
                f"a warm-up of {self.warmup} steps ends after step {self.start}, where the decay starts: shorten one"
            )

    @property
    def start(self) -> int:
        """The first step that decays."""
        return self.total - round(self.decay * self.total)

    def at(self, step: int) -> float:
        if step < self.start:
            return _warm(step, self.warmup)
        gone = min(1.0, (step - self.start) / max(1, self.total - self.start))
        return self.floor + (1 - self.floor) * SHAPES[self.shape](gone)


def _warm(step: int, warmup: int) -> float:
    return 1.0 if step >= warmup else (step + 1) / warmup


def _check_warmup(warmup: int) -> None:
    if warmup < 0:
        raise BadInput(f"warmup={warmup}: give a number of steps, 0 for none")


def _check(total: int, warmup: int, floor: float) -> None:
    _check_warmup(warmup)
    if total < 1 or warmup > total:
        raise BadInput(f"total={total}, warmup={warmup}: a run has at least one step and the warm-up ends within it")
    if not 0 <= floor <= 1:
        raise BadInput(f"floor={floor}: give the last factor of the learning rate, from 0 to 1")
