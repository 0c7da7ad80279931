"""Running a study: its parameters read, its models there, its time taken, and what came of it as data."""

from __future__ import annotations

import html
import math
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, final

from vantage.errors import BadInput, Refused
from vantage.studies.registry import find
from vantage.studies.shared.models import require_models
from vantage.studies.study import Number, Progress, Result, Study, Value, Values, describe_study, silent


@final
@dataclass(frozen=True, repr=False)
class Outcome:
    """What a study found, and with which parameters."""

    study: Study
    values: Values
    result: Result
    seconds: float

    @property
    def tag(self) -> str:
        return self.study.tag

    @property
    def verdict(self) -> str:
        return self.result.verdict

    @property
    def numbers(self) -> dict[str, Value]:
        """What was found, by name."""
        return {number.what: number.ours for number in self.result.numbers}

    @property
    def command(self) -> str:
        """What repeats it: the parameters that are not as they come are said."""
        changed = [p for p in self.study.parameters if self.values[p.name] != p.default]
        return " ".join([f"vantage study run {self.tag}", *(f"--set {p.name}={self.values[p.name]}" for p in changed)])

    def to_dict(self) -> dict[str, Any]:
        """As plain data: what JSON can hold. A number that is not finite becomes null."""
        fields = {**describe_study(self.study), "values": dict(self.values), "seconds_taken": self.seconds}
        return _plain({**fields, **asdict(self.result)})

    def __repr__(self) -> str:
        lines = [f"{self.tag} {self.study.title}: {self.verdict}. {self.result.words}"]
        lines += [f"  {describe_number(number)}" for number in self.result.numbers]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        from vantage.studies.report import fragment

        return fragment(self)


def run(tag: str, /, *, progress: Progress = silent, **values: Value) -> Outcome:
    """Run the study of a tag. ``values`` are its parameters (``find(tag).parameters``); others are refused."""
    return conduct(find(tag), values, progress)


def conduct(study: Study, values: Mapping[str, str | Value], progress: Progress = silent) -> Outcome:
    """Run a study with these parameters."""
    read = study.values(values)
    try:
        require_models(*study.needs)
    except Refused as why:
        raise Refused(f"{study.tag}: {why}") from why
    began = time.perf_counter()
    result = study.run(read, progress)
    if not result.numbers:
        raise BadInput(f"{study.tag} found no numbers: a study's run gives at least one")
    return Outcome(study, read, result, time.perf_counter() - began)


def format_value(value: Value) -> str:
    """A number as it is printed everywhere: up to six digits that count."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.0f}" if 1e6 <= abs(value) < 1e15 else f"{value:.6g}"


def describe_number(number: Number) -> str:
    """A number in one line of text."""
    around = (
        "" if number.interval is None else f" [{format_value(number.interval[0])}, {format_value(number.interval[1])}]"
    )
    beside = "" if number.document is None else f"; the document: {format_value(number.document)}"
    word = {None: "", True: ", agrees", False: ", does not agree"}[number.agrees]
    return f"{number.what}: {format_value(number.ours)}{around}{beside}{word}"


class Listing(tuple[Study, ...]):
    """The studies in their order; a table where a notebook shows it."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "\n".join(f"{study.tag:<4} {study.title}" for study in self)

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><th>{study.tag}</th><td>{html.escape(study.title)}</td><td>{', '.join(study.sources)}</td></tr>"
            for study in self
        )
        return f"<table><thead><tr><th>tag</th><th>study</th><th>sources</th></tr></thead><tbody>{rows}</tbody></table>"


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
