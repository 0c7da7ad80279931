"""The scales of quantised blocks: the obvious ones and some around them, each fitted by weighted least squares.

A rounding with a given scale says which whole number stands for each weight; for these whole numbers the best scale
(and offset) follows. Of the candidates the one with the least weighted error stays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Rounding = Callable[[Tensor], Tensor]  # weights in units of the scale to the values that a block can hold


def whole(low: int, high: int) -> Rounding:
    """To whole numbers from ``low`` to ``high``."""
    return lambda x: x.round().clamp_(low, high)


def fit_scale(x: Tensor, importance: Tensor, rounding: Rounding, extremes: Sequence[float]) -> Tensor:
    """The scale of each row: x ≈ scale · rounding(x / scale). ``extremes``: what the largest weight is tried as.

    The sign of a scale is free, so a range that reaches further down than up serves the larger side.
    """
    largest = x.gather(-1, x.abs().argmax(-1, keepdim=True))
    best_gain, best = torch.zeros_like(largest), torch.zeros_like(largest)
    weighted = importance * x
    for extreme in extremes:
        numbers = rounding(x * _inverse(largest / extreme))
        against, square = _sum(weighted * numbers), _sum(importance * numbers * numbers)
        # what the error falls by from that of a row of zeros, for the scale that fits these numbers best
        gain = against * against * _inverse(square)
        better = gain > best_gain
        best_gain = torch.where(better, gain, best_gain)
        best = torch.where(better, against * _inverse(square), best)
    return best


def fit_scale_and_offset(
    x: Tensor, importance: Tensor, steps: int, ranges: Sequence[float], *, offset_below: bool = True
) -> tuple[Tensor, Tensor]:
    """x ≈ scale · q - offset for each row, q from 0 to ``steps``. ``ranges``: how many steps a row's range is tried as.

    ``offset_below``: no offset below 0, as in the K types, whose offsets have no sign.
    """
    lowest, highest = x.amin(-1, keepdim=True), x.amax(-1, keepdim=True)
    lowest = lowest.clamp(max=0) if offset_below else lowest
    width = highest - lowest
    total, total_x = _sum(importance), _sum(importance * x)
    weighted = importance * x
    best_scale, best_offset = width / steps, -lowest
    best_error = torch.full_like(width, torch.inf)
    for tried in ranges:
        numbers = ((x - lowest) * _inverse(width / tried)).round_().clamp_(0, steps)
        times = importance * numbers
        one, two, cross = _sum(times), _sum(times * numbers), _sum(weighted * numbers)
        determinant = total * two - one * one
        scale = (total * cross - total_x * one) * _inverse(determinant)
        offset = (one * cross - two * total_x) * _inverse(determinant)
        if offset_below:
            without = offset < 0
            scale, offset = torch.where(without, cross * _inverse(two), scale), offset.clamp(min=0)
        difference = scale * numbers - offset - x
        error = _sum(importance * difference * difference)
        # where all numbers are alike, scale and offset cannot be told apart: what was obvious stays
        better = (error < best_error) & (determinant > 1e-5 * total * two) & (scale > 0)
        best_error = torch.where(better, error, best_error)
        best_scale, best_offset = torch.where(better, scale, best_scale), torch.where(better, offset, best_offset)
    return best_scale, best_offset


def refit_scale(x: Tensor, importance: Tensor, numbers: Tensor) -> Tensor:
    """The scale that fits whole numbers that are settled."""
    return _sum(importance * x * numbers) * _inverse(_sum(importance * numbers * numbers))


def refit_scale_and_offset(x: Tensor, importance: Tensor, numbers: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor]:
    """a and b of x ≈ a · numbers - b · offsets, where both are settled; both 0 where they cannot be told apart."""
    nn, oo, no = (_sum(importance * p * q) for p, q in ((numbers, numbers), (offsets, offsets), (numbers, offsets)))
    xn, xo = _sum(importance * x * numbers), _sum(importance * x * offsets)
    inverse = _inverse(nn * oo - no * no)
    scale, offset = (xn * oo - xo * no) * inverse, (xn * no - xo * nn) * inverse
    apart = nn * oo - no * no > 1e-5 * nn * oo
    return torch.where(apart, scale, 0.0), torch.where(apart, offset, 0.0)


def _sum(x: Tensor) -> Tensor:
    return x.sum(-1, keepdim=True)


def _inverse(x: Tensor) -> Tensor:
    """0 where there is none."""
    return torch.where(x == 0, torch.zeros_like(x), 1 / x)
