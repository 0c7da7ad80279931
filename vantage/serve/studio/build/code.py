"""Frozen parts as Python that makes them again, and as TOML that ``vantage train`` reads."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

import vantage as vt
from vantage.checkpoints.spec_parts import REGISTRIES
from vantage.position import scaling
from vantage.spec.registry import Entry


def python(value: Any) -> str:
    """An expression with ``import vantage as vt`` before it. Fields that have their default are left out."""
    if is_dataclass(value) and not isinstance(value, type):
        arguments = ", ".join(f"{name}={python(one)}" for name, one in changed(value).items())
        return f"{_home(type(value))}{type(value).__name__}({arguments})"
    if isinstance(value, tuple):
        inside = ", ".join(python(one) for one in value)
        return f"({inside},)" if len(value) == 1 else f"({inside})"
    return repr(value)


def call(name: str, arguments: Mapping[str, Any]) -> str:
    """A call with an argument a line."""
    inside = "".join(f"    {key}={python(value)},\n" for key, value in arguments.items())
    return f"{name}(\n{inside})"


def toml(tables: Mapping[str, Mapping[str, Any]]) -> str:
    """Tables of plain values and parts; what is None is left out, as TOML has no word for it."""
    parts = []
    for name, table in tables.items():
        lines = [f"{key} = {_toml(value)}" for key, value in table.items() if value is not None]
        parts.append("\n".join([f"[{name}]", *lines]))
    return "\n\n".join(parts) + "\n"


def changed(part: Any) -> dict[str, Any]:
    """The fields that are not as they come."""
    values = {}
    for f in fields(part):
        value = getattr(part, f.name)
        default: Any = MISSING if f.default_factory is MISSING else f.default_factory()
        default = default if f.default is MISSING else f.default
        if default is MISSING or value != default:
            values[f.name] = value
    return values


def _home(cls: type) -> str:
    if cls.__module__ == scaling.__name__:
        return "vt.scaling."
    return "vt." if cls.__name__ in vt.__all__ else f"{cls.__module__}."


def imports(arguments: Mapping[str, Any]) -> str:
    """The lines that import what stands in these arguments and has no name in ``vantage`` itself."""
    homes = {_home(cls).removesuffix(".") for value in arguments.values() for cls in _classes(value)}
    return "".join(f"import {home}\n" for home in sorted(homes) if not home.startswith("vt"))


def _classes(value: Any) -> Iterator[type]:
    """Of the parts in this value, and of the one from outside that it names."""
    if isinstance(value, str):
        yield from (entry.config for entry in _from_outside() if entry.name == value)
    if is_dataclass(value) and not isinstance(value, type):
        yield type(value)
        for one in changed(value).values():
            yield from _classes(one)


def _word(cls: type) -> str:
    """What a part is called in the settings: ours like its class, one from outside as it was registered."""
    return next((entry.name for entry in _from_outside() if entry.config is cls), cls.__name__)


def _from_outside() -> Iterator[Entry[Any]]:
    return (entry for registry in REGISTRIES.values() for entry in registry.from_outside())


def _toml(value: Any) -> str:
    if is_dataclass(value) and not isinstance(value, type):
        table = {"is": _word(type(value)), **{k: v for k, v in changed(value).items() if v is not None}}
        return "{" + ", ".join(f"{key} = {_toml(one)}" for key, one in table.items()) + "}"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value)  # a basic string of TOML is written as JSON writes it
    if isinstance(value, tuple | list):
        return "[" + ", ".join(_toml(one) for one in value) + "]"
    return repr(value)
