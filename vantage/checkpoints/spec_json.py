"""A ModelSpec as plain JSON and back: every part by the name of its class, with its fields.

Only the classes listed in ``spec_parts`` are ever made, each only where it fits; no name is imported and no code is
run. What is not understood is refused, with the nearest that would be.
"""

from __future__ import annotations

import difflib
import types
import typing
from collections.abc import Iterable
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from itertools import groupby
from math import isfinite
from typing import Any

from vantage.checkpoints.spec_parts import BUILDABLE, FITS
from vantage.errors import BadInput, CheckpointError, Refused
from vantage.spec.model import ModelSpec
from vantage.spec.parts import Buildable

KIND, TIMES, OF = "is", "times", "of"  # no field can be called "is"
LARGEST = 2.0**62  # of numbers: what torch counts with
DEEPEST = 48  # masks and encodings nest a few levels; a hostile file as many as it likes


# ---- to JSON


def to_json(spec: ModelSpec) -> dict[str, Any]:
    """The spec as objects, lists, numbers and words. Equal neighbours in a list (layers) are written once."""
    said = _written(spec, "spec")
    deepest = max(len(stack.layers) for stack in (spec, spec.encoder) if stack is not None)
    try:
        read = from_json(said, most=deepest)
    except CheckpointError as e:
        raise Refused(f"this spec cannot be written: {e}. Only parts of Vantage's own can be read back") from e
    if read != spec:  # a part that calls itself by a name of ours
        raise Refused("this spec cannot be written: it holds a part that is not the one of Vantage by that name")
    return said


def _written(value: Any, where: str) -> Any:
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float) and isfinite(value):
        return value
    if isinstance(value, tuple):
        return _folded([_written(item, f"{where}[{i}]") for i, item in enumerate(value)])
    if is_dataclass(value) and not isinstance(value, type):
        said = {f.name: _written(getattr(value, f.name), f"{where}.{f.name}") for f in fields(value)}
        return {KIND: type(value).__name__, **said}
    raise Refused(f"{where} is {value!r}, which cannot be written as JSON: only frozen parts and plain values can be")


def _folded(items: list[Any]) -> list[Any]:
    folded: list[Any] = []
    for item, run in groupby(items):
        n = len(list(run))
        folded += [{TIMES: n, OF: item}] if n > 1 and isinstance(item, dict) else [item] * n
    return folded


# ---- from JSON


def from_json(said: Any, *, most: int) -> ModelSpec:
    """The spec that was written; ``most`` is how many layers there can be (every layer has a tensor)."""
    return _Reader(most).part(said, (ModelSpec,), "spec", 0)


class _Reader:
    def __init__(self, most: int):
        self.most = most

    def part(self, said: Any, allowed: tuple[type, ...], where: str, depth: int) -> Any:
        names = {cls.__name__: cls for cls in allowed}
        if depth > DEEPEST:
            raise CheckpointError(f"{where}: nested {depth} levels deep, more than any real spec")
        kind = said.get(KIND) if isinstance(said, dict) else None
        if not isinstance(kind, str) or kind not in names:
            raise CheckpointError(f"{where}: {_shown(kind or said)} is no part that fits here{_near(str(kind), names)}")
        known = {f.name: f for f in fields(names[kind])}
        for name in said:
            if name not in known and name != KIND:
                raise CheckpointError(f"{where}: {kind} has no {name!r}{_near(name, known)}")
        for name, f in known.items():
            if name not in said and f.default is MISSING and f.default_factory is MISSING:
                raise CheckpointError(f"{where}: {kind} needs {name!r}")
        given = {n: self.field(said[n], f, names[kind], f"{where}.{n}", depth) for n, f in known.items() if n in said}
        try:
            return names[kind](**given)
        except (BadInput, Refused) as e:
            raise CheckpointError(f"{where}: {e}") from e

    def field(self, said: Any, f: Field[Any], owner: type, where: str, depth: int) -> Any:
        return self.value(said, _hints(owner)[f.name], f.name, where, depth)

    def value(self, said: Any, hint: Any, name: str, where: str, depth: int) -> Any:
        options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
        if isinstance(said, list):
            inside = next((typing.get_args(o) for o in options if typing.get_origin(o) is tuple), None)
            if inside is not None:
                return self.row(said, inside, name, where, depth)
        elif isinstance(said, dict):
            parts = tuple(cls for o in options for cls in _parts(o, name))
            if parts:
                return self.part(said, parts, where, depth + 1)
        elif any(_plain(said, o) for o in options):
            return said
        raise CheckpointError(f"{where} is {_shown(said)}; wanted {_wanted(options)}")

    def row(self, said: list[Any], inside: tuple[Any, ...], name: str, where: str, depth: int) -> tuple[Any, ...]:
        items: list[Any] = []
        for i, item in enumerate(said):
            times = 1
            if isinstance(item, dict) and set(item) == {TIMES, OF}:
                times, item = item[TIMES], item[OF]
                left = self.most - len(items)
                if isinstance(times, bool) or not isinstance(times, int) or not 1 <= times <= left:
                    raise CheckpointError(f"{where}[{i}]: {TIMES} is {_shown(times)}; wanted from 1 to {left}")
            items += [self.value(item, inside[0], name, f"{where}[{i}]", depth)] * times
        if Ellipsis not in inside and len(items) != len(inside):
            raise CheckpointError(f"{where} has {len(items)} entries; wanted {len(inside)}")
        return tuple(items)


@cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _parts(hint: Any, name: str) -> tuple[type, ...]:
    """The classes that may stand where a field says this."""
    if hint is Buildable:
        return BUILDABLE[name]
    return FITS.get(hint, (hint,) if isinstance(hint, type) and is_dataclass(hint) else ())


def _plain(said: Any, hint: Any) -> bool:
    """Whether this is a value of that kind: a whole number may stand for one with a fraction, a truth for neither."""
    if said is None or isinstance(said, (bool, str)):
        return hint is type(said)
    return isinstance(said, (int, float) if hint is float else int) and hint in (int, float) and abs(said) < LARGEST


def _wanted(options: Iterable[Any]) -> str:
    return " or ".join("nothing" if o is type(None) else str(getattr(o, "__name__", o)) for o in options)


def _near(name: str, valid: Iterable[str]) -> str:
    valid = list(valid)
    near = difflib.get_close_matches(name, valid, 1, 0.5)
    return f" (near: {near[0]!r})" if near else f"; there are {', '.join(valid) or 'none'}"


def _shown(value: Any) -> str:
    said = repr(value)
    return said if len(said) <= 60 else said[:57] + "..."
