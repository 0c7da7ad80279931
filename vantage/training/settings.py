"""The settings of a run: a TOML file, read and checked as a whole before anything is allocated.

Sections are frozen dataclasses and carry the names of their fields. A part is named (``position =
"alibi"``) or as a table (``position = {is = "rope", base = 500000.0}``). Anything can be changed as KEY=VALUE on the
command line.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, is_dataclass
from dataclasses import fields as fields_of
from pathlib import Path
from typing import Any

from vantage.checkpoints.spec_parts import REGISTRIES, classes_by_place, classes_by_protocol
from vantage.errors import BadInput
from vantage.spec.parts import Buildable
from vantage.spec.table_reader import PartNames, Reader
from vantage.training.examples import ExampleData
from vantage.training.models import MODELS, DataFacts, ModelObject, ModelSection
from vantage.training.optimise import OPTIMISERS, AdamW, Average, OptimiserConfig
from vantage.training.schedules import WSD, Constant, Cosine
from vantage.training.sections import (
    MAX_ENTRIES,
    Evaluate,
    GuardSettings,
    LoopSettings,
    ParallelSettings,
    Save,
    check_seed,
    with_part_name,
    with_total,
)
from vantage.training.sources import SOURCES, DataSection, PromptFiles, TaskExamples, task_names
from vantage.training.tables import CALLED, OBJECT, table_of
from vantage.training.tasks import TASKS, KeyLookup, Task

VOCAB = 8  # stands for that of the data, which are not open yet, where only the rest of a model is checked


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
    parallel: ParallelSettings = ParallelSettings()
    seed: int = 0

    def __post_init__(self) -> None:
        check_seed(self.seed)
        self.data.check(self.model.reads)
        self.model.check(DataFacts(VOCAB, self.seed))

    def fingerprint(self) -> str:
        """Two runs with the same one compute the same: how often they save does not count, nor how long they go on,
        nor when somebody should be alarmed, nor over which processes they lie."""
        table = settings_table(self)
        for name in ("save", "guard", "parallel"):
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


def read_settings(source: str | Path, changes: Sequence[str] = ()) -> tuple[TrainSettings, dict[str, Any]]:
    """The settings of a file, a recipe or a run, with changes as in "loop.steps=500"; and as a table."""
    table = table_of(source, changes)
    return settings_of(table), table


def settings_of(table: dict[str, Any]) -> TrainSettings:
    """Settings from a nested table. A section may be a table, the name of a part, or the part itself."""
    defaults = {f.name: type(f.default) for f in fields_of(TrainSettings) if is_dataclass(f.default)}
    table = {name: with_part_name(section, defaults.get(name)) for name, section in table.items()}
    if "schedule" in table:
        table |= {"schedule": with_total(table["schedule"], table.get("loop", {}))}
    return Reader(MAX_ENTRIES, _part_names()).part(table, (TrainSettings,), "settings", 0)


def _part_names() -> PartNames:
    """What may stand in the settings. Tasks, and parts from outside, go by the names they are registered with."""
    registries = (TASKS, OPTIMISERS, *REGISTRIES.values())
    outside = {entry.config: entry.name for registry in registries for entry in registry.from_outside()}
    return PartNames(
        fits=classes_by_protocol()
        | {ModelSection: MODELS, DataSection: SOURCES, Task: TASKS.classes(), OptimiserConfig: OPTIMISERS.classes()},
        objects={ModelSection: (ModelObject,), DataSection: (ExampleData,)},
        by_place={Buildable: classes_by_place()},
        error=BadInput,
        loose=True,
        called={
            **task_names(),
            **{entry.config: entry.name for entry in OPTIMISERS.entries()},
            **outside,
            **{source: CALLED[source.__name__] for source in SOURCES if source.__name__ in CALLED},
        },
    )


def settings_table(settings: TrainSettings) -> dict[str, Any]:
    """All settings as plain values, defaults included. Options that earlier versions did not have are left out where
    they are at their defaults: such a run is still the same."""
    table = {f.name: _as_table(getattr(settings, f.name)) for f in fields_of(settings)}
    table["model"] = {name: v for name, v in table["model"].items() if name not in settings.model.unsaid}
    for section, names in ADDED.items():
        part, defaults = table[section], _as_table(DEFAULTS[section])
        table[section] = {name: v for name, v in part.items() if name not in names or v != defaults[name]}
    return table


def _as_table(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        name = FINGERPRINT_NAMES.get(type(value), type(value).__name__)
        plain = [f.name for f in fields_of(value) if not f.metadata.get(OBJECT)]
        return {"is": name} | {name: _as_table(getattr(value, name)) for name in plain}
    if isinstance(value, tuple):
        return [_as_table(one) for one in value]
    return value


__all__ = ["Evaluate", "LoopSettings", "Save", "TrainSettings", "read_settings", "settings_of"]
