"""What a caller means by ``data``: a task, a text, or examples in a list, a dataset or any iterable."""

from __future__ import annotations

import glob
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer as Backend
from torch import Tensor

from vantage.checkpoints.tokenizer import About, Tokenizer
from vantage.errors import BadInput, Refused, did_you_mean
from vantage.spec.model import ModelSpec
from vantage.training.examples import ACCEPTED, ExampleData, RowReader, kind_of, sequences
from vantage.training.sources import SOURCES, DataSection, TaskExamples, Text
from vantage.training.tasks import TASKS, Task, task
from vantage.training.text import BPE, Bytes, Characters, Existing

WINDOW = 256  # tokens of a piece of running text, where nobody says
SAMPLED = 16  # examples that stand for all of them in a checksum
LONGEST_NAME = 255  # letters: a longer text names no file


@dataclass(frozen=True)
class _Items:
    """Examples as they can be read: by number, or one after the other."""

    items: Any
    kind: str
    indexed: bool
    windows: bool = False  # pieces of one text: they are as long as they should be


def data_section(
    data: Any,
    eval_data: Any,
    spec: ModelSpec,
    reader: RowReader,
    *,
    max_length: int | None = None,
    vocabulary: Characters | BPE | None = None,
) -> DataSection | dict[str, Any]:
    """The section of a run's settings for data from Python; a table stays one."""
    if isinstance(data, SOURCES) or (isinstance(data, Mapping) and "is" in data):
        _no_eval(eval_data, "a section of settings")
        return dict(data) if isinstance(data, Mapping) else data
    if (isinstance(data, str) and data in TASKS) or isinstance(data, Task):
        _no_eval(eval_data, "a task")
        low = task(data).shortest
        return TaskExamples(data, lengths=(low, max(20, low)))
    if isinstance(data, Path) or (isinstance(data, str) and _names_file(data)):
        return _text_files(data, eval_data, spec, reader, max_length, vocabulary)
    if vocabulary is not None:
        raise Refused(f"tokenizer={vocabulary}: a vocabulary is learned from files; give a tokenizer that is made")
    reader = replace(reader, max_length=max_length)
    items = _items(data, spec, reader, "data")
    if items.windows:
        reader = replace(reader, max_length=None)
    elif reader.max_length is None:
        reader = replace(reader, max_length=spec.context_length or None)
    share = eval_data if isinstance(eval_data, float) else None
    if share is not None and not (items.indexed and 0 < share < 1):
        raise BadInput(f"eval_data={share}: a share lies between 0 and 1, of data with a length; or give other data")
    return ExampleData(
        items.kind,
        len(items.items) if items.indexed else None,
        max_length,
        share,
        items.items,
        {} if share is not None else _evaluated(eval_data, spec, reader),
        reader,
        _checksum(items, reader),
    )


def rows_in_first(section: ExampleData) -> int:
    """How many rows the first example holds: a DataLoader gives whole batches."""
    return len(section.reader.rows(_first(section.examples), "example 0"))


def _evaluated(eval_data: Any, spec: ModelSpec, reader: RowReader) -> dict[str, Any]:
    if eval_data is None:
        return {}
    named = isinstance(eval_data, Mapping) and not {"input_ids", "text"} & set(eval_data)
    sets = dict(eval_data) if named else {"eval": eval_data}
    read = {str(name): _items(one, spec, reader, "eval_data").items for name, one in sets.items()}
    return {name: items if isinstance(items, Sequence) else list(items) for name, items in read.items()}


def _no_eval(eval_data: Any, what: str) -> None:
    if eval_data is not None:
        raise BadInput(f"eval_data: {what} brings examples to evaluate on itself; leave eval_data out")


# ---- text


def _names_file(text: str) -> bool:
    """Whether a string names a file or a pattern of files; a text has spaces or lines and names none."""
    if len(text) <= LONGEST_NAME and "\n" not in text and (Path(text).exists() or glob.glob(text, recursive=True)):
        return True
    if not any(letter.isspace() for letter in text):
        raise BadInput(
            f"data={text!r:.80}: no task and no file is called that.{did_you_mean(text, TASKS)} There are the "
            f"tasks {', '.join(TASKS)}"
        )
    return False


def _text_files(
    files: str | Path,
    eval_data: Any,
    spec: ModelSpec,
    reader: RowReader,
    max_length: int | None,
    vocabulary: Characters | BPE | None,
) -> Text:
    if reader.tokenizer is None and vocabulary is None:
        raise BadInput(f"data={str(files)!r} is text, and there is no tokenizer: give tokenizer=, or a model with one")
    if eval_data is not None and not isinstance(eval_data, (str, Path, float)):
        raise BadInput(f"eval_data is {kind_of(eval_data)}: for text from a file give a file as well, or a share")
    valid = 0.1 if eval_data is None else eval_data if isinstance(eval_data, float) else str(eval_data)
    length = max_length or min(spec.context_length or WINDOW, WINDOW)
    return Text(str(files), length, valid, vocabulary or Bytes())  # of a tokenizer that is made, nothing is learned


# ---- examples


def _items(data: Any, spec: ModelSpec, reader: RowReader, name: str) -> _Items:
    if isinstance(data, Mapping):
        return _Items(_columns(data, name), kind_of(data), True)
    if isinstance(data, str):
        if reader.tokenizer is None:
            raise BadInput(f"{name} is text, and there is no tokenizer: give tokenizer=, or a model that has one")
        return _windows(reader.tokenizer.encode(data), spec, reader, "text", name)
    if isinstance(data, (Tensor, np.ndarray)) and data.ndim == 1:
        return _windows(data, spec, reader, kind_of(data), name)
    if isinstance(data, (list, tuple)) and data and all(type(one) is int for one in data):
        return _windows(data, spec, reader, kind_of(data), name)
    indexed = _is_indexed(data)
    if not indexed and not isinstance(data, Iterable):
        raise BadInput(f"{name} is {kind_of(data)}: wanted a task, or an iterable of {ACCEPTED}")
    return _of_rows(data, indexed, reader, name)


def _is_indexed(data: Any) -> bool:
    return hasattr(type(data), "__len__") and hasattr(type(data), "__getitem__")


def _of_rows(data: Any, indexed: bool, reader: RowReader, name: str) -> _Items:
    if indexed and not len(data):
        raise BadInput(f"{name} ({kind_of(data)}) is empty: there is nothing to read")
    if not indexed and iter(data) is data:  # what is looked at here must come again
        head = next(data, None)
        if head is None:
            raise BadInput(f"{name} ({kind_of(data)}) is empty: there is nothing to read")
        return _check_first(_Items(chain([head], data), kind_of(data), False), head, reader, name)
    return _check_first(_Items(data, kind_of(data), indexed), _first(data), reader, name)


def _check_first(items: _Items, first: Any, reader: RowReader, name: str) -> _Items:
    """What is wrong with the first example is said before anything is built; one of several rows makes a stream."""
    several = len(reader.rows(first, f"{name}, example 0")) > 1
    return replace(items, indexed=items.indexed and not several)


def _first(items: Any) -> Any:
    return items[0] if _is_indexed(items) else next(iter(items))


class _Columns(Sequence[dict[str, Any]]):
    """Columns of equal length, as a tokenizer gives them, row by row."""

    def __init__(self, columns: Mapping[str, Any], count: int):
        self._columns, self._count = columns, count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        if not -self._count <= index < self._count:
            raise IndexError(f"row {index} of {self._count}")
        return {name: column[index] for name, column in self._columns.items()}

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self[i] for i in range(self._count))


def _columns(data: Mapping[str, Any], name: str) -> _Columns:
    if not {"input_ids", "text"} & set(data):
        splits = [str(key) for key, value in data.items() if hasattr(value, "__len__") and not isinstance(value, str)]
        hint = f". Is it one of several parts? Give one, as in {name}[{splits[0]!r}]" if splits else ""
        raise BadInput(f"{name} has the keys {sorted(map(str, data))}: wanted the columns input_ids or text{hint}")
    columns = {key: data[key] for key in ("input_ids", "labels", "attention_mask", "text") if data.get(key) is not None}
    sizes = {key: len(column) for key, column in columns.items()}
    if len(set(sizes.values())) != 1 or not all(sizes.values()):
        raise BadInput(f"{name}: the columns have {sizes} rows; wanted the same number in each, at least 1")
    return _Columns(columns, next(iter(sizes.values())))


def _windows(ids: Any, spec: ModelSpec, reader: RowReader, kind: str, name: str) -> _Items:
    """One long row of tokens, cut into pieces of ``max_length`` and the token after each."""
    [stream] = sequences(ids, name, "tokens")
    length = reader.max_length or min(spec.context_length or WINDOW, WINDOW)
    if len(stream) < length + 1:
        raise BadInput(
            f"{name} is one text of {len(stream)} tokens, less than max_length={length} and the token after it: give "
            "more, or a smaller max_length. (A batch of texts is a list of them)"
        )
    pieces = [stream[low : low + length + 1] for low in range(0, len(stream) - length, length)]
    return _Items(pieces, f"{kind} of {len(stream)} tokens", True, windows=True)


def _checksum(items: _Items, reader: RowReader) -> str:
    """What some examples add up to: enough to notice other data when a run goes on."""
    if not items.indexed:
        return ""
    count = len(items.items)
    digest = hashlib.sha256(str(count).encode())
    for number in sorted({i * count // SAMPLED for i in range(SAMPLED)}):
        for row in reader.rows(items.items[number], f"example {number}"):
            digest.update(row.tokens.numpy().tobytes() + row.targets.numpy().tobytes())
    return digest.hexdigest()[:16]


# ---- tokenizers


def tokenizer_of(value: Any) -> tuple[Tokenizer | None, BPE | Characters | None]:
    """The tokenizer that a caller means; or, for one that is learned from the training files, how."""
    if value is None or isinstance(value, Tokenizer):
        return value, None
    if isinstance(value, (BPE, Characters)):
        return None, value
    if isinstance(value, (str, Path)):
        value = Bytes() if value == "bytes" else Existing(str(value))
    if isinstance(value, (Bytes, Existing)):
        return value.build(), None
    if isinstance(value, Backend):
        return Tokenizer(lambda: value, About()), None
    backend = getattr(value, "backend_tokenizer", None)  # of a fast tokenizer of transformers
    if not isinstance(backend, Backend):
        raise BadInput(
            f"tokenizer is {kind_of(value)}: give one of Vantage, a fast one of transformers, one of tokenizers, a "
            "folder that holds one, or 'bytes'"
        )
    template = value.chat_template if isinstance(value.chat_template, str) else None
    return Tokenizer(lambda: backend, About(value.bos_token, value.eos_token, template)), None
