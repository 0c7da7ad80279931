"""A vector that is added to the value of a key by its distance, in attention over a cache that stays where it is.

All values gain the vector of keys far away, which is so much of the output as the keys have of the weights: it is added
at the end. Only near keys gain what their vectors are more.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from vantage.kernels.gpu.score_bias import from_zero
from vantage.spec.forms import ValueTable


@dataclass(frozen=True)
class DeviceValues:
    """``table`` (width, e) float32: for each distance from 0 on what its vector is more than the last, which stands
    last as it is."""

    table: Tensor

    @property
    def width(self) -> int:
        return len(self.table)


def device_values(form: ValueTable, device: torch.device) -> DeviceValues:
    """What the kernels read of a form; attention looks back, so no distance is negative."""
    with torch.inference_mode(False), torch.no_grad():
        vectors = from_zero(form.values.detach().to(device, torch.float32).T, form.first).T
        return DeviceValues(torch.cat((vectors[:-1] - vectors[-1], vectors[-1:])).contiguous())


@triton.jit
def far_values(table, width, e, E: tl.constexpr):
    """What every value gains."""
    return tl.load(table + (width - 1) * E + e, mask=e < E, other=0.0)


@triton.jit
def with_near_values(
    acc, p, distance, nearest, e, table, width, E: tl.constexpr, PRECISION: tl.constexpr, TYPE: tl.constexpr
):
    """acc (rows, E_TILE) with what near keys gain by their weights p (rows, keys), where rows are heads of one token:
    ``distance`` (keys,). ``nearest``: no distance is less."""
    if nearest < width - 1:
        near = (distance >= 0) & (distance < width - 1)
        more = tl.load(
            table + distance[:, None] * E + e[None, :], mask=near[:, None] & (e < E)[None, :], other=0.0
        )  # fmt: skip
        acc += tl.dot(p.to(TYPE), more.to(TYPE), input_precision=PRECISION)
    return acc


@triton.jit
def with_band_of_values(acc, p, distance, nearest, farthest, e, table, width, E: tl.constexpr):
    """The same for rows of several tokens: ``distance`` (rows, keys), in which a distance is a diagonal. p is 0 where
    nothing is seen."""
    for one in range(tl.maximum(nearest, 0), tl.minimum(farthest + 1, width - 1)):
        weight = tl.sum(tl.where(distance == one, p, 0.0), 1)
        acc += weight[:, None] * tl.load(table + one * E + e, mask=e < E, other=0.0)
    return acc
