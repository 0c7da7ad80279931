"""What there is of each kind of part: an entry for every part, and the registry of its kind.

An entry carries what others need to know of a part: its name, how a page offers it, how the conformance matrix tries
it. It stands at the end of the part's own file, and is one line in the registry of its package. Parts from outside the
package come in through ``vantage.register``.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, final

from vantage.errors import BadInput, unknown
from vantage.spec.plugins import load_plugins

T = TypeVar("T")
Part = TypeVar("Part", covariant=True)


# ---- the parameters of a part


@final
@dataclass(frozen=True)
class Fit:
    """What a part is made for: a context of so many positions, and so many dimensions of a head that can turn."""

    length: int
    rotary_dim: int


@final
@dataclass(frozen=True)
class ParameterInfo:
    """What a field's name, type and default do not say; made by ``parameter``."""

    help: str
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    default: int | float | str | None = None
    name: str | None = None
    read: Callable[[Any, Fit], Any] | None = None


KEY = "vantage"  # of a field's metadata


def parameter(
    help: str,
    low: float | None = None,
    high: float | None = None,
    *,
    choices: tuple[str, ...] = (),
    default: int | float | str | None = None,
    name: str | None = None,
    read: Callable[[Any, Fit], Any] | None = None,
) -> dict[str, ParameterInfo]:
    """The ``metadata`` of a field that users may set: ``field(default=3, metadata=parameter("…", 1, 9))``.

    Bounds keep a picture finite and a table small; what a part cannot be it refuses by itself, in ``__post_init__``.
    ``default`` is what a form shows where the field has no default that can be shown, and ``read`` makes the field's
    value of what was filled in. ``name``: where two parts that are set together have a field of the same name. A field
    without this is not offered.
    """
    return {KEY: ParameterInfo(help, low, high, choices, default, name, read)}


def parameters(config: type) -> dict[str, ParameterInfo]:
    """The fields of a part that users may set, by name."""
    return {f.name: f.metadata[KEY] for f in dataclasses.fields(config) if KEY in f.metadata}


# ---- entries


@final
@dataclass(frozen=True)
class MatrixSize:
    """The small models of the conformance matrix, for which ``variants`` are made."""

    heads: int
    head_dim: int
    length: int  # of the longest row
    original: int  # up to which frequencies that depend on the length stay as they are
    reach: int  # of windows and chunks
    prefix: int
    norm: Any  # a norm, for parts that hold one


@final
@dataclass(frozen=True)
class Refusal:
    """Combinations with this part that are refused: for these values of other factors, in these words."""

    where: Mapping[str, tuple[str, ...]]
    because: str


@final
@dataclass(frozen=True)
class Entry(Generic[Part]):
    """All that others need to know of a part."""

    name: str
    config: type[Part]
    title: str = ""
    summary: str = ""
    default: Callable[[int | None], Part] | None = None  # for this max_length, or so many heads; None: config()
    components: Mapping[str, tuple[type, ...]] | None = None  # which classes stand where in a spec; None: its parts()
    variants: Mapping[str, Callable[[MatrixSize], Part]] | None = (
        None  # for the conformance matrix; None: the default alone, under its name
    )
    refusals: tuple[Refusal, ...] = ()
    compared: bool = True  # competes in `vantage compare`
    randomised: bool = True  # and so does its randomised form

    def make(self, number: int | None = None) -> Part:
        """The part with its defaults: an encoding for a max_length, an attention for so many heads."""
        return self.config() if self.default is None else self.default(number)


def entries_of(package: str, *modules: str) -> tuple[Entry[Any], ...]:
    """The ``ENTRY`` of each of these modules."""
    return tuple(importlib.import_module(f"{package}.{module}").ENTRY for module in modules)


# ---- registries


class Registry(Generic[T]):
    """The entries of one kind of part, by name, ours first.

    ``what`` is the kind in words. A part from outside must have the attributes in ``needs`` and pass ``check``.
    """

    def __init__(
        self,
        what: str,
        entries: Iterable[Entry[T]] = (),
        *,
        needs: tuple[str, ...] = (),
        frozen: bool = True,
        check: Callable[[Entry[T]], None] | None = None,
    ):
        self.what = what
        self._entries = {entry.name: entry for entry in entries}
        self._own = frozenset(self._entries)
        self._needs, self._frozen, self._check = needs, frozen, check

    def __getitem__(self, name: str) -> Entry[T]:
        load_plugins()
        if name not in self._entries:
            raise BadInput(unknown(self.what, name, self._entries))
        return self._entries[name]

    def __contains__(self, name: object) -> bool:
        load_plugins()
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        load_plugins()
        return iter(tuple(self._entries))

    def __len__(self) -> int:
        load_plugins()
        return len(self._entries)

    def entries(self) -> tuple[Entry[T], ...]:
        return tuple(self._entries[name] for name in self)

    def classes(self) -> tuple[type[T], ...]:
        """The classes that may stand in a spec, each once."""
        return tuple(dict.fromkeys(entry.config for entry in self.entries()))

    def name_of(self, config: type) -> str | None:
        """The name of the first entry with this class."""
        return next((entry.name for entry in self.entries() if entry.config is config), None)

    def from_outside(self) -> tuple[Entry[T], ...]:
        """The entries that are not the package's own."""
        return tuple(entry for entry in self.entries() if entry.name not in self._own)

    def register(self, entry: Entry[T]) -> None:
        """Take in a part from outside. What it lacks is said by name."""
        taken = self._entries.get(entry.name)
        if taken is not None and not _same_source(taken.config, entry.config):
            raise BadInput(
                f"a {self.what} is called {entry.name!r} already ({_path(taken.config)}): choose another name"
            )
        self._check_class(entry)
        if self._check is not None:
            self._check(entry)
        self._entries[entry.name] = entry

    def _check_class(self, entry: Entry[T]) -> None:
        who = f"{_path(entry.config)}, registered as the {self.what} {entry.name!r},"
        if not isinstance(entry.config, type):
            raise BadInput(f"{entry.config!r} is no class: register the class of a {self.what}, not one of its objects")
        if self._frozen and not is_frozen(entry.config):
            raise BadInput(f"{who} is no frozen dataclass: write @dataclass(frozen=True) above it")
        for name in self._needs:
            if name not in dir(entry.config):
                raise BadInput(f"{who} has no {name}: every {self.what} needs {', '.join(self._needs)}")

    def unregister(self, name: str) -> None:
        """Take out a part that came from outside."""
        if name in self._own or name not in self._entries:
            raise BadInput(f"no {self.what} {name!r} was registered from outside")
        del self._entries[name]


def is_frozen(config: type) -> bool:
    """Whether this is a frozen dataclass: what may stand in a spec."""
    return dataclasses.is_dataclass(config) and config.__dataclass_params__.frozen  # pyright: ignore[reportAttributeAccessIssue] (every dataclass has them)


def _path(config: Any) -> str:
    return f"{getattr(config, '__module__', '')}.{getattr(config, '__qualname__', config)}"


def _same_source(old: type, new: type) -> bool:
    """A module that is run once more (in a notebook) replaces its own parts."""
    return _path(old) == _path(new)
