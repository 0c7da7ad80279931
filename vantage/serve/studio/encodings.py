"""Every position encoding as a page can offer it: parameters from the part's own fields, and the part they make."""

from __future__ import annotations

import math
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, cast, final

import torch

from vantage.errors import BadInput, unknown
from vantage.position import ENCODINGS, SAMPLERS, Randomised, Rope, encoding
from vantage.position.scaling import SCALINGS
from vantage.spec.parts import Encoding
from vantage.spec.registry import Entry, Fit, parameters
from vantage.studies.study import Parameter, Value

YES_NO = {"no": False, "yes": True}
AUTO = {"auto": None, **YES_NO}  # "auto": as the attention is

Values = Mapping[str, Value]  # every parameter with its value
Make = Callable[[Values, Fit], Encoding]


@final
@dataclass(frozen=True)
class Choice:
    """An encoding that can be shown."""

    name: str
    title: str
    about: str
    parameters: tuple[Parameter, ...]
    make: Make

    def values(self, values: Values) -> dict[str, Value]:
        """Every parameter with its value: the one that was filled in, or its default."""
        known = {parameter.name: parameter for parameter in self.parameters}
        for name in values:
            if name not in known:
                raise BadInput(f"{self.name} has no parameter {name[:64]!r}: it has {', '.join(known) or 'none'}")
        return {name: read(p, values[name]) if name in values else p.default for name, p in known.items()}

    def encoding(self, values: Values, fit: Fit) -> Encoding:
        return self.make(self.values(values), fit)


def choices() -> dict[str, Choice]:
    """All that can be offered, by name: what the registries hold, RoPE with each frequency rule behind it."""
    offers: list[Choice] = []
    for entry in ENCODINGS.entries():
        offers.append(_plain(entry))
        if entry.config is Rope:
            offers += [_scaled(entry, rule) for rule in SCALINGS.entries()]
    offers.append(_randomised())
    return {choice.name: choice for choice in offers}


def choice_of(name: str) -> Choice:
    known = choices()
    if name not in known:
        raise BadInput(unknown("position encoding", name, known))
    return known[name]


def make_encoding(name: str, values: Values, fit: Fit) -> Encoding:
    """The encoding of that name. A table of whose rows nothing is said has one for every position of the context."""
    choice = choice_of(name)
    if not values and name in ENCODINGS:
        return encoding(name, max_length=fit.length)
    if "max_length" not in values and any(p.name == "max_length" for p in choice.parameters):
        values = {**values, "max_length": fit.length}
    return choice.encoding(values, fit)


# ---- parameters from a part's fields


def offered(part: type) -> tuple[Parameter, ...]:
    """The fields of a part that users may set."""
    hints, infos = typing.get_type_hints(part), parameters(part)
    offers: list[Parameter] = []
    for f in fields(part):
        if f.name not in infos:
            continue
        info, words, own = infos[f.name], _words(hints[f.name]), cast(Any, f.default)
        if words:
            default: Any = next(word for word, value in words.items() if value is own)
        elif info.default is not None:
            default = info.default
        else:
            default = float(own) if hints[f.name] is float else own
        choices = tuple(words) or info.choices
        offers.append(Parameter(info.name or f.name, default, info.help, info.low, info.high, choices))
    return tuple(offers)


def _words(hint: Any) -> Mapping[str, bool | None]:
    """The words for the values of a field that holds a truth; empty for any other."""
    return YES_NO if hint is bool else AUTO if hint == (bool | None) else {}


def read(parameter: Parameter, value: Value) -> Value:
    """As the parameter reads it, but nothing is cut off: 3.5 is no whole number."""
    if isinstance(value, bool) or (isinstance(value, float) and not math.isfinite(value)):
        raise BadInput(f"{parameter.name} is {value}; it must be a number or a word")
    if isinstance(parameter.default, int) and isinstance(value, float) and value != int(value):
        raise BadInput(f"{parameter.name} is {value}; it must be a whole number")
    if isinstance(value, str) and len(value) > 1000:
        raise BadInput(f"{parameter.name} has {len(value):,} characters; it may have 1,000")
    return parameter.read(value)


def _fields(part: type, values: Values, fit: Fit) -> dict[str, Any]:
    """The values that belong to this part, under the names of its fields and of their types."""
    hints = typing.get_type_hints(part)
    own: dict[str, Any] = {}
    for name, info in parameters(part).items():
        value: Any = values[info.name or name]
        words = _words(hints[name])
        own[name] = words[value] if words else value if info.read is None else info.read(value, fit)
    return own


# ---- the encodings they make


def _plain(entry: Entry[Encoding]) -> Choice:
    def make(values: Values, fit: Fit) -> Encoding:
        return entry.config(**_fields(entry.config, values, fit))

    return Choice(entry.name, entry.title or entry.name, entry.summary, offered(entry.config), make)


def _scaled(rope: Entry[Encoding], rule: Entry[Any]) -> Choice:
    def make(values: Values, fit: Fit) -> Encoding:
        turned = Fit(fit.length, int(fit.rotary_dim * float(values["share"])))
        return Rope(**_fields(Rope, values, fit), scaling=rule.config(**_fields(rule.config, values, turned)))

    parameters = (*offered(Rope), *offered(rule.config))
    return Choice(
        f"{rope.name}-{rule.name}", f"{rope.title}, {rule.title or rule.name}", rule.summary, parameters, make
    )


def _randomised() -> Choice:
    def make(values: Values, fit: Fit) -> Encoding:
        high = int(values["high"])
        inner = make_encoding(str(values["inner"]), {}, Fit(high, fit.rotary_dim))
        return Randomised(inner, high, torch.Generator().manual_seed(int(values["seed"])))

    inside = [entry.name for entry in ENCODINGS.entries() if entry.randomised]
    inside.sort(key=lambda name: name != "rope")  # the usual one first
    parameters = (
        Parameter("inner", inside[0], "the encoding that reads the drawn positions", choices=tuple(inside)),
        Parameter("high", 2048, "positions are drawn below it", 2, 4096),
        Parameter("seed", 0, "of the draws", 0, 2**31 - 1),
    )
    entry = SAMPLERS["randomised"]
    return Choice(entry.name, entry.title, entry.summary, parameters, make)
