"""The settings of a run: a TOML file, read and checked as a whole before anything is allocated.

Sections are frozen dataclasses and carry the names of their fields. A part is named (``position =
"alibi"``) or as a table (``position = {is = "rope", base = 500000.0}``). Anything can be changed as KEY=VALUE on the
command line.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, is_dataclass
from dataclasses import fields as fields_of
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from vantage.checkpoints.spec_json import PartNames, Reader
from vantage.checkpoints.spec_parts import REGISTRIES, classes_by_place, classes_by_protocol
from vantage.errors import BadInput, unknown
from vantage.training.divergence import GuardSettings
from vantage.training.log import ScoreRecord
from vantage.training.models import MODELS, DataFacts, ModelSection
from vantage.training.optimise import OPTIMISERS, WSD, AdamW, Average, Constant, Cosine, OptimiserConfig
from vantage.training.sources import SOURCES, DataSection, PromptFiles, TaskExamples, task_names
from vantage.training.tasks import TASKS, KeyLookup, Task

VOCAB = 8  # stands for that of the data, which are not open yet, where only the rest of a model is checked


@dataclass(frozen=True)
class LoopSettings:
    """How much, and how. ``batch`` counts the examples of a step, over all processes and parts."""

    steps: int = 1000
    batch: int = 64
    accumulate: int = 1  # parts that a batch is computed in
    clip: float | None = 1.0
    precision: Literal["float32", "bfloat16"] = "float32"
    compile: bool = False
    recompute: bool = False  # keep only what goes into each block, and compute the rest again on the way back
    smoothing: float = 0.0  # the share of each target that is spread over all tokens
    threads: int | None = None  # of the CPU; None: as torch has it

    def __post_init__(self) -> None:
        for name in ("steps", "batch", "accumulate", "threads"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise BadInput(f"{name}={value}: give at least 1")
        if self.batch % self.accumulate:
            raise BadInput(f"a batch of {self.batch} does not divide into {self.accumulate} parts")
        if not 0 <= self.smoothing < 1:
            raise BadInput(f"smoothing={self.smoothing}: give a share from 0 up to, not including, 1")
        if self.clip is not None and not self.clip > 0:
            raise BadInput(f"clip={self.clip}: give the largest norm of the gradient, or leave it out")


@dataclass(frozen=True)
class Evaluate:
    """When to evaluate, and when that is reason to stop: ``goal`` is a share of exact rows in the watched set."""

    every: int = 0  # steps; 0: at the end alone
    watch: str | None = None  # None: the first set
    goal: float | None = None
    patience: int = 0  # evaluations without a better loss; 0: never stop for that
    best: bool = False  # the model that is kept is the one with the best loss, not the last

    def __post_init__(self) -> None:
        if self.every < 0 or self.patience < 0:
            raise BadInput(f"every={self.every}, patience={self.patience}: give numbers of at least 0")
        if self.goal is not None and not 0 < self.goal <= 1:
            raise BadInput(f"goal={self.goal}: give a share of exact rows, above 0 and up to 1")
        if (self.goal is not None or self.patience or self.best) and not self.every:
            raise BadInput("goal, patience and best need evaluate.every: say after how many steps to look")

    def watched(self, scores: Sequence[ScoreRecord]) -> ScoreRecord | None:
        named = [s for s in scores if self.watch is None or s.set == self.watch]
        return named[0] if named else None

    def why(self, best: tuple[float, int] | None, scores: Sequence[ScoreRecord]) -> str:
        watched = self.watched(scores)
        if watched is not None and self.goal is not None and watched.exact >= self.goal:
            return f"{watched.exact:.1%} of {watched.set} are exact, and the goal was {self.goal:.1%}"
        return f"no better loss in {0 if best is None else best[1]} evaluations"


@dataclass(frozen=True)
class Save:
    """When to write a checkpoint; the last one is always written."""

    every: int = 500
    keep: int = 2

    def __post_init__(self) -> None:
        if self.every < 0 or self.keep < 1:
            raise BadInput(
                f"every={self.every}, keep={self.keep}: give steps between checkpoints, and at least 1 to keep"
            )


@dataclass(frozen=True)
class TrainSettings:
    """One run."""

    model: ModelSection
    data: DataSection
    loop: LoopSettings = LoopSettings()
    optimiser: OptimiserConfig = AdamW()
    schedule: Constant | Cosine | WSD = Constant()
    evaluate: Evaluate = Evaluate()
    save: Save = Save()
    guard: GuardSettings = GuardSettings()
    average: Average | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.seed < 2**63:
            raise BadInput(f"seed={self.seed}: give a number from 0 to 2**63 - 1")
        self.data.check(self.model.reads)
        self.model.check(DataFacts(VOCAB, self.seed))

    def fingerprint(self) -> str:
        """Two runs with the same one compute the same: how often they save does not count, nor how long they go on,
        nor when somebody should be alarmed."""
        table = {f.name: _as_table(getattr(self, f.name)) for f in fields_of(self) if f.name not in ("save", "guard")}
        table["model"] = {name: v for name, v in table["model"].items() if name not in self.model.unsaid}
        table["loop"] = {name: v for name, v in table["loop"].items() if name not in ("steps", "threads")}
        return hashlib.sha256(json.dumps(table, sort_keys=True).encode()).hexdigest()[:16]


# What a section was called when fingerprints were first written: a run that was begun then goes on now.
FINGERPRINT_NAMES: dict[type, str] = {
    LoopSettings: "Steps",
    GuardSettings: "Guard",
    TaskExamples: "Exercise",
    PromptFiles: "Prompts",
    KeyLookup: "Lookup",
}
MOST = 4096  # layers, tests, files: entries of any list


def read_settings(source: str | Path, changes: Sequence[str] = ()) -> tuple[TrainSettings, dict[str, Any]]:
    """The settings of a file, or of one that comes with Vantage, with changes as in "loop.steps=500"; and as a
    table."""
    table = _file(source)
    for change in changes:
        _change(table, change)
    return settings_of(table), table


def settings_of(table: dict[str, Any]) -> TrainSettings:
    """Settings from a nested table."""
    table = {name: _with_part_name(name, section) for name, section in table.items()}
    schedule, loop = table.get("schedule"), table.get("loop", {})
    if isinstance(schedule, dict) and str(schedule.get("is", "")).lower() in ("cosine", "wsd"):
        steps = loop.get("steps", LoopSettings.steps) if isinstance(loop, dict) else LoopSettings.steps
        table = table | {"schedule": {"total": steps} | schedule}  # a schedule lasts as long as the run unless it says
    return Reader(MOST, _part_names()).part(table, (TrainSettings,), "settings", 0)


def _part_names() -> PartNames:
    """What may stand in the settings. Tasks, and parts from outside, go by the names they are registered with."""
    registries = (TASKS, OPTIMISERS, *REGISTRIES.values())
    outside = {entry.config: entry.name for registry in registries for entry in registry.from_outside()}
    return PartNames(
        fits=classes_by_protocol()
        | {ModelSection: MODELS, DataSection: SOURCES, Task: TASKS.classes(), OptimiserConfig: OPTIMISERS.classes()},
        buildable=classes_by_place(),
        error=BadInput,
        loose=True,
        called={
            **task_names(),
            **{entry.config: entry.name for entry in OPTIMISERS.entries()},
            **outside,
            TaskExamples: "task",
            PromptFiles: "prompts",
        },
    )


def _with_part_name(name: str, section: Any) -> Any:
    """A section as a table with its part's name: a word is that name, and a table without one means the default's."""
    if isinstance(section, str):
        return {"is": section}
    default = next((f.default for f in fields_of(TrainSettings) if f.name == name), None)
    if isinstance(section, dict) and is_dataclass(default):
        return {"is": type(default).__name__} | section
    return section


def recipes() -> dict[str, Path]:
    """The settings that come with Vantage, by name."""
    folder = Path(str(resources.files("vantage.training"))) / "recipes"
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


def _file(source: str | Path) -> dict[str, Any]:
    path = Path(source)
    if not path.suffix and not path.is_file():  # a folder of that name is none
        if str(source) not in recipes():
            raise BadInput(f"there is no file {source}, and {unknown('recipe', str(source), recipes())}")
        path = recipes()[str(source)]
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as e:
        raise BadInput(f"cannot read {path}: {e.strerror}") from e
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as e:
        raise BadInput(f"{path} is not TOML: {e}") from e


def _change(table: dict[str, Any], change: str) -> None:
    """KEY=VALUE, where KEY is a path of names and VALUE is TOML, or else a word."""
    key, equals, value = change.partition("=")
    names = [name.strip() for name in key.split(".")]
    if not equals or not all(names):
        raise BadInput(f"{change!r}: write KEY=VALUE, as in loop.steps=500")
    try:
        new = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        new = value.strip()
    for name in names[:-1]:
        inner = table.get(name, {})
        if not isinstance(inner, dict):  # a part that was said by its name alone
            inner = {"is": inner}
        table[name] = inner
        table = inner
    table[names[-1]] = new


def _as_table(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        name = FINGERPRINT_NAMES.get(type(value), type(value).__name__)
        return {"is": name} | {f.name: _as_table(getattr(value, f.name)) for f in fields_of(value)}
    if isinstance(value, tuple):
        return [_as_table(one) for one in value]
    return value


__all__ = ["Evaluate", "LoopSettings", "Save", "TrainSettings", "read_settings", "recipes", "settings_of"]
