"""Rows of unequal length as one tensor, the order of examples, and batches that are made when they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vantage.errors import BadInput
from vantage.spec.positions import Positions
from vantage.training.batch import Batch, random

Row = Sequence[int] | NDArray[np.int64]


def padded(rows: Sequence[Row], fill: int) -> Tensor:
    """(B, T): rows padded on the right."""
    out = np.full((len(rows), max(map(len, rows), default=0)), fill, np.int64)
    for b, row in enumerate(rows):
        out[b, : len(row)] = row
    return torch.from_numpy(out)


def positions_of(rows: Sequence[Row]) -> Positions | None:
    """Where the tokens of padded rows stand; ``None`` if no place is empty."""
    lengths = [len(row) for row in rows]
    return None if len(set(lengths)) == 1 else Positions.rows(lengths)


class EpochOrder:
    """Every one of ``count`` examples once an epoch, in an order that only the seed and the epoch decide.

    ``shuffle`` makes that order of random numbers, if it is not to be just any permutation.
    """

    def __init__(
        self, seed: int, count: int, shuffle: Callable[[np.random.Generator], NDArray[np.int64]] | None = None
    ):
        if count < 1:
            raise BadInput("there is nothing to train on: no example is left")
        self._seed, self.count = seed, count
        self._shuffle = shuffle or (lambda rng: rng.permutation(count))
        self._memo: dict[int, NDArray[np.int64]] = {}

    def __call__(self, index: int) -> tuple[int, int]:
        """The epoch of the index-th example, and which one it is."""
        epoch, place = divmod(index, self.count)
        if epoch not in self._memo:
            if len(self._memo) > 1:  # a batch reaches into two epochs at most, if it is not larger than one
                self._memo.clear()
            # examples take their random numbers from 0 up, epochs from -1 down
            self._memo[epoch] = self._shuffle(random(self._seed, -1 - epoch))
        return epoch, int(self._memo[epoch][place])


class Batches(Sequence[Batch]):
    """``count`` rows in batches of ``size``; ``make`` is given the numbers of the rows."""

    def __init__(self, count: int, size: int, make: Callable[[range], Batch]):
        if size < 1:
            raise BadInput(f"{size} rows in an evaluation batch: give at least 1")
        self._count, self._size, self._make = count, size, make

    def __len__(self) -> int:
        return (self._count + self._size - 1) // self._size

    @overload
    def __getitem__(self, index: int) -> Batch: ...
    @overload
    def __getitem__(self, index: slice) -> list[Batch]: ...
    def __getitem__(self, index: int | slice) -> Batch | list[Batch]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(f"batch {index} of {len(self)}")
        low = index % len(self) * self._size
        return self._make(range(low, min(low + self._size, self._count)))
