"""The ``[data]`` section: what to train on."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from dataclasses import fields as fields_of
from typing import Any, ClassVar, Protocol

from vantage.checkpoints.pull import home
from vantage.checkpoints.tokenizer import Tokenizer
from vantage.errors import BadInput, Refused
from vantage.files import expand
from vantage.training.batch import Data
from vantage.training.checks import at_least_one
from vantage.training.sequences import Reads, Sequences
from vantage.training.tables import FILES
from vantage.training.task_tokenizer import task_tokenizer, why_no_text
from vantage.training.tasks import TASKS, Task, check_lengths, task
from vantage.training.text import (
    BPE,
    Bytes,
    Characters,
    Existing,
    LabelledData,
    Masked,
    PromptData,
    Shards,
    TextData,
    prepare,
)
from vantage.training.text.shards import file_checksum
from vantage.training.text.vocabulary import MASK
from vantage.training.translate import JointBPE, PairData

FileNames = str | tuple[str, ...]  # a file name, or several; * and ? as in a shell


@dataclass(frozen=True)
class OpenOptions:
    """What a section must know to open its data."""

    reads: Reads
    seed: int
    batch: int
    tokenizer: Tokenizer | None = None  # of the model that was loaded
    progress: Callable[[int, int], None] | None = None


@dataclass(frozen=True)
class OpenedData:
    """Data, and what goes with the model that learns them."""

    data: Data
    classes: int = 0
    tokenizer: Tokenizer | None = None
    labels: tuple[str, ...] = ()
    ahead: bool = True  # whether a batch may be made in another thread while the step before is computed
    note: str = ""  # what a user should know of them


class DataSection(Protocol):
    __dataclass_fields__: ClassVar[dict[str, Any]]

    def check(self, reads: Reads) -> None:
        """Refuse now what ``open`` would refuse later."""
        ...

    def open(self, opening: OpenOptions) -> OpenedData: ...


@dataclass(frozen=True)
class TaskExamples:
    """Examples of a task, trained on at ``lengths`` and tested at ``test_lengths`` (none: the longest)."""

    task: str | Task
    lengths: tuple[int, int] = (1, 20)
    test_lengths: tuple[int, ...] = ()
    test_examples: int = 256

    def __post_init__(self) -> None:
        low, high = self.lengths
        chosen_task = task(self.task)
        if not chosen_task.shortest <= low <= high:
            raise BadInput(
                f"lengths={list(self.lengths)}: this task begins at {chosen_task.shortest}; give least and most"
            )
        if self.test_examples < 1:
            raise BadInput(f"test_examples={self.test_examples}: give at least 1")
        check_lengths(chosen_task, {low, high, *self.test_lengths})

    def check(self, reads: Reads) -> None:
        self._sequences(reads, 0).batch(range(2))

    def open(self, opening: OpenOptions) -> OpenedData:
        data = self._sequences(opening.reads, opening.seed)
        why = why_no_text(data.task.symbols)
        tokenizer = task_tokenizer(data.task.symbols, opening.reads) if why is None else None
        note = "" if why is None else f"the model gets no tokenizer, it takes token ids: of the task's symbols, {why}"
        if opening.reads != "label":
            return OpenedData(data, tokenizer=tokenizer, note=note)
        return OpenedData(data, data.classes, tokenizer, data.task.symbols, note=note)

    def _sequences(self, reads: Reads, seed: int) -> Sequences:
        if reads == "own":
            raise Refused(
                "a task's symbols are no tokens of a model that was loaded: train it on text, prompts or labels "
                "(data.is), or a new model on the task (model.is)"
            )
        tests = self.test_lengths or (self.lengths[1],)
        return Sequences(task(self.task), reads, self.lengths, tests, self.test_examples, seed)


@dataclass(frozen=True)
class Text:
    """Files of text: the next token, or with ``hidden`` > 0 that share of tokens hidden (for an encoder)."""

    files: FileNames
    length: int = 256
    valid: FileNames | float = 0.1  # files, or the share of the text, at its end
    vocabulary: Bytes | Characters | BPE | Existing = field(default_factory=Bytes)
    separator: str | None = None
    packed: bool = False
    hidden: float = 0.0
    test_lengths: tuple[int, ...] = ()
    test_windows: int | None = None

    def __post_init__(self) -> None:
        at_least_one(self, "length", "test_windows")
        if any(n < 1 for n in self.test_lengths):
            raise BadInput(f"test_lengths={list(self.test_lengths)}: give at least 1 for each")
        if not 0 <= self.hidden < 1:
            raise BadInput(f"hidden={self.hidden}: give the share of tokens to hide, from 0 up to, not including, 1")
        _check_share(self.valid)

    def check(self, reads: Reads) -> None:
        if reads in ("pair", "ask"):
            raise Refused("running text has no source and target: use a decoder or an encoder")
        if (reads == "label") is not bool(self.hidden):
            raise Refused(
                "a decoder says the next token (data.hidden = 0), an encoder hidden ones (data.hidden = 0.15)"
            )
        _check_files(files=self.files, valid=self.valid)

    def open(self, opening: OpenOptions) -> OpenedData:
        train = self._shards(self.files, opening.tokenizer or self._vocabulary(), opening)
        valid = (
            self.valid if isinstance(self.valid, (int, float)) else self._shards(self.valid, train.tokenizer, opening)
        )
        text = TextData(
            train,
            valid,
            length=self.length,
            packed=self.packed,
            seed=opening.seed,
            lengths=self.test_lengths,
            most=self.test_windows,
        )
        data = Masked(text, share=self.hidden, seed=opening.seed) if self.hidden else text
        return OpenedData(data, tokenizer=text.tokenizer)

    def _vocabulary(self) -> Bytes | Characters | BPE | Existing:
        """As it was said, with a token that hides others where some are to be hidden."""
        vocabulary = self.vocabulary
        if not self.hidden or isinstance(vocabulary, Existing) or MASK in vocabulary.special:
            return vocabulary
        return replace(vocabulary, special=(*vocabulary.special, MASK))

    def _shards(self, files: FileNames, vocabulary: Any, opening: OpenOptions) -> Shards:
        folder = home() / "tokens"
        return prepare(files, vocabulary, folder, separator=self.separator, progress=opening.progress)


@dataclass(frozen=True)
class Pairs:
    """Parallel text, line by line."""

    source: FileNames
    target: FileNames
    valid_source: FileNames
    valid_target: FileNames
    vocabulary: JointBPE = field(default_factory=JointBPE)
    length: int | None = None

    def __post_init__(self) -> None:
        at_least_one(self, "length")

    def check(self, reads: Reads) -> None:
        if reads != "pair":
            raise Refused("pairs of sentences need a model that reads a source: encoder_decoder or recurrent")
        _check_files(source=self.source, target=self.target)
        _check_files(valid_source=self.valid_source, valid_target=self.valid_target)

    def open(self, opening: OpenOptions) -> OpenedData:
        data = PairData(
            self.source,
            self.target,
            (self.valid_source, self.valid_target),
            vocabulary=opening.tokenizer or self.vocabulary,
            length=self.length,
            together=opening.batch,
            seed=opening.seed,
        )
        return OpenedData(data, tokenizer=data.tokenizer)


@dataclass(frozen=True)
class Labels:
    """Texts with a label each (.tsv or .jsonl)."""

    files: FileNames
    length: int = 256
    valid: FileNames | float = 0.1
    cut: bool = False
    vocabulary: Bytes | Characters | BPE | Existing = field(default_factory=Bytes)

    def __post_init__(self) -> None:
        at_least_one(self, "length")
        _check_share(self.valid)

    def check(self, reads: Reads) -> None:
        if reads == "pair":
            raise Refused("a classifier reads one text: use an encoder, or load a model")
        _check_files(files=self.files, valid=self.valid)

    def open(self, opening: OpenOptions) -> OpenedData:
        files = expand(self.files)
        tokenizer = opening.tokenizer or self.vocabulary.build(files)
        data = LabelledData(files, tokenizer, self.valid, length=self.length, cut=self.cut, seed=opening.seed)
        return OpenedData(data, len(data.labels), tokenizer, data.labels)


@dataclass(frozen=True)
class PromptFiles:
    """Prompts and answers, or conversations (.jsonl), of which the answers are learned. For a model that was
    loaded."""

    files: FileNames
    length: int = 1024
    valid: FileNames | float = 0.1
    cut: bool = False
    chat: bool | None = None

    def __post_init__(self) -> None:
        at_least_one(self, "length")
        _check_share(self.valid)

    def check(self, reads: Reads) -> None:
        _check_files(files=self.files, valid=self.valid)
        if reads != "own":
            raise Refused("prompts and answers are for a model with a tokenizer: load one (model.is = 'loaded')")

    def open(self, opening: OpenOptions) -> OpenedData:
        if opening.tokenizer is None:
            raise BadInput("prompts need a model with a tokenizer: load one (model.is = 'loaded')")
        data = PromptData(
            self.files,
            opening.tokenizer,
            self.valid,
            length=self.length,
            cut=self.cut,
            chat=self.chat,
            seed=opening.seed,
        )
        return OpenedData(data, tokenizer=opening.tokenizer)


def data_fingerprint(section: DataSection) -> str:
    """The same for two sections whose files hold the same, whatever they are called; empty where there are no files."""
    names = [f.name for f in fields_of(section)]
    if SAMPLE in names:
        return str(getattr(section, SAMPLE))
    values = [getattr(section, name) for name in names if name in FILES]
    sums = [file_checksum(path) for value in values if not isinstance(value, (int, float)) for path in expand(value)]
    return hashlib.sha256("".join(sums).encode()).hexdigest()[:16] if sums else ""


def _check_share(valid: FileNames | float) -> None:
    if isinstance(valid, (int, float)) and not 0 < valid < 1:
        raise BadInput(f"valid={valid}: give files, or the share to keep for evaluation, between 0 and 1")


def _check_files(**files: FileNames | float) -> None:
    """Refuse files that are not there, by the name of the setting that asks for them: a recipe cannot bring them."""
    for name, value in files.items():
        if isinstance(value, (int, float)):  # a share of others
            continue
        try:
            expand(value)
        except BadInput as e:
            raise BadInput(f"data.{name}: {e} (on the command line: data.{name}=FILE)") from e


SAMPLE = "sample"  # the field with the checksum of examples that come from no file
SOURCES: tuple[type[Any], ...] = (TaskExamples, Text, Pairs, Labels, PromptFiles)


def task_names() -> dict[type, str]:
    """The name of every task that a file of settings may say."""
    return {entry.config: entry.name for entry in TASKS.entries()}
