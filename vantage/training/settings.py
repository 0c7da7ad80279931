"""The settings of a run: a TOML file, read and checked as a whole before anything is allocated.

Sections are frozen dataclasses and carry the names of their fields. A part is named (``position =
"alibi"``) or as a table (``position = {is = "rope", base = 500000.0}``). Anything can be changed as KEY=VALUE on the
command line.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from dataclasses import fields as fields_of
from math import isfinite
from pathlib import Path
from typing import Any, Literal, NamedTuple

from vantage.checkpoints.spec_json import PartNames, Reader
from vantage.checkpoints.spec_parts import REGISTRIES, classes_by_place, classes_by_protocol
from vantage.errors import BadInput
from vantage.training.divergence import GuardSettings
from vantage.training.examples import ExampleData
from vantage.training.log import ScoreRecord
from vantage.training.models import MODELS, DataFacts, ModelObject, ModelSection
from vantage.training.optimise import OPTIMISERS, WSD, AdamW, Average, Constant, Cosine, OptimiserConfig
from vantage.training.sources import SOURCES, DataSection, PromptFiles, TaskExamples, task_names
from vantage.training.tables import OBJECT, table_of
from vantage.training.tasks import TASKS, KeyLookup, Task

VOCAB = 8  # stands for that of the data, which are not open yet, where only the rest of a model is checked


@dataclass(frozen=True)
class LoopSettings:
    """How much, and how. ``batch`` counts the examples of a step, over all processes and parts."""

    steps: int = 1000
    batch: int = 64
    batch_tokens: int | None = None  # instead of batch: as many rows as this many tokens hold, padding included
    accumulate: int | Literal["auto"] = 1  # parts that a batch is computed in; auto: as few as fit into memory
    clip: float | None = 1.0
    precision: Literal["float32", "bfloat16"] = "float32"
    compile: bool = False
    recompute: bool = False  # keep only what goes into each block, and compute the rest again on the way back
    smoothing: float = 0.0  # the share of each target that is spread over all tokens
    threads: int | None = None  # of the CPU; None: as torch has it

    def __post_init__(self) -> None:
        for name in ("steps", "batch", "batch_tokens", "accumulate", "threads"):
            value = getattr(self, name)
            if value is not None and value != "auto" and value < 1:
                raise BadInput(f"{name}={value}: give at least 1")
        if self.accumulate != "auto" and self.batch % self.accumulate:
            raise BadInput(f"a batch of {self.batch} does not divide into {self.accumulate} parts")
        if not 0 <= self.smoothing < 1:
            raise BadInput(f"smoothing={self.smoothing}: give a share from 0 up to, not including, 1")
        if self.clip is not None and not self.clip > 0:
            raise BadInput(f"clip={self.clip}: give the largest norm of the gradient, or leave it out")


class Best(NamedTuple):
    """The best figure of the watched set so far, what patience compares with, and how long it has waited."""

    value: float
    waited: int  # evaluations without a figure that is better than ``reference``
    reference: float


@dataclass(frozen=True)
class Evaluate:
    """When to evaluate, and when that is reason to stop: ``goal`` is a share of exact rows in the watched set."""

    every: int = 0  # steps; 0: at the end alone
    watch: str | None = None  # None: the first set
    goal: float | None = None
    patience: int = 0  # evaluations without a better figure; 0: never stop for that
    best: bool | None = None  # whether the model that is kept is the best one, not the last; None: with patience
    metric: Literal["loss", "tokens", "exact"] = "loss"  # the figure of the watched set that best and patience mean
    min_delta: float = 0.0  # what a figure must gain to count as better for patience

    def __post_init__(self) -> None:
        if self.every < 0 or self.patience < 0:
            raise BadInput(f"every={self.every}, patience={self.patience}: give numbers of at least 0")
        if self.goal is not None and not 0 < self.goal <= 1:
            raise BadInput(f"goal={self.goal}: give a share of exact rows, above 0 and up to 1")
        if not (isfinite(self.min_delta) and self.min_delta >= 0):
            raise BadInput(f"min_delta={self.min_delta}: give the least change that counts, 0 for any")
        if self.min_delta and not self.patience:
            raise BadInput("min_delta needs patience: say after how many evaluations without that change to stop")
        if (self.goal is not None or self.patience or self.best) and not self.every:
            raise BadInput(
                "goal, patience and best need evaluate.every (eval_steps= in Python): say after how many steps to look"
            )

    @property
    def keeps_best(self) -> bool:
        return bool(self.patience) if self.best is None else self.best

    def watched(self, scores: Sequence[ScoreRecord]) -> ScoreRecord | None:
        named = [s for s in scores if self.watch is None or s.set == self.watch]
        return named[0] if named else None

    def why_enough(self, best: Best | None, scores: Sequence[ScoreRecord]) -> str | None:
        """Why this is reason to stop before the last step; None: it is not."""
        watched = self.watched(scores)
        if watched is not None and self.goal is not None and watched.exact >= self.goal:
            return f"{watched.exact:.1%} of {watched.set} are exact, and the goal was {self.goal:.1%}"
        if best is None or not self.patience or best.waited < self.patience:
            return None
        figure = {"loss": "loss", "tokens": "share of right tokens", "exact": "share of exact rows"}[self.metric]
        least = f" by more than {self.min_delta:g}" if self.min_delta else ""
        return f"no better {figure}{least} in {best.waited} evaluations"

    def improved(self, best: Best | None, scores: Sequence[ScoreRecord]) -> Best | None:
        """The best figure after these scores. With ``waited`` == 0 patience begins anew."""
        watched = self.watched(scores)
        if watched is None:
            return best
        value = float(getattr(watched, self.metric))
        if best is None:
            return Best(value, 0, value)
        gain = best.reference - value if self.metric == "loss" else value - best.reference
        top = min(best.value, value) if self.metric == "loss" else max(best.value, value)
        return Best(top, 0, value) if gain > self.min_delta else Best(top, best.waited + 1, best.reference)


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
        table = settings_table(self)
        for name in ("save", "guard"):
            del table[name]
        for name in ("steps", "threads"):
            del table["loop"][name]
        evaluate = table["evaluate"]
        evaluate["best"] = self.evaluate.best is True  # as it was written when there were two answers
        return hashlib.sha256(json.dumps(table, sort_keys=True, default=repr).encode()).hexdigest()[:16]


# What a section was called when fingerprints were first written: a run that was begun then goes on now.
FINGERPRINT_NAMES: dict[type, str] = {
    LoopSettings: "Steps",
    GuardSettings: "Guard",
    TaskExamples: "Exercise",
    PromptFiles: "Prompts",
    KeyLookup: "Lookup",
}
ADDED = {"loop": ("batch_tokens",), "evaluate": ("metric", "min_delta")}  # since fingerprints were first written
DEFAULTS = {"loop": LoopSettings(), "evaluate": Evaluate()}
MOST = 4096  # layers, tests, files: entries of any list


def read_settings(source: str | Path, changes: Sequence[str] = ()) -> tuple[TrainSettings, dict[str, Any]]:
    """The settings of a file, a recipe or a run, with changes as in "loop.steps=500"; and as a table."""
    table = table_of(source, changes)
    return settings_of(table), table


def settings_of(table: dict[str, Any]) -> TrainSettings:
    """Settings from a nested table. A section may be a table, the name of a part, or the part itself."""
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
        objects={ModelSection: (ModelObject,), DataSection: (ExampleData,)},
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


def settings_table(settings: TrainSettings) -> dict[str, Any]:
    """All settings as plain values, defaults included. Options that earlier versions did not have are left out where
    they are at their defaults: such a run is still the same."""
    table = {f.name: _as_table(getattr(settings, f.name)) for f in fields_of(settings)}
    table["model"] = {name: v for name, v in table["model"].items() if name not in settings.model.unsaid}
    for section, names in ADDED.items():
        part, defaults = table[section], _as_table(DEFAULTS[section])
        table[section] = {name: v for name, v in part.items() if name not in names or v != defaults[name]}
    return table


def flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A nested table with the whole name of every value, as in "loop.steps"."""
    values: dict[str, Any] = {}
    for name, value in table.items():
        values |= flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return values


def _as_table(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        name = FINGERPRINT_NAMES.get(type(value), type(value).__name__)
        plain = [f.name for f in fields_of(value) if not f.metadata.get(OBJECT)]
        return {"is": name} | {name: _as_table(getattr(value, name)) for name in plain}
    if isinstance(value, tuple):
        return [_as_table(one) for one in value]
    return value


__all__ = ["Evaluate", "LoopSettings", "Save", "TrainSettings", "read_settings", "settings_of"]
