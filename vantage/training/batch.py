"""What a model is trained on: batches, and the one protocol that everything which makes them keeps to.

Nothing that makes batches has a state. A batch is a pure function of the numbers of its examples, so a run that
was killed goes on with the very next example, and two processes take every other one, without anything being saved.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from vantage.errors import VantageError
from vantage.spec.positions import Positions

IGNORE = -100  # a target that nobody asks for: what cross_entropy leaves out by default


@dataclass(frozen=True, eq=False)
class Batch:
    """Tokens and what a model should make of them.

    ``targets[b, t]`` is what the logits at t should say, so they are shifted already; a classifier's targets are
    (B,), one class a row. ``source`` is what an encoder-decoder or a recurrent model reads first.
    """

    tokens: Tensor  # (B, T)
    targets: Tensor  # (B, T) or (B,)
    positions: Positions | None = None  # None: every row runs from 0
    source: Tensor | None = None  # (B, S)
    source_mask: Tensor | None = None  # (B, S), false at padding; None: no padding
    groups: tuple[str, ...] = ()  # one word a row: scored apart as well

    def to(self, device: torch.device | str) -> Batch:
        def move(t: Tensor | None) -> Tensor | None:
            return None if t is None else t.to(device, non_blocking=True)

        positions = None if self.positions is None else self.positions.to(device)
        source, mask = move(self.source), move(self.source_mask)
        tokens, targets = self.tokens.to(device, non_blocking=True), self.targets.to(device, non_blocking=True)
        return replace(self, tokens=tokens, targets=targets, positions=positions, source=source, source_mask=mask)

    def split(self, rows: int) -> list[Batch]:
        """The same in pieces of at most so many rows."""
        count = len(self.tokens)
        return [self] if rows >= count else [self._part(slice(low, low + rows)) for low in range(0, count, rows)]

    def _part(self, rows: slice) -> Batch:
        p = self.positions
        segment = None if p is None or p.segment is None else p.segment[rows]
        positions = None if p is None else Positions.of(p.pos[rows], order=p.order[rows], segment=segment)
        return Batch(
            self.tokens[rows],
            self.targets[rows],
            None if positions is None or p is None else positions.declare(p.length),
            None if self.source is None else self.source[rows],
            None if self.source_mask is None else self.source_mask[rows],
            self.groups[rows],
        )

    @property
    def target_count(self) -> int:
        """How many targets count. Reads the device that they are on."""
        return int((self.targets != IGNORE).sum())


class DataEnded(VantageError):
    """There are no more examples: of an iterator that can be read once."""


class Data(Protocol):
    """Where batches come from: a task, files of text, pairs of sentences."""

    @property
    def vocab(self) -> int:
        """How many token ids there are."""
        ...

    def batch(self, indices: Sequence[int]) -> Batch:
        """These training examples. The same numbers give the same batch, always."""
        ...

    def held_out(self) -> Mapping[str, Sequence[Batch]]:
        """What to evaluate on, by name. The same each time."""
        ...


def random(seed: int, index: int) -> np.random.Generator:
    """Random numbers of one example: a pure function of the run's seed and the example's number."""
    return np.random.Generator(np.random.Philox(key=np.array([seed % 2**64, index % 2**64], np.uint64)))
