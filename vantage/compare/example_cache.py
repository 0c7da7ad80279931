"""Examples made once for a whole experiment.

Every encoding of an experiment learns from the same examples, and making them takes a good part of a small model's
training. So the first worker that needs some of them writes them to a folder, where the others find them. Workers that
need the same block at the same time make different ones, and all of them use all.
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
MAX_AHEAD = 64  # blocks that a worker may make while it waits for one that another makes
WAIT_S = 0.002


@final
class CachedExamples:
    """A task's examples by way of that folder: so many batches of a given size, the same as without it."""

    def __init__(self, source: Sequences, batches: int, batch: int, folder: Path):
        self._source, self._batches, self._batch, self._folder = source, batches, batch, folder
        self._current: tuple[int, np.ndarray] | None = None

    @property
    def vocab(self) -> int:
        return self._source.vocab

    def held_out(self) -> Mapping[str, Sequence[Batch]]:
        return self._source.held_out()

    def batch(self, indices: Sequence[int]) -> Batch:
        number, index = divmod(indices[0] // self._batch, BATCHES)
        if self._current is None or self._current[0] != number:
            self._current = number, self._block(number)
        rows = self._current[1][:, index * self._batch : (index + 1) * self._batch]
        lengths = (rows[0] != PAD).sum(1)
        tokens, targets = torch.from_numpy(rows[:, :, : lengths.max()].astype(np.int64))
        return Batch(tokens, targets, Positions.rows(lengths.tolist()) if self._source.reads == "ask" else None)

    def _block(self, number: int) -> np.ndarray:
        """Read, or made and written; while another worker makes it, make what comes next."""
        while not self._path(number).exists():
            last = (self._batches - 1) // BATCHES
            if not any(self._make(n) for n in range(number, min(number + MAX_AHEAD, last) + 1)):
                time.sleep(WAIT_S)
        return np.load(self._path(number))

    def _make(self, number: int) -> bool:
        """Whether it was made here: not if it is there already, or if another is at it."""
        path = self._path(number)
        if path.exists():
            return False
        with _exclusive(path.with_suffix(".lock")) as exclusive:
            if not exclusive or path.exists():
                return False
            first, end = number * BATCHES, min((number + 1) * BATCHES, self._batches)
            batch = self._source.batch(range(first * self._batch, end * self._batch))
            with replacing(path, durable=False) as part, part.open("wb") as file:
                np.save(file, torch.stack((batch.tokens, batch.targets)).numpy().astype(self._dtype))
            return True

    def _path(self, number: int) -> Path:
        return self._folder / f"{self._name}-{number}.npy"

    @cached_property
    def _name(self) -> str:
        s = self._source
        identity = repr((s.task, s.reads, s.lengths, s.seed, self._batch, self._batches))
        return hashlib.sha256(identity.encode()).hexdigest()[:24]

    @property
    def _dtype(self) -> type[np.signedinteger]:
        return np.int16 if self.vocab < 2**15 else np.int32


@contextlib.contextmanager
def _exclusive(path: Path) -> Iterator[bool]:
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
