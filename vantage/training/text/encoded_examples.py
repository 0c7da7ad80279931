"""Examples that are held in memory as tokens: some to train on, in another order each epoch, and some held out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Generic, TypeVar

from vantage.checkpoints.tokenizer import Tokenizer
from vantage.training.batch import Batch
from vantage.training.text.rows import Batches, EpochOrder

E = TypeVar("E")


class EncodedExamples(ABC, Generic[E]):
    tokenizer: Tokenizer
    _train: Sequence[E]
    _valid: Sequence[E]
    _order: EpochOrder
    _eval_batch: int

    @property
    def vocab(self) -> int:
        return len(self.tokenizer)

    @property
    def epoch(self) -> int:
        return len(self._train)

    def batch(self, indices: Sequence[int]) -> Batch:
        return self._batch([self._train[self._order(index)[1]] for index in indices])

    def held_out(self) -> Mapping[str, Sequence[Batch]]:
        def make(rows: range) -> Batch:
            return self._batch([self._valid[i] for i in rows])

        return {"valid": Batches(len(self._valid), self._eval_batch, make)}

    @abstractmethod
    def _batch(self, examples: Sequence[E]) -> Batch:
        """Several as one batch, padded."""
