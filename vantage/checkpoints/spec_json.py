"""A ModelSpec as plain JSON and back: every part by the name of its class, with its fields.

Only classes of the registries (``spec_parts``) are ever made, each only where it fits; no name is imported and no code
is run. A part from outside is called by its import path, and is made only if that very class has been registered. What
is not understood is refused, with the nearest that would be.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from functools import cache
from itertools import groupby
from math import isfinite
from typing import Any

from vantage.checkpoints.spec_parts import classes_by_place, classes_by_protocol
from vantage.errors import BadInput, CheckpointError, Refused, VantageError, unknown
from vantage.spec.model import ModelSpec
from vantage.spec.parts import Buildable

KIND, TIMES, OF = "is", "times", "of"  # no field can be called "is"
LARGEST = 2.0**62  # of numbers: what torch counts with
DEEPEST = 48  # masks and encodings nest a few levels; a hostile file as many as it likes


# ---- to JSON


def to_json(spec: ModelSpec) -> dict[str, Any]:
    """The spec as objects, lists, numbers and words. Equal neighbours in a list (layers) are written once."""
    data = _written(spec, "spec")
    deepest = max(len(stack.layers) for stack in (spec, spec.encoder) if stack is not None)
    try:
        read = from_json(data, most=deepest)
    except CheckpointError as e:
        raise Refused(f"this spec cannot be written: {e}. Only parts of a registry can be read back") from e
    if read != spec:  # a part that calls itself by a name of ours
        raise Refused("this spec cannot be written: it holds a part that is not the one of Vantage by that name")
    return data


def _written(value: Any, where: str) -> Any:
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float) and isfinite(value):
        return value
    if isinstance(value, tuple):
        return _folded([_written(item, f"{where}[{i}]") for i, item in enumerate(value)])
    if is_dataclass(value) and not isinstance(value, type):
        data = {f.name: _written(getattr(value, f.name), f"{where}.{f.name}") for f in fields(value)}
        return {KIND: written_name(type(value)), **data}
    raise Refused(f"{where} is {value!r}, which cannot be written as JSON: only frozen parts and plain values can be")


def written_name(part: type) -> str:
    """What a part is called in JSON: ours by the name of their class, others by their import path."""
    ours = part.__module__.partition(".")[0] == "vantage"
    return part.__name__ if ours else f"{part.__module__}:{part.__qualname__}"


def _folded(items: list[Any]) -> list[Any]:
    folded: list[Any] = []
    for item, run in groupby(items):
        n = len(list(run))
        folded += [{TIMES: n, OF: item}] if n > 1 and isinstance(item, dict) else [item] * n
    return folded


# ---- from JSON


def from_json(data: Any, *, most: int) -> ModelSpec:
    """The spec that was written; ``most`` is how many layers there can be (every layer has a tensor)."""
    return Reader(most, PartNames(classes_by_protocol(), classes_by_place())).part(data, (ModelSpec,), "spec", 0)


@dataclass(frozen=True)
class PartNames:
    """Which classes may stand where a field asks for a protocol, what they are called, and how a wrong word is refused.

    ``loose`` is for files that people write: "rope" is Rope, and where only one class fits it need not be named.
    """

    fits: Mapping[Any, tuple[type, ...]]
    buildable: Mapping[str, tuple[type, ...]]
    error: type[VantageError] = CheckpointError
    loose: bool = False
    called: Mapping[type, str] = field(default_factory=dict)  # classes that go by another name than their own
    objects: Mapping[Any, tuple[type, ...]] = field(default_factory=dict)  # those that only Python can make

    def names(self, allowed: tuple[type, ...]) -> dict[str, type]:
        if not self.loose:
            return {written_name(cls): cls for cls in allowed}
        names: dict[str, type] = {}
        for cls in allowed:
            names.setdefault(_loosely(self.called.get(cls, cls.__name__)), cls)
        return names

    def parts(self, hint: Any, name: str) -> tuple[type, ...]:
        """The classes that may stand where a field says this."""
        if hint is Buildable:
            return self.buildable[name]
        return self.fits.get(hint, (hint,) if isinstance(hint, type) and is_dataclass(hint) else ())


class Reader:
    """Frozen dataclasses from plain values: every field is checked against its type, every key against the fields."""

    def __init__(self, most: int, names: PartNames):
        self.most, self.part_names = most, names
        self.error = names.error

    def part(self, data: Any, allowed: tuple[type, ...], where: str, depth: int) -> Any:
        names = self.part_names.names(allowed)
        if depth > DEEPEST:
            raise self.error(f"{where}: nested {depth} levels deep, more than any real spec")
        kind = self._kind(data, names)
        if kind not in names and ":" in (kind or ""):
            raise self.error(
                f"{where}: {str(kind)[:200]!r} is a part from outside, and no such class has been registered: import "
                "the module that registers it (vantage.register), or name it with --parts or VANTAGE_PARTS"
            )
        if kind not in names:
            raise self.error(f"{where}: {unknown('part that fits here', kind or data, names)}")
        known = {f.name: f for f in fields(names[kind])}
        for name in data:
            if name not in known and name != KIND:
                raise self.error(f"{where}: {unknown(f'field of {kind}', name, known)}")
        for name, f in known.items():
            if name not in data and f.default is MISSING and f.default_factory is MISSING:
                raise self.error(f"{where}: {kind} needs {name!r}")
        arguments = {
            n: self.field(data[n], f, names[kind], f"{where}.{n}", depth) for n, f in known.items() if n in data
        }
        try:
            return names[kind](**arguments)
        except (BadInput, Refused) as e:
            raise self.error(f"{where}: {e}") from e

    def _kind(self, data: Any, names: dict[str, type]) -> str | None:
        if not isinstance(data, dict):
            return None
        if self.part_names.loose and KIND not in data and len(names) == 1:
            return next(iter(names))
        kind = data.get(KIND)
        if not isinstance(kind, str):
            return None
        return _loosely(kind) if self.part_names.loose else kind

    def field(self, data: Any, f: Field[Any], owner: type, where: str, depth: int) -> Any:
        return self.value(data, _hints(owner)[f.name], f.name, where, depth)

    def value(self, data: Any, hint: Any, name: str, where: str, depth: int) -> Any:
        options = typing.get_args(hint) if typing.get_origin(hint) in (types.UnionType, typing.Union) else (hint,)
        if isinstance(data, list):
            inside = next((typing.get_args(o) for o in options if typing.get_origin(o) is tuple), None)
            if inside is not None:
                return self.row(data, inside, name, where, depth)
        elif isinstance(data, dict):
            parts = tuple(cls for o in options for cls in self.part_names.parts(o, name))
            if parts:
                return self.part(data, parts, where, depth + 1)
        elif any(_plain(data, o) for o in options):
            return data
        elif self.part_names.loose and isinstance(data, str):
            parts = tuple(cls for o in options for cls in self.part_names.parts(o, name))
            if parts:  # a part by its name alone
                return self.part({KIND: data}, parts, where, depth + 1)
        elif self.part_names.loose and is_dataclass(data):  # a part itself, from Python
            own = tuple(cls for o in options for cls in self.part_names.objects.get(o, ()))
            if isinstance(data, (*own, *(cls for o in options for cls in self.part_names.parts(o, name)))):
                return data
        raise self.error(f"{where} is {_shown(data)}; wanted {_wanted(options)}")

    def row(self, data: list[Any], inside: tuple[Any, ...], name: str, where: str, depth: int) -> tuple[Any, ...]:
        items: list[Any] = []
        for i, item in enumerate(data):
            times = 1
            if isinstance(item, dict) and set(item) == {TIMES, OF}:
                times, item = item[TIMES], item[OF]
                left = self.most - len(items)
                if isinstance(times, bool) or not isinstance(times, int) or not 1 <= times <= left:
                    raise self.error(f"{where}[{i}]: {TIMES} is {_shown(times)}; wanted from 1 to {left}")
            items += [self.value(item, inside[0], name, f"{where}[{i}]", depth)] * times
        if Ellipsis not in inside and len(items) != len(inside):
            raise self.error(f"{where} has {len(items)} entries; wanted {len(inside)}")
        return tuple(items)


def _loosely(name: str) -> str:
    return name.replace("_", "").replace("-", "").lower()


@cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _plain(data: Any, hint: Any) -> bool:
    """Whether this is a value of that kind: a whole number may stand for one with a fraction, a truth for neither."""
    if typing.get_origin(hint) is typing.Literal:
        return any(data == word and type(data) is type(word) for word in typing.get_args(hint))
    if data is None or isinstance(data, (bool, str)):
        return hint is type(data)
    return isinstance(data, (int, float) if hint is float else int) and hint in (int, float) and abs(data) < LARGEST


def _wanted(options: Iterable[Any]) -> str:
    return " or ".join(_word(o) for o in options)


def _word(option: Any) -> str:
    if typing.get_origin(option) is typing.Literal:
        return " or ".join(repr(word) for word in typing.get_args(option))
    return "nothing" if option is type(None) else str(getattr(option, "__name__", option))


def _shown(value: Any) -> str:
    data = repr(value)
    return data if len(data) <= 60 else data[:57] + "..."
