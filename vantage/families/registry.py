"""Which family reads which checkpoint, by the ``model_type`` of its config.json.

Ours are whatever file of this folder has a FAMILY. Families from outside the package are registered:

    vantage.register("family", "sparrow", Family("sparrow", spec, links))

A config never causes an import: it can only name a family that is there by then.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vantage.errors import BadInput, CheckpointError, unknown
from vantage.families.family import Family
from vantage.spec.plugins import load_plugins
from vantage.spec.registry import Entry

PACKAGE = "vantage.families"


class FamilyRegistry:
    """Families by name, ours first. Ours are imported when they are asked for, those from outside are registered."""

    def __init__(self):
        self._from_outside: dict[str, Family] = {}

    def __getitem__(self, name: str) -> Family:
        family = self.get(name)
        if family is None:
            raise BadInput(unknown("family", name, self))
        return family

    def get(self, name: object) -> Family | None:
        """The family of this name, if there is one."""
        if not isinstance(name, str):
            return None
        own = _own_family(name)
        if own is not None:  # parts from outside need not be imported
            return own
        load_plugins()
        return self._from_outside.get(name)

    def __contains__(self, name: object) -> bool:
        return self.get(name) is not None

    def __iter__(self) -> Iterator[str]:
        load_plugins()
        return iter((*families(), *self._from_outside))

    def from_outside(self) -> tuple[Family, ...]:
        """The families that are not the package's own."""
        load_plugins()
        return tuple(self._from_outside.values())

    def register(self, entry: Entry[Any]) -> None:
        """Take in a family from outside: the ``config`` of the entry. What is wrong with it is said by name."""
        name, family = entry.name, entry.config
        if not isinstance(family, Family):
            raise BadInput(
                f"{family!r} is no family: register a vantage.families.family.Family, as in "
                f"register('family', {name!r}, Family({name!r}, spec, links))"
            )
        if family.name != name:
            raise BadInput(f"this family has the name {family.name!r}: register it under that, not as {name!r}")
        taken = _own_family(name) or self._from_outside.get(name)
        if taken is not None and not _same_source(taken, family):
            raise BadInput(f"a family is called {name!r} already ({taken.spec.__module__}): choose another name")
        for field in dataclasses.fields(entry):
            if field.name not in ("name", "config") and getattr(entry, field.name) != field.default:
                raise BadInput(f"a family is registered by its name alone: leave out {field.name}")
        self._from_outside[name] = family

    def unregister(self, name: str) -> None:
        """Take out a family that came from outside."""
        if name not in self._from_outside:
            raise BadInput(f"no family {name!r} was registered from outside")
        del self._from_outside[name]


FAMILIES = FamilyRegistry()


@functools.cache
def families() -> dict[str, Family]:
    """Every family of the package."""
    members = (_family_in(file) for file in _files())
    return {family.name: family for family in members if family is not None}


def family_of(config: dict[str, Any]) -> Family:
    """The family that reads a checkpoint with this config."""
    kind = config.get("model_type")
    family = FAMILIES.get(kind)
    if family is None:
        own = "a family of your own is registered first (vantage.register, --parts FILE)"
        raise CheckpointError(f"config.json: model_type: {unknown('family', kind, FAMILIES)}; {own}")
    return family


def _own_family(name: str) -> Family | None:
    if name in _files():  # most families have a file of their name: the others need not be imported
        own = _family_in(name)
        if own is not None and own.name == name:
            return own
    return families().get(name)


def _family_in(file: str) -> Family | None:
    return getattr(importlib.import_module(f"{PACKAGE}.{file}"), "FAMILY", None)


@functools.cache
def _files() -> tuple[str, ...]:
    return tuple(info.name for info in pkgutil.iter_modules([str(Path(__file__).parent)]))


def _same_source(old: Family, new: Family) -> bool:
    """A module that is run once more (in a notebook) replaces its own families."""
    return (old.spec.__module__, old.spec.__qualname__) == (new.spec.__module__, new.spec.__qualname__)
