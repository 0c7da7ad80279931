"""Batches of examples from Python: of those that have a number, and of a stream."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, final

import torch

from vantage.errors import BadInput
from vantage.training.batch import Batch, DataEnded, random
from vantage.training.text.rows import Batches, EpochOrder

if TYPE_CHECKING:
    from vantage.training.examples import Row, RowReader

Sets = Mapping[str, Sequence["Row"]]


@final
class IndexedRows:
    """Examples by their number, each once an epoch, in an order that only the seed decides."""

    def __init__(
        self, examples: Any, reader: RowReader, sets: Sets, seed: int, eval_batch: int, share: float | None = None
    ):
        self._examples, self._reader, self._eval_batch = examples, reader, eval_batch
        self.chosen = range(len(examples))
        if share is not None:
            mixed = [int(i) for i in random(seed, -1).permutation(len(examples))]
            held = max(1, round(share * len(examples)))
            self.chosen = sorted(mixed[held:])
            sets = {"eval": [self._row(i) for i in sorted(mixed[:held])], **sets}
        self._sets, self._order = sets, EpochOrder(seed, len(self.chosen))

    @property
    def vocab(self) -> int:
        return self._reader.vocab

    def batch(self, indices: Sequence[int]) -> Batch:
        return self._reader.batch([self._row(self.chosen[self._order(index)[1]]) for index in indices])

    def held_out(self) -> Mapping[str, Sequence[Batch]]:
        return held_out(self._reader, self._sets, self._eval_batch)

    def _row(self, number: int) -> Row:
        rows = self._reader.rows(self._examples[number], f"example {number}")
        if len(rows) != 1:
            raise BadInput(f"example {number} holds {len(rows)} rows, and the first held one: give one a time")
        return rows[0]


@final
class StreamedRows:
    """Examples in the order in which they come. One that can be read again begins anew when it is through.

    A run that goes on reads over those that it has had already.
    """

    def __init__(self, examples: Iterable[Any], reader: RowReader, sets: Sets, seed: int, eval_batch: int):
        self._examples, self._reader, self._sets = examples, reader, sets
        self._seed, self._eval_batch = seed, eval_batch
        self._next = 0  # the number of the row that comes next
        self._rows: Iterator[Row] | None = None

    @property
    def vocab(self) -> int:
        return self._reader.vocab

    def batch(self, indices: Sequence[int]) -> Batch:
        if indices[0] < self._next:
            if isinstance(self._examples, Iterator):
                raise BadInput("these examples have been read already and cannot be read again: give a list")
            self._rows, self._next = None, 0
        rows: list[Row] = []
        while self._next <= indices[-1]:
            row = next(self._stream(), None)
            if row is None:
                break
            if self._next >= indices[0]:
                rows.append(row)
            self._next += 1
        if not rows:
            raise DataEnded(f"the data ended after {self._next} examples")
        return self._reader.batch(rows)

    def held_out(self) -> Mapping[str, Sequence[Batch]]:
        return held_out(self._reader, self._sets, self._eval_batch)

    def _stream(self) -> Iterator[Row]:
        if self._rows is None:
            self._rows = self._read()
        return self._rows

    def _read(self) -> Iterator[Row]:
        epoch = 0
        while True:
            number = -1
            for number, item in enumerate(self._epoch(epoch)):
                yield from self._reader.rows(item, f"example {number}" + (f" of epoch {epoch + 1}" if epoch else ""))
            if isinstance(self._examples, Iterator):  # it cannot be read again
                return
            if number < 0:
                raise BadInput("the data are empty: there is nothing to train on")
            epoch += 1

    def _epoch(self, epoch: int) -> Iterator[Any]:
        """A DataLoader draws its order from torch's generator with its first batch: the seed decides it."""
        key = f"{self._seed} {epoch}".encode()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int.from_bytes(hashlib.sha256(key).digest()[:7], "little"))
            iterator = iter(self._examples)
            first = list(islice(iterator, 1))
        return chain(first, iterator)


def held_out(reader: RowReader, sets: Sets, size: int) -> Mapping[str, Sequence[Batch]]:
    return {
        name: Batches(len(rows), size, lambda numbers, rows=rows: reader.batch([rows[i] for i in numbers]))
        for name, rows in sets.items()
    }
