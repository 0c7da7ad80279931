"""A part of your own: ``vantage.register`` puts it into the same registry as ours.

    @vantage.register("position", "fading", title="Fading", summary="Scores fade with the distance.")
    @dataclass(frozen=True)
    class Fading: ...

From then on it works wherever one of ours does. ``python -m vantage.parts`` writes docs/parts.md.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from vantage.errors import BadInput, unknown
from vantage.spec.plugins import plugins_wanted
from vantage.spec.registry import Entry, MatrixSize, Refusal, Registry, parameters
from vantage.spec.source_names import DeclaredEntry, DeclaredRegistry, Unreadable, declared_registry

C = TypeVar("C", bound=type)

# kind -> where its registry is. Imported when it is asked for: a mask needs no training.
KINDS = {
    "position": "vantage.position:ENCODINGS",
    "scaling": "vantage.position.scaling:SCALINGS",
    "attention": "vantage.attention:ATTENTIONS",
    "output": "vantage.attention:OUTPUT_PARTS",
    "indexer": "vantage.attention:INDEXERS",
    "mask": "vantage.spec.mask_registry:MASKS",
    "cache": "vantage.cache.kinds:CACHES",
    "kernel": "vantage.kernels:KERNELS",
    "normaliser": "vantage.spec.normalisers:NORMALISERS",
    "feed-forward": "vantage.model.parts:FEED_FORWARDS",
    "norm": "vantage.model.parts:NORM_PARTS",
    "task": "vantage.training.tasks:TASKS",
    "optimiser": "vantage.training.optimise:OPTIMISERS",
}
# What else may come from outside: families, which are no parts of a model but say how a checkpoint becomes one.
REGISTRIES = {**KINDS, "family": "vantage.families.registry:FAMILIES"}


class TakesEntries(Protocol):
    """What there is of one kind, and may come from outside."""

    def register(self, entry: Entry[Any]) -> None: ...


def registry(kind: str) -> Registry[Any]:
    """The registry of a kind of part."""
    return _imported_registry(kind, KINDS)


def _imported_registry(kind: str, places: Mapping[str, str]) -> Any:
    if kind not in places:
        raise BadInput(unknown("kind of part", kind, places))
    module, _, name = places[kind].partition(":")
    return getattr(importlib.import_module(module), name)


def _declared(kind: str) -> DeclaredRegistry | None:
    """A registry as our sources declare it, none of its parts imported. ``None`` where the registry itself must be
    asked: it is imported by now, or parts come from outside."""
    if _imported(kind) or plugins_wanted():
        return None
    try:
        return declared_registry(KINDS[kind])
    except Unreadable:
        return None


def _imported(kind: str) -> bool:
    return KINDS[kind].partition(":")[0] in sys.modules


def known_entries(kind: str) -> Sequence[Entry[Any] | DeclaredEntry] | None:
    """The parts of a kind, as far as they are known without importing them. ``None``: some are yet to come from
    outside."""
    if (declared := _declared(kind)) is not None:
        return declared.entries
    return registry(kind).entries() if _imported(kind) else None


def check_part_name(kind: str, name: str) -> None:
    """Refuse a name that no part of this kind has, before anything heavy is imported if that can be."""
    declared = _declared(kind)
    if declared is None:
        registry(kind)[name]
    elif name not in (names := [entry.name for entry in declared.entries]):
        raise BadInput(unknown(declared.what, name, names))


def register(
    kind: str,
    name: str,
    config: Any = None,
    *,
    title: str = "",
    summary: str = "",
    default: Callable[[int | None], Any] | None = None,
    components: Mapping[str, tuple[type, ...]] | None = None,
    variants: Mapping[str, Callable[[MatrixSize], Any]] | None = None,
    refusals: tuple[Refusal, ...] = (),
    compared: bool = True,
    randomised: bool = True,
) -> Any:
    """Register a class as a part of your own, under a name: as a call, or as a decorator above the class.

    ``kind`` is one of "position", "scaling", "attention", "mask", "cache", "kernel", "feed-forward", "norm", "task" and
    "optimiser". ``title`` and ``summary`` are shown to users, ``default`` creates it if it cannot be created without
    arguments, ``variants`` and ``refusals`` are for ``vantage check``; ``vantage.spec.registry.Entry`` has them
    all. Returns the class.

    With ``kind="family"`` it is a model family: ``name`` is the ``model_type`` of the checkpoints that it reads, and
    ``config`` a ``vantage.families.family.Family``.
    """
    if not isinstance(name, str) or not name:
        raise BadInput(f"name={name!r}: give the name that users write, as in register({kind!r}, 'mine')")
    parts: TakesEntries = _imported_registry(kind, REGISTRIES)

    def put(config: C) -> C:
        entry = Entry(name, config, title, summary, default, components, variants, refusals, compared, randomised)
        parts.register(entry)
        return config

    return put if config is None else put(config)


def page() -> str:
    """docs/parts.md: a table for each kind of part, read off the registries."""
    head = [
        "# Parts",
        "",
        "All parts there are, by kind. This file is generated from the registries (`python -m vantage.parts >",
        "docs/parts.md`); a part of your own stands in the same registries, see [the architecture](architecture.md).",
    ]
    tables = [table(kind, registry(kind)) for kind in KINDS]
    return "\n".join([*head, *(line for lines in tables for line in ("", *lines))]) + "\n"


def table(kind: str, parts: Registry[Any]) -> list[str]:
    rows = [("name", "class", "what it is", "parameters")]
    for entry in parts.entries():
        what = ": ".join(word for word in (entry.title, entry.summary) if word)
        names = ", ".join(f"`{name}`" for name in (parameters(entry.config) if is_config(entry.config) else ()))
        rows.append((f"`{entry.name}`", f"`{entry.config.__name__}`", what, names))
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return [f"## {kind}", "", lines[0], "|---" * len(rows[0]) + "|", *lines[1:]]


def is_config(part: type) -> bool:
    return "__dataclass_fields__" in dir(part)


if __name__ == "__main__":
    sys.stdout.write(page())
