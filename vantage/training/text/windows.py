"""Windows of a stream of tokens: cut where they come, or whole documents side by side."""

from __future__ import annotations

import itertools
from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, final

import numpy as np
import torch
from numpy.typing import NDArray

from vantage.errors import BadInput
from vantage.spec.positions import Positions
from vantage.training.batch import IGNORE, Batch, random
from vantage.training.text.shards import Shards


@dataclass(frozen=True, eq=False)
class TokenRange:
    """The tokens low … high - 1 of a stream."""

    shards: Shards
    low: int
    high: int

    def __len__(self) -> int:
        return self.high - self.low

    def documents(self) -> list[tuple[int, int]]:
        """Where the documents in it begin and end; those that it cuts are cut."""
        edges = np.clip(self.shards.documents, self.low, self.high).tolist()
        return [(a, b) for a, b in itertools.pairwise(edges) if b > a]


class Windows(Protocol):
    """Rows of ``length`` tokens and the token that follows each."""

    count: int
    slack: int  # the whole grid may be moved by 0 … slack - 1 tokens

    def batch(self, picks: Sequence[tuple[int, int]]) -> Batch:
        """These windows, each moved by so many tokens."""
        ...


@final
class ContiguousWindows:
    """The text cut every ``length`` tokens, without a look at where documents end.

    ``fixed``: as many windows as there are; otherwise one less, so that all of them can be moved.
    """

    def __init__(self, part: TokenRange, length: int, *, fixed: bool = False):
        if len(part) < length + 1:
            raise BadInput(
                f"a text of {len(part)} tokens has no window of {length} and the token after it: "
                "give more text, or a smaller length"
            )
        self.part, self.length = part, length
        self.count = (len(part) - 1) // length if fixed else max(1, (len(part) - length) // length)
        self.slack = 1 if fixed else min(length, len(part) - self.count * length)

    def batch(self, picks: Sequence[tuple[int, int]]) -> Batch:
        at = [self.part.low + window * self.length + shift for window, shift in picks]
        rows = torch.from_numpy(np.stack([self.part.shards.read(start, self.length + 1) for start in at]))
        return Batch(rows[:, :-1].contiguous(), rows[:, 1:].contiguous())


@final
class PackedWindows:
    """Whole documents side by side, positions restarting with each. One that is longer than a row is cut into rows.

    Best fit, longest first (Ding et al. 2024, "Fewer truncations"): rows are nearly full, and which documents
    share one is the seed's choice among those of equal length.
    """

    slack = 1

    def __init__(self, part: TokenRange, length: int, seed: int):
        self.part, self.length = part, length
        chunks = [
            (low, min(length, end - 1 - low))  # a token is read for each that follows, so a document of n takes n - 1
            for start, end in part.documents()
            for low in range(start, end - 1, length)
        ]
        if not chunks:
            raise BadInput("no document has two tokens: there is nothing to predict. Is the separator right?")
        mixed = [chunks[i] for i in random(seed, -1).permutation(len(chunks))]
        self.rows = pack(sorted(mixed, key=lambda chunk: -chunk[1]), length)
        self.count = len(self.rows)

    def batch(self, picks: Sequence[tuple[int, int]]) -> Batch:
        shape = (len(picks), self.length)
        tokens, targets = np.zeros(shape, np.int64), np.full(shape, IGNORE, np.int64)
        rows = [self.rows[window] for window, _ in picks]
        for b, row in enumerate(rows):
            column = 0
            for start, count in row:
                chunk: NDArray[np.int64] = self.part.shards.read(start, count + 1)
                tokens[b, column : column + count], targets[b, column : column + count] = chunk[:-1], chunk[1:]
                column += count
        positions = Positions.packed([[count for _, count in row] for row in rows], width=self.length)
        return Batch(torch.from_numpy(tokens), torch.from_numpy(targets), positions)


def pack(chunks: Sequence[tuple[int, int]], length: int) -> list[list[tuple[int, int]]]:
    """Chunks (start, count) put into rows of ``length``, each where the least room is left over."""
    rows: list[list[tuple[int, int]]] = []
    rooms: list[int] = []  # the different amounts of room there are, sorted
    having: dict[int, list[int]] = {}  # rows by the room they have
    for chunk in chunks:
        slot = bisect_left(rooms, chunk[1])
        if slot == len(rooms):
            rows.append([])
            number, room = len(rows) - 1, length
        else:
            room = rooms[slot]
            number = having[room].pop()
            if not having[room]:
                del having[room], rooms[slot]
        rows[number].append(chunk)
        if left := room - chunk[1]:
            if left not in having:
                insort(rooms, left)
            having.setdefault(left, []).append(number)
    return rows
