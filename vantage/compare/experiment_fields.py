"""The fields of an experiment, and what can be refused of their values. Nothing here needs torch, so a command can
refuse at once."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from vantage.compare.names import DEFAULT, EQUAL, TEXT, bpe_size, paper_name
from vantage.compare.task_names import task_of
from vantage.errors import BadInput, did_you_mean
from vantage.spec.table_reader import PartNames, Reader
from vantage.training.tasks import Task, check_lengths

SCORES = ("auto", "exact", "tokens")
# What is compared where nothing else is asked for: docs/compare.md has the pilot runs and the calculation behind it.
TASKS_BY_DEFAULT = ("copy", "sort")
STEPS_BY_DEFAULT = 500  # these tasks are learned by then; others get up to what ``Experiment`` says
SEARCH_SEED = 1_000_003  # no experiment has so many: the search never sees the seeds that are compared


@dataclass(frozen=True)
class ModelShape:
    """The size of every model of an experiment."""

    width: int = 64
    layers: int = 2
    heads: int = 4

    def __post_init__(self) -> None:
        for name in ("width", "layers", "heads"):
            if getattr(self, name) < 1:
                raise BadInput(f"{name}={getattr(self, name)}: give at least 1")
        if self.width % (2 * self.heads):
            raise BadInput(f"width={self.width}: make it a multiple of twice the heads ({2 * self.heads}), for RoPE")


@dataclass(frozen=True)
class ExperimentFields:
    """What an experiment says, not yet checked."""

    tasks: tuple[str, ...] = TASKS_BY_DEFAULT
    positions: tuple[str, ...] = DEFAULT
    attention: tuple[str, ...] = ("multi-head",)
    train_length: int = 10
    test_lengths: tuple[int, ...] = (10, 15, 20, 40)
    seeds: int = 8
    steps: int = 3000
    batch: int = 32
    shape: ModelShape = ModelShape()
    rates: tuple[float, ...] = (1e-3, 3e-3)
    search: float = 0.25  # of the steps, for each rate
    test_examples: int = 256
    equal: Literal["compute", "parameters"] = "compute"
    text: tuple[str, ...] = ()  # files, for the task "text"
    vocabulary: str = "bytes"  # of the text: bytes, characters, or bpe-4096
    published: tuple[str, ...] = ()  # papers whose numbers are set beside
    score: Literal["auto", "exact", "tokens"] = "auto"  # auto: tokens of long answers, else whole rows
    first_seed: int = 0  # other numbers repeat an experiment with other weights and examples


def check_fields(fields: ExperimentFields) -> None:
    """Refuse values that cannot be. Names of encodings are left to ``check_names`` and ``Experiment``."""
    for name in ("seeds", "steps", "batch", "train_length", "test_examples"):
        if getattr(fields, name) < 1:
            raise BadInput(f"{name}={getattr(fields, name)}: give at least 1")
    for name in ("tasks", "positions", "attention", "test_lengths", "rates"):
        if not getattr(fields, name):
            raise BadInput(f"{name} is empty: give at least one")
        if len(set(getattr(fields, name))) < len(getattr(fields, name)):
            raise BadInput(f"{name} = {list(getattr(fields, name))} names one of them twice")
    if any(n < 1 for n in fields.test_lengths):
        raise BadInput(f"test_lengths={list(fields.test_lengths)}: a length is at least 1")
    if any(not 0 < rate < 1 for rate in fields.rates) or not 0 < fields.search <= 1:
        raise BadInput(
            f"rates={list(fields.rates)}, search={fields.search}: give learning rates between 0 and 1, such as 1e-3, "
            "and a share of the steps above 0, up to 1"
        )
    for name in fields.published:
        paper_name(name)
    for name, known in (("score", SCORES), ("equal", EQUAL)):
        value = getattr(fields, name)
        if value not in known:
            raise BadInput(f"{name}={value!r}.{did_you_mean(value, known)} Use {' or '.join(known)}")
    if not 0 <= fields.first_seed < SEARCH_SEED - fields.seeds:
        raise BadInput(f"first_seed={fields.first_seed}: give 0 or more, and less than {SEARCH_SEED - fields.seeds:,}")
    if (TEXT in fields.tasks) != bool(fields.text):
        message = "the task text reads files: name them (--text FILES)"
        raise BadInput(message if not fields.text else "files of text, and no task that reads them: add the task text")
    bpe_size(fields.vocabulary)
    for name in fields.tasks:
        if name != TEXT:
            task = task_of(name)
            check_lengths(task, {shortest(task, fields.train_length), fields.train_length, *fields.test_lengths})


def shortest(task: Task, train_length: int) -> int:
    """The shortest that is trained on."""
    return min(task.shortest, train_length)


def experiment_table(path: str | Path) -> dict[str, Any]:
    """What a TOML file says of an experiment."""
    try:
        return tomllib.loads(Path(path).read_text())
    except OSError as e:
        raise BadInput(f"cannot read {path}: {e.strerror}") from e
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as e:
        raise BadInput(f"{path} is not TOML: {e}") from e


def fields_of(table: dict[str, Any], where: str) -> ExperimentFields:
    """The fields that a table says, each of its type; ``check_fields`` looks at their values."""
    names = PartNames(error=BadInput, loose=True, called={ExperimentFields: "experiment"})
    return Reader(4096, names).part(table, (ExperimentFields,), where, 0)
