"""Frozen dataclasses from plain values, as JSON and TOML have them. Every value is checked against its field.

Nothing here needs torch, so settings of plain values can be read, and refused, before it is imported.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from functools import cache
from typing import Any

from vantage.errors import BadInput, CheckpointError, Refused, VantageError, unknown

KIND, TIMES, OF = "is", "times", "of"  # no field can be called "is"
LARGEST = 2.0**62  # of numbers: what torch counts with
DEEPEST = 48  # masks and encodings nest a few levels; a hostile file as many as it likes


def written_name(part: type) -> str:
    """What a part is called in JSON: ours by the name of their class, others by their import path."""
    ours = part.__module__.partition(".")[0] == "vantage"
    return part.__name__ if ours else f"{part.__module__}:{part.__qualname__}"


@dataclass(frozen=True)
class PartNames:
    """Which classes may stand where a field asks for a protocol, what they are called, and how a wrong word is refused.

    ``loose`` is for files that people write: "rope" is Rope, and where only one class fits it need not be named.
    """

    fits: Mapping[Any, tuple[type, ...]] = field(default_factory=dict)
    by_place: Mapping[Any, Mapping[str, tuple[type, ...]]] = field(default_factory=dict)  # then by the field's name
    error: type[VantageError] = CheckpointError
    loose: bool = False
    called: Mapping[type, str] = field(default_factory=dict)  # classes that go by another name than their own
    objects: Mapping[Any, tuple[type, ...]] = field(default_factory=dict)  # those that only Python can make

    def names(self, allowed: tuple[type, ...]) -> dict[str, type]:
        if not self.loose:
            return {written_name(cls): cls for cls in allowed}
        names: dict[str, type] = {}
        for cls in allowed:
            names.setdefault(loosely(self.called.get(cls, cls.__name__)), cls)
        return names

    def parts(self, hint: Any, name: str) -> tuple[type, ...]:
        """The classes that may stand where a field says this."""
        if hint in self.by_place:
            return self.by_place[hint][name]
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
        if kind not in names:
            raise self.error(f"{where}: {unknown_kind(kind or data, names)}")
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
        return loosely(kind) if self.part_names.loose else kind

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


def unknown_kind(kind: Any, names: Iterable[str]) -> str:
    """What to say of a part that nothing here is called by."""
    if isinstance(kind, str) and ":" in kind:
        return (
            f"{kind[:200]!r} is a part from outside, and no such class has been registered: import the module that "
            "registers it (vantage.register), or name it with --parts or VANTAGE_PARTS"
        )
    return unknown("part that fits here", kind, names)


def loosely(name: str) -> str:
    """A name as people may spell it: neither case nor dashes matter."""
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
