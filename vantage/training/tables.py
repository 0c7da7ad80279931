"""Settings as they are written: a TOML file or a recipe, with changes, as a nested table; and what can be refused of it
without torch. ``settings`` makes ``TrainSettings`` of such a table, and checks all of it."""

from __future__ import annotations

import contextlib
import json
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from importlib import resources
from operator import or_
from pathlib import Path
from typing import Any

from vantage.checkpoints.pull import find
from vantage.checkpoints.run_folder import CHECKPOINTS, LOG, steps
from vantage.errors import BadInput, unknown
from vantage.files import expand
from vantage.parts import check_part_name, known_entries
from vantage.spec.source_names import (
    DeclaredEntry,
    Unreadable,
    declared_classes,
    declared_fields,
    declared_hints,
    declared_types,
)
from vantage.spec.table_reader import KIND, PartNames, Reader, loosely, unknown_kind
from vantage.training.sections import MAX_ENTRIES, check_sections

FILES = ("files", "valid", "source", "target", "valid_source", "valid_target")  # fields of [data] that name some
SETTINGS_FILE = "settings.json"  # in the folder of a run
PROMISE = "promise"  # a section of a recipe that says what it reaches
OBJECT = "from Python"  # a field that holds an object, which no file of settings can
SETTINGS = "vantage.training.settings:TrainSettings"
# Protocols that a section is declared as, and where the classes are that fit.
SECTIONS = {
    "vantage.training.settings:ModelSection": "vantage.training.models:MODELS",
    "vantage.training.settings:DataSection": "vantage.training.sources:SOURCES",
}
CALLED = {"TaskExamples": "task", "PromptFiles": "prompts"}  # sections that go by another name than their class
OPTIMISER = "vantage.training.settings:OptimiserConfig"


def recipes() -> dict[str, Path]:
    """The settings that come with Vantage, by name."""
    folder = Path(str(resources.files("vantage.training"))) / "recipes"
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


def table_of(source: str | Path, changes: Sequence[str] = ()) -> dict[str, Any]:
    """The settings of a file, a recipe or the folder of a run, with changes as in "loop.steps=500", as a table."""
    table = settings_file(source)
    table.pop(PROMISE, None)  # for people, and for promises.py: no setting
    for change in changes:
        apply_change(table, change)
    return table


def run_folder(source: str | Path) -> Path:
    """Where a run with these settings lives, unless somebody says otherwise; the folder of a run is one itself."""
    return Path(source) if _is_run(source) else Path("runs") / Path(source).stem


def _is_run(source: str | Path) -> bool:
    return str(source) not in recipes() and (Path(source) / SETTINGS_FILE).is_file()


def settings_file(source: str | Path) -> dict[str, Any]:
    """What a file of settings, a recipe or the folder of a run says."""
    path = Path(source)
    if _is_run(source):
        return _of_run(path)
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


def _of_run(folder: Path) -> dict[str, Any]:
    """The settings that a run was begun with."""
    try:
        table = json.loads((folder / SETTINGS_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError) as e:
        raise BadInput(f"cannot read {folder / SETTINGS_FILE}: {e}") from e
    if not isinstance(table, dict) or OBJECT in table.values():
        raise BadInput(
            f"{folder} holds a run with a model or data from Python: continue it there, as in "
            f"vt.train(model, data, out={str(folder)!r}, resume=True)"
        )
    return table


def apply_change(table: dict[str, Any], change: str) -> None:
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


def flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A nested table with the whole name of every value, as in "loop.steps"."""
    values: dict[str, Any] = {}
    for name, value in table.items():
        values |= flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return values


# ---- what can be refused early


def check_run_folder(folder: Path, *, resume: bool) -> None:
    """Refuse a folder that holds a run already, unless that run is to go on."""
    if folder.exists() and not folder.is_dir():
        raise BadInput(f"{folder} is a file: give the folder of the run (--out)")
    if resume and not folder.exists():
        raise BadInput(f"there is no run to continue in {folder}")
    if not resume and (steps(folder / CHECKPOINTS) or (folder / LOG).exists()):
        raise BadInput(f"{folder} already holds a run: continue it (--resume), or choose another folder (--out)")


def check_table(table: dict[str, Any]) -> None:
    """Refuse names that nothing has, values that cannot be, and files that are not there. What this does not see,
    ``settings_of`` does."""
    with contextlib.suppress(Unreadable):  # sources that are written in another way: all is left to settings_of
        _check_keys(table)
    check_sections(table)
    sections = {name: section for name, section in table.items() if isinstance(section, dict)}
    data, model = sections.get("data", {}), sections.get("model", {})
    for kind, name in (("task", data.get("task")), ("position", model.get("position"))):
        if isinstance(name, str):
            check_part_name(kind, name)
    for name in FILES:
        files = data.get(name)
        if isinstance(files, str) or (isinstance(files, list) and all(isinstance(one, str) for one in files)):
            try:
                expand(files)
            except BadInput as e:
                raise BadInput(f"data.{name}: {e} (on the command line: data.{name}=FILE)") from e
    if isinstance(model.get("source"), str):
        try:
            find(model["source"])
        except BadInput as e:
            raise BadInput(f"model.source: {e}") from e


def _check_keys(table: dict[str, Any]) -> None:
    hints = declared_hints(SETTINGS)
    for name, section in table.items():
        if name not in hints:
            raise BadInput(f"settings: {unknown('setting', name, hints)}")
        if isinstance(section, str):
            section = {KIND: section}
        if not isinstance(section, dict):
            continue
        candidates = _candidates(hints[name])
        _check_kind(section, candidates.values(), f"settings.{name}")
        known = {"is"}.union(*map(declared_fields, candidates))
        for key, value in section.items():
            if key not in known:
                raise BadInput(f"{name}.{key}: {unknown(f'setting of {name}', key, sorted(known - {'is'}))}")
            _check_value(value, key, candidates, f"settings.{name}.{key}")


def _check_kind(section: Mapping[str, Any], names: Iterable[str], where: str) -> None:
    """Refuse the name of a part that no candidate goes by."""
    kind = section.get(KIND)
    if isinstance(kind, str) and loosely(kind) not in (known := [loosely(name) for name in names]):
        raise BadInput(f"{where}: {unknown_kind(loosely(kind), known)}")


def _check_value(value: Any, key: str, candidates: Iterable[str], where: str) -> None:
    """Refuse a value that no candidate with this field takes. Parts are left to ``settings_of``."""
    hints = [declared_types(home).get(key) for home in candidates if key in declared_fields(home)]
    if hints and None not in hints:
        Reader(MAX_ENTRIES, PartNames(error=BadInput, loose=True)).value(value, reduce(or_, hints), key, where, 0)


def _candidates(hints: tuple[str, ...]) -> dict[str, str]:
    """The classes that a section may be, with the name that each goes by."""
    names: dict[str, str] = {}
    for hint in hints:
        if hint == OPTIMISER:
            entries = known_entries("optimiser")
            if entries is None or not all(isinstance(entry, DeclaredEntry) for entry in entries):
                raise Unreadable(hint)  # one from outside may be meant: settings_of knows
            names |= {str(entry.config): entry.name for entry in entries}
            continue
        for home in declared_classes(SECTIONS[hint]) if hint in SECTIONS else (hint,):
            name = home.partition(":")[2]
            names[home] = CALLED.get(name, name)
    return names
