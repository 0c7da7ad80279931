"""Texts with a label each: what a classifier learns from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar, final

import torch

from vantage.checkpoints.tokenizer import Tokenizer
from vantage.errors import BadInput
from vantage.files import Files, expand
from vantage.training.batch import Batch, random
from vantage.training.text.encoded_examples import EncodedExamples
from vantage.training.text.files import lines, records
from vantage.training.text.rows import EpochOrder, padded, positions_of
from vantage.training.text.vocabulary import pad_token

T = TypeVar("T")


@dataclass(frozen=True)
class Labelled:
    """A text and its label, and where they stand."""

    text: str
    label: str
    where: str


def read_labelled(files: Files) -> list[Labelled]:
    """The examples of .tsv files (text, tab, label) or .jsonl files ({"text": …, "label": …}), .gz or not."""
    return [example for path in expand(files) for example in _read(path)]


def _read(path: Path) -> list[Labelled]:
    kind = Path(path.stem).suffix if path.suffix == ".gz" else path.suffix
    if kind in (".jsonl", ".json"):
        return [_record(value, f"{path}, line {number}") for number, value in records(path)]
    if kind != ".tsv":
        raise BadInput(f"{path}: labelled texts come in .tsv files (text, tab, label) or in .jsonl files")
    examples = []
    for number, line in enumerate(lines(path), 1):
        if not line.strip():
            continue
        text, tab, label = line.rpartition("\t")
        if not tab or not label.strip() or not text.strip():
            raise BadInput(f"{path}, line {number}: expected a text, a tab and a label, got {line[:60]!r}")
        examples.append(Labelled(text, label.strip(), f"{path}, line {number}"))
    return examples


def _record(value: Mapping[str, object], where: str) -> Labelled:
    text, label = value.get("text"), value.get("label")
    if not isinstance(text, str) or not text or not isinstance(label, (str, int)) or isinstance(label, bool):
        raise BadInput(f'{where}: expected {{"text": "…", "label": "…"}}, got the keys {sorted(value)}')
    return Labelled(text, str(label), where)


@final
class LabelledData(EncodedExamples[tuple[list[int], int]]):
    """Tokens padded on the right, with positions that say where the padding is; targets (B,), numbers of ``labels``.

    ``valid``: a file, or the share of the examples, by chance, that is kept for evaluation. A text of more than
    ``length`` tokens is refused, or cut there with ``cut``. Rows are grouped by their label, so each is scored apart.
    """

    def __init__(
        self,
        train: Files,
        tokenizer: Tokenizer,
        valid: Files | float = 0.1,
        *,
        length: int,
        cut: bool = False,
        seed: int = 0,
        eval_batch: int = 32,
    ):
        self.tokenizer, self.length, self.cut, self._eval_batch = tokenizer, length, cut, eval_batch
        validation = valid if isinstance(valid, (int, float)) else read_labelled(valid)
        examples, held = split(read_labelled(train), validation, seed)
        self.labels = tuple(sorted({one.label for one in examples}))
        if len(self.labels) < 2:
            raise BadInput(f"the labels are {list(self.labels)}: a classifier needs at least two")
        self._number = {label: i for i, label in enumerate(self.labels)}
        self._pad, self._order = pad_token(tokenizer), EpochOrder(seed, len(examples))
        self._train, self._valid = [self._encode(one) for one in examples], [self._encode(one) for one in held]

    def _encode(self, one: Labelled) -> tuple[list[int], int]:
        if one.label not in self._number:
            raise BadInput(f"{one.where}: the label {one.label!r} is not in training, which has {list(self.labels)}")
        tokens = self.tokenizer.encode(one.text)
        if not tokens:
            raise BadInput(f"{one.where}: this text has no tokens")
        if len(tokens) > self.length and not self.cut:
            raise BadInput(f"{one.where}: {len(tokens)} tokens, more than length={self.length}: raise it, or cut=True")
        return tokens[: self.length], self._number[one.label]

    def _batch(self, examples: Sequence[tuple[list[int], int]]) -> Batch:
        rows, numbers = [tokens for tokens, _ in examples], [number for _, number in examples]
        groups = tuple(self.labels[number] for number in numbers)
        return Batch(padded(rows, self._pad), torch.tensor(numbers), positions_of(rows), groups=groups)


def split(examples: list[T], valid: list[T] | float, seed: int) -> tuple[list[T], list[T]]:
    """Examples to train on and to evaluate on."""
    if not isinstance(valid, (int, float)):
        return examples, valid
    if not 0 < valid < 1:
        raise BadInput(f"valid={valid}: give a file, or a share of the examples between 0 and 1")
    count = max(1, round(len(examples) * valid))
    if count >= len(examples):
        raise BadInput(f"{len(examples)} examples: too few to keep {valid:.0%} of them for evaluation")
    mixed = [examples[i] for i in random(seed, -1).permutation(len(examples))]
    return mixed[count:], mixed[:count]
