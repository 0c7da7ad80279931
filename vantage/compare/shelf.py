"""Examples made once for a whole study.

Every encoding of a study learns from the same examples, and making them takes a good part of a small model's training.
So the first worker that needs some of them puts them on a shelf, a folder, where the others find them. Workers that
come to the same place at the same time make different blocks, and all of them use all.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import final

import numpy as np
import torch

from vantage.files import replacing
from vantage.spec.positions import Positions
from vantage.training.batch import Batch
from vantage.training.sequences import PAD, Sequences

try:
    import fcntl
except ImportError:  # Windows. There two workers may make the same block, which costs time and nothing else
    fcntl = None

BATCHES = 8  # in a block, which is a file: few, so that workers who begin together find one each to make
AHEAD = 64  # blocks that a worker may make while it waits for one that another makes
WAIT_S = 0.002


@final
class Shelved:
    """A task's examples by way of a shelf: so many batches of a given size, the same as without it."""

    def __init__(self, made: Sequences, batches: int, batch: int, folder: Path):
        self._made, self._batches, self._batch, self._folder = made, batches, batch, folder
        self._now: tuple[int, np.ndarray] | None = None

    @property
    def vocab(self) -> int:
        return self._made.vocab

    def held_out(self) -> Mapping[str, Sequence[Batch]]:
        return self._made.held_out()

    def batch(self, indices: Sequence[int]) -> Batch:
        number, place = divmod(indices[0] // self._batch, BATCHES)
        if self._now is None or self._now[0] != number:
            self._now = number, self._block(number)
        rows = self._now[1][:, place * self._batch : (place + 1) * self._batch]
        lengths = (rows[0] != PAD).sum(1)
        tokens, targets = torch.from_numpy(rows[:, :, : lengths.max()].astype(np.int64))
        return Batch(tokens, targets, Positions.rows(lengths.tolist()) if self._made.reads == "ask" else None)

    def _block(self, number: int) -> np.ndarray:
        """From the shelf, or made and put there; while another makes it, make what comes next."""
        while not self._path(number).exists():
            last = (self._batches - 1) // BATCHES
            if not any(self._make(n) for n in range(number, min(number + AHEAD, last) + 1)):
                time.sleep(WAIT_S)
        return np.load(self._path(number))

    def _make(self, number: int) -> bool:
        """Whether it was made here: not if it is there already, or if another is at it."""
        path = self._path(number)
        if path.exists():
            return False
        with _alone(path.with_suffix(".lock")) as alone:
            if not alone or path.exists():
                return False
            first, end = number * BATCHES, min((number + 1) * BATCHES, self._batches)
            batch = self._made.batch(range(first * self._batch, end * self._batch))
            with replacing(path, durable=False) as part, part.open("wb") as file:
                np.save(file, torch.stack((batch.tokens, batch.targets)).numpy().astype(self._kind))
            return True

    def _path(self, number: int) -> Path:
        return self._folder / f"{self._name}-{number}.npy"

    @cached_property
    def _name(self) -> str:
        m = self._made
        said = repr((m.task, m.reads, m.lengths, m.seed, self._batch, self._batches))
        return hashlib.sha256(said.encode()).hexdigest()[:24]

    @property
    def _kind(self) -> type[np.signedinteger]:
        return np.int16 if self.vocab < 2**15 else np.int32


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[bool]:
    """Whether nobody else is in here. A worker that dies leaves."""
    if fcntl is None:
        yield True
        return
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
