"""What a study is: the document's statement, a run with the library's real parts, and a verdict."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from vantage.errors import BadInput
from vantage.figures import Figure, Real

Value = int | float | str
Values = Mapping[str, Value]
Verdict = Literal["agrees", "erratum", "mixed"]
Progress = Callable[[float, str], None]  # the share that is done, and what is being done


@dataclass(frozen=True)
class Parameter:
    """What a user may change, with its bounds: a number between ``low`` and ``high``, or one of ``choices``."""

    name: str
    default: Value
    help: str
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()

    def read(self, text: str | Value) -> Value:
        """``given`` as this parameter's type, or an error that says what is allowed."""
        if self.choices:
            if text not in self.choices:
                raise BadInput(f"{self.name} is {text!r}; it may be one of {', '.join(self.choices)}")
            return text
        try:
            value = type(self.default)(text)
            if isinstance(text, float) and value != text:  # 3.5 where a whole number is wanted
                raise ValueError(text)
        except (TypeError, ValueError, OverflowError) as error:
            raise BadInput(f"{self.name} is {text!r}; it must be {_kind(self.default)}") from error
        if isinstance(value, str):
            return value
        low, high = self.low, self.high
        if not math.isfinite(value) or (low is not None and value < low) or (high is not None and value > high):
            raise BadInput(f"{self.name} is {value}; it must be between {low} and {high}")
        return value


def check_parameter_names(tag: str, given: Iterable[str], known: Collection[str]) -> None:
    """Refuse a name that no parameter of the study has."""
    for name in given:
        if name not in known:
            raise BadInput(f"{tag} has no parameter {name!r}; it has {', '.join(known) or 'none'}")


def _kind(default: Value) -> str:
    return {int: "a whole number", float: "a number", str: "text"}[type(default)]


@dataclass(frozen=True)
class Number:
    """One thing that was found, beside what the document says about it (None: it says nothing)."""

    what: str
    ours: int | Real | str
    document: int | Real | str | None = None
    agrees: bool | None = None
    interval: tuple[Real, Real] | None = None  # of 95 %


@dataclass(frozen=True)
class Result:
    """``verdict``: the document agrees, is wrong in a way that ``words`` says (an erratum), or agrees in part."""

    verdict: Verdict
    words: str
    numbers: tuple[Number, ...]
    figures: tuple[Figure, ...]


@dataclass(frozen=True)
class Study:
    tag: str
    title: str
    sources: tuple[str, ...]  # S0 to S17: vantage/studies/sources.py names them
    statement: str  # what the document says, in our words
    explanation: str  # two paragraphs that a student can follow, parted by an empty line
    run: Callable[[Values, Progress], Result]
    parameters: tuple[Parameter, ...] = ()
    seconds: float = 1.0  # about, on two cores, with the defaults
    trains: bool = False  # it trains models: not among the quick ones
    needs: tuple[str, ...] = ()  # models from `vantage pull`

    def values(self, values: Mapping[str, str | Value]) -> Values:
        """Every parameter with its value: the given one, or its default. An unknown name is refused."""
        known = {parameter.name: parameter for parameter in self.parameters}
        check_parameter_names(self.tag, values, known)
        return {name: p.read(values[name]) if name in values else p.default for name, p in known.items()}

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><th>{html.escape(p.name)}</th><td>{html.escape(str(p.default))}</td><td>{html.escape(p.help)}</td></tr>"
            for p in self.parameters
        )
        head = "<thead><tr><th>parameter</th><th>default</th><th>what it is</th></tr></thead>"
        table = f"<table>{head}<tbody>{rows}</tbody></table>" if rows else ""
        title = html.escape(f"{self.tag} {self.title}")
        return f"<div><h3>{title}</h3><p>{html.escape(self.statement)}</p>{table}</div>"


def silent(share: float, doing: str) -> None:
    """For a caller who wants no progress."""


def describe_study(study: Study) -> dict[str, Any]:
    """A study as plain data, before it is run."""
    return {
        "tag": study.tag,
        "title": study.title,
        "sources": list(study.sources),
        "statement": study.statement,
        "explanation": study.explanation,
        "parameters": [asdict(parameter) for parameter in study.parameters],
        "seconds": study.seconds,
        "trains": study.trains,
        "needs": list(study.needs),
    }
