"""Tasks as batches: how an example is written for a decoder, for a pair of encoder and decoder, for a classifier."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from vantage.errors import BadInput
from vantage.spec.positions import Positions
from vantage.training.batch import IGNORE, Batch, random
from vantage.training.tasks import Example, Task

PAD, START, END, SEPARATOR = range(4)  # token ids before the task's own symbols
SPECIALS = ("<pad>", "<s>", "</s>", "<sep>")
HELD_OUT = 1 << 62  # examples from this number on are never trained on

Reads = Literal["line", "ask", "pair", "label", "own"]  # own: a line of its own tokens, of a model that was loaded


@dataclass(frozen=True)
class Sequences:
    """A task's examples, to train on at some lengths and to be tested on at others.

    As a line: ``<s> prompt <sep> answer </s>``, where the answer and the end are asked for. To ask: ``<s> prompt
    <sep>``, where the answer, which must be one symbol, is asked for at the last place; a model that sees what follows
    must not be shown it. As a pair: the prompt is the source. As a label: the answer, one symbol again, is the class
    of the row. ``task_tokenizer`` writes a prompt in the same way.
    """

    task: Task
    reads: Reads
    lengths: tuple[int, int]
    test_lengths: tuple[int, ...]
    test_examples: int = 256
    seed: int = 0
    test_batch: int = 128

    @property
    def vocab(self) -> int:
        return len(SPECIALS) + len(self.task.symbols)

    @property
    def symbols(self) -> tuple[str, ...]:
        return (*SPECIALS, *self.task.symbols)

    @property
    def classes(self) -> int:
        """A class for each symbol: an answer's number is its class."""
        return len(self.task.symbols)

    def batch(self, indices: Sequence[int]) -> Batch:
        return self.collate([self.example(index) for index in indices])

    def example(self, index: int, length: int | None = None) -> Example:
        """Training example number ``index``; of a length drawn from the training lengths unless one is given."""
        rng = random(self.seed, index)
        if length is None:
            low, high = self.lengths
            length = int(rng.integers(low, high + 1))
        return self.task.sample(rng, length)

    def held_out(self) -> Mapping[str, Sequence[Batch]]:
        return self._held_out

    @cached_property
    def _held_out(self) -> dict[str, list[Batch]]:
        return {f"length {n}": list(self._tests(n)) for n in self.test_lengths}

    def _tests(self, length: int) -> Iterator[Batch]:
        first = HELD_OUT + length * self.test_examples  # another length, other examples
        for start in range(0, self.test_examples, self.test_batch):
            stop = min(start + self.test_batch, self.test_examples)
            yield self.collate([self.example(first + i, length) for i in range(start, stop)])

    # ---- an example in tokens

    def collate(self, examples: Sequence[Example]) -> Batch:
        ways = {"line": self._lines, "ask": self._questions, "pair": self._pairs, "label": self._labels}
        batch = ways[self.reads](examples)
        return Batch(*batch, groups=tuple(e.group for e in examples) if any(e.group for e in examples) else ())

    def _lines(self, examples: Sequence[Example]) -> tuple[Tensor, Tensor]:
        rows = [[START, *_ids(e.prompt), SEPARATOR, *_ids(e.answer), END] for e in examples]
        targets = [[IGNORE] * (len(e.prompt) + 1) + [*_ids(e.answer), END] for e in examples]
        return _padded([row[:-1] for row in rows], PAD), _padded(targets, IGNORE)

    def _questions(self, examples: Sequence[Example]) -> tuple[Tensor, Tensor, Positions]:
        _single(examples)
        rows = [[START, *_ids(e.prompt), SEPARATOR] for e in examples]
        targets = [[IGNORE] * (len(e.prompt) + 1) + _ids(e.answer) for e in examples]
        return _padded(rows, PAD), _padded(targets, IGNORE), Positions.rows([len(row) for row in rows])

    def _pairs(self, examples: Sequence[Example]) -> tuple[Tensor, Tensor, None, Tensor, Tensor | None]:
        tokens = _padded([[START, *_ids(e.answer)] for e in examples], PAD)
        targets = _padded([[*_ids(e.answer), END] for e in examples], IGNORE)
        source = _padded([_ids(e.prompt) for e in examples], PAD)
        return tokens, targets, None, source, source != PAD

    def _labels(self, examples: Sequence[Example]) -> tuple[Tensor, Tensor, Positions]:
        _single(examples)
        rows = [[START, *_ids(e.prompt)] for e in examples]
        positions = Positions.rows([len(row) for row in rows])
        return _padded(rows, PAD), torch.tensor([e.answer[0] for e in examples]), positions


def _single(examples: Sequence[Example]) -> None:
    if any(len(e.answer) != 1 for e in examples):
        raise BadInput("this model needs answers of one symbol, and this task has longer ones: use a causal decoder")


def _ids(symbols: Sequence[int]) -> list[int]:
    return [len(SPECIALS) + symbol for symbol in symbols]


def _padded(rows: list[list[int]], value: int) -> Tensor:
    width = max(len(row) for row in rows)
    return torch.tensor([row + [value] * (width - len(row)) for row in rows])
