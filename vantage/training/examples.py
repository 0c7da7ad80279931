"""Examples from Python: token tensors, dicts as tokenizers make them, texts; in a list, a dataset or any iterable.

The names and their meaning are those of transformers: ``labels`` stand under their tokens and are shifted here, -100 is
not asked for, and places where ``attention_mask`` is 0 are padding.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from vantage.checkpoints.tokenizer import Tokenizer
from vantage.errors import BadInput, Refused
from vantage.spec.positions import Positions
from vantage.training.batch import IGNORE, Batch
from vantage.training.example_data import IndexedRows, StreamedRows
from vantage.training.sequences import Reads
from vantage.training.sources import OpenedData, OpenOptions
from vantage.training.tables import OBJECT

Asked = Literal["next", "hidden", "answer"]  # the next token, the token under a label, the answer to a source
ACCEPTED = "token tensors, lists of token ids, dicts with input_ids (labels, attention_mask), or texts with a tokenizer"
EVAL_BATCH = 16  # rows


@dataclass(frozen=True, eq=False)
class Row:
    """One example: what is read, and what each place should say."""

    tokens: Tensor  # (T,)
    targets: Tensor  # (T,)
    source: Tensor | None = None  # (S,), for an encoder


@dataclass(frozen=True)
class RowReader:
    """How an example becomes rows: which model reads it decides what is asked of it."""

    asked: Asked
    vocab: int
    max_length: int | None = None  # tokens; a longer row is cut
    tokenizer: Tokenizer | None = None
    start: int | None = None  # the token that an answer begins with

    def rows(self, item: Any, where: str) -> list[Row]:
        """The rows of an example; a tensor or dict with two dimensions is a batch of them."""
        if isinstance(item, (list, tuple)) and len(item) == 1 and isinstance(item[0], (Tensor, Mapping)):
            item = item[0]  # as a DataLoader over a TensorDataset gives it
        if isinstance(item, str):
            return [self._text(item, where)]
        if not isinstance(item, Mapping):
            return [self._row(ids, None, None, where) for ids in sequences(item, where, "tokens")]
        if "input_ids" in item:
            return self._rows_of_dict(item, where)
        if "text" in item:
            texts = [item["text"]] if isinstance(item["text"], str) else list(item["text"])
            return [self._text(text, where) for text in texts]
        raise BadInput(
            f"{where} has the keys {sorted(map(str, item))}: wanted input_ids (labels and attention_mask beside it, "
            "where there are any) or text"
        )

    def _rows_of_dict(self, item: Mapping[str, Any], where: str) -> list[Row]:
        ids = sequences(item["input_ids"], where, "input_ids")
        masks = self._beside(item, "attention_mask", ids, where)
        if self.asked != "answer":
            labels = self._beside(item, "labels", ids, where)
            return [self._row(*row, where) for row in zip(ids, labels, masks, strict=True)]
        if item.get("labels") is None:
            raise BadInput(f"{where} has no labels: an encoder-decoder reads input_ids and is asked for labels")
        answers = sequences(item["labels"], where, "labels")
        if len(answers) != len(ids):
            raise BadInput(f"{where}: {len(answers)} rows of labels for {len(ids)} of input_ids: give one each")
        return [self._answer(*row, where) for row in zip(ids, answers, masks, strict=True)]

    def _beside(self, item: Mapping[str, Any], name: str, ids: list[Tensor], where: str) -> list[Tensor] | list[None]:
        """What stands under the tokens by this name: as many rows, each as long; Nones where there is nothing."""
        if item.get(name) is None:
            return [None] * len(ids)
        values = item[name]
        if name == "labels" and _depth(values) < _depth(item["input_ids"]):
            raise BadInput(
                f"{where}: labels are one number a row: here every token has one, -100 where it is not asked for. For "
                "classes of whole texts train with settings (data.is = 'labels')"
            )
        rows = sequences(values, where, name)
        if [len(row) for row in rows] != [len(row) for row in ids]:
            shapes = f"{[len(row) for row in rows][:4]} {name}, {[len(row) for row in ids][:4]} input_ids"
            raise BadInput(f"{where}: {shapes}: one is needed for every token")
        return rows

    def _row(self, ids: Tensor, labels: Tensor | None, mask: Tensor | None, where: str) -> Row:
        if labels is None and self.asked == "hidden":
            raise BadInput(
                f"{where} has no labels: a model that sees what follows is asked for hidden tokens. Give labels, -100 "
                "where nothing is hidden"
            )
        has_labels = labels is not None
        labels = ids if labels is None else labels
        if mask is not None:
            filled = _filled(mask, where)
            if has_labels and bool((labels[~filled] != IGNORE).any()):
                raise BadInput(
                    f"{where}: labels ask for tokens where attention_mask is 0: set those labels to -100, or leave "
                    "labels out"
                )
            ids, labels = ids[filled], labels[filled]
        ids, labels = ids[: self.max_length], labels[: self.max_length]
        self._check_ids(ids, "token", where)
        self._check_ids(labels[labels != IGNORE], "label", where)
        if self.asked == "hidden":
            return Row(ids, labels)
        if len(ids) < 2:
            raise BadInput(f"{where} has {len(ids)} tokens: the next is predicted from those before it; give 2 or more")
        return Row(ids[:-1], labels[1:])

    def _answer(self, ids: Tensor, answer: Tensor, mask: Tensor | None, where: str) -> Row:
        if self.start is None:
            raise BadInput(
                "this model does not say which token an answer begins with (decoder_start_token_id in its config): "
                "train it on a task or on pairs of texts (data.is = 'pairs')"
            )
        source = ids if mask is None else ids[_filled(mask, where)]
        answer = answer[answer != IGNORE][: self.max_length]  # padding, as transformers writes it
        self._check_ids(source, "token", where)
        self._check_ids(answer, "label", where)
        if not len(source) or not len(answer):
            raise BadInput(f"{where} has {len(source)} tokens to read and {len(answer)} to answer: give both")
        return Row(torch.cat([torch.tensor([self.start]), answer[:-1]]), answer, source)

    def _text(self, text: Any, where: str) -> Row:
        if not isinstance(text, str):
            raise BadInput(f"{where}: text is {text!r:.60}; wanted a string")
        if self.tokenizer is None:
            raise BadInput(f"{where} is text, and there is no tokenizer: give tokenizer=, or a model that has one")
        if self.asked != "next":
            raise Refused("texts are for models that predict the next token: give input_ids and labels")
        ids = self.tokenizer.encode(text)
        ids = torch.tensor([*ids, *([] if self.tokenizer.eos is None else [self.tokenizer.eos])], dtype=torch.long)
        if len(ids) < 2:  # a blank line of a dataset: nothing is asked there
            return Row(torch.zeros(1, dtype=torch.long), torch.tensor([IGNORE]))
        return self._row(ids, None, None, where)

    def _check_ids(self, ids: Tensor, what: str, where: str) -> None:
        if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < self.vocab:
            wrong = int(ids.max()) if int(ids.max()) >= self.vocab else int(ids.min())
            raise BadInput(f"{where}: {what} {wrong}, and the model has {self.vocab}: from 0 to {self.vocab - 1}")

    def batch(self, rows: Sequence[Row]) -> Batch:
        """Padded on the right. A causal model asks nothing of what stands there: positions need not name it."""
        tokens = _padded([row.tokens for row in rows], 0)
        targets = _padded([row.targets for row in rows], IGNORE)
        lengths = [len(row.tokens) for row in rows]
        positions = Positions.rows(lengths) if self.asked == "hidden" and len(set(lengths)) > 1 else None
        sources = [row.source for row in rows if row.source is not None]
        if not sources:
            return Batch(tokens, targets, positions)
        mask = _padded([torch.ones_like(source) for source in sources], 0).bool()
        return Batch(tokens, targets, positions, _padded(sources, 0), mask)


def sequences(value: Any, where: str, name: str) -> list[Tensor]:
    """Rows of whole numbers, from a tensor or array with one or two dimensions, or from lists."""
    if isinstance(value, (list, tuple)) and value and all(_is_row(one) for one in value):
        return [row for one in value for row in sequences(one, where, name)]
    try:
        tensor = value.detach().cpu() if isinstance(value, Tensor) else torch.as_tensor(np.array(value))
    except (TypeError, ValueError, RuntimeError) as e:
        raise BadInput(f"{where}: {name} is {kind_of(value)}; wanted {ACCEPTED}") from e
    if tensor.is_floating_point() or tensor.is_complex() or (tensor.dtype == torch.bool and name != "attention_mask"):
        raise BadInput(f"{where}: {name} is a tensor of {tensor.dtype}; wanted whole numbers, as in torch.long")
    if tensor.dim() not in (1, 2) or not tensor.numel():
        raise BadInput(f"{where}: {name} has shape {tuple(tensor.shape)}; wanted (tokens,) or (rows, tokens)")
    return list(tensor.long().reshape(-1, tensor.shape[-1]))


def _depth(value: Any) -> int:
    """How many dimensions a tensor, an array or nested lists have."""
    if isinstance(value, (Tensor, np.ndarray)):
        return value.ndim
    return 1 + _depth(value[0]) if isinstance(value, (list, tuple)) and value else 0


def _is_row(value: Any) -> bool:
    return isinstance(value, (list, tuple)) or (isinstance(value, (Tensor, np.ndarray)) and value.ndim > 0)


def _filled(mask: Tensor, where: str) -> Tensor:
    filled = mask != 0
    places = filled.nonzero()[:, 0]
    if not len(places):
        raise BadInput(f"{where}: attention_mask is 0 everywhere: there is nothing to read")
    if int(places[-1]) - int(places[0]) + 1 != len(places):
        raise BadInput(f"{where}: attention_mask has zeros between ones: padding stands at the ends of a row")
    return filled


def _padded(rows: Sequence[Tensor], value: int) -> Tensor:
    return torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True, padding_value=value)


def kind_of(value: Any) -> str:
    """What something is, for a message: datasets.Dataset, list."""
    module = type(value).__module__.partition(".")[0]
    return type(value).__name__ if module == "builtins" else f"{module}.{type(value).__name__}"


# ---- the section


@dataclass(frozen=True)
class ExampleData:
    """Examples from Python as the data of a run; ``collect`` makes one."""

    kind: str
    count: int | None  # None: nobody knows how many there are
    max_length: int | None = None
    share: float | None = None  # of the examples, by chance, that is kept for evaluation
    examples: Any = field(default=None, repr=False, compare=False, metadata={OBJECT: True})
    evaluated: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False, metadata={OBJECT: True})
    reader: RowReader = field(default=RowReader("next", 0), repr=False, compare=False, metadata={OBJECT: True})
    sample: str = field(default="", repr=False, compare=False, metadata={OBJECT: True})

    def check(self, reads: Reads) -> None:
        """Everything else was refused when it was collected."""
        if reads == "label":
            raise BadInput("this model has no head to predict tokens with: give it one (head=...)")

    def open(self, opening: OpenOptions) -> OpenedData:
        reader = self.reader
        sets = {name: list(self._rows(name, examples)) for name, examples in self.evaluated.items()}
        if self.count is None:
            data = StreamedRows(self.examples, reader, sets, opening.seed, EVAL_BATCH)
        else:
            data = IndexedRows(self.examples, reader, sets, opening.seed, EVAL_BATCH, self.share)
        # in this thread: what belongs to the caller need not bear two, and may draw from torch's generator
        return OpenedData(data, tokenizer=reader.tokenizer, ahead=False)

    def _rows(self, name: str, examples: Any) -> Iterator[Row]:
        for i, item in enumerate(examples):
            yield from self.reader.rows(item, f"{name}, example {i}")
