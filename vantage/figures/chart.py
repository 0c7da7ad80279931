"""Charts as data: what is drawn, apart from who draws it. The studio's page draws them in colours of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal


class NullUnlessFinite:
    """A note for who writes a schema of our JSON: JSON has no nan and no infinity, so null stands there."""

    def __get_pydantic_json_schema__(self, core: Any, handler: Any) -> dict[str, Any]:
        return {"anyOf": [handler(core), {"type": "null"}]}


Real = Annotated[float, NullUnlessFinite()]


@dataclass(frozen=True)
class Line:
    name: str
    x: Sequence[float]
    y: Sequence[Real]
    low: Sequence[Real] | None = None  # a band around it: the interval
    high: Sequence[Real] | None = None
    look: Literal["solid", "dashed", "dots"] = "solid"


@dataclass(frozen=True)
class Lines:
    title: str
    x_label: str
    y_label: str
    lines: tuple[Line, ...]
    log_x: bool = False
    log_y: bool = False
    marks: tuple[tuple[str, float], ...] = ()  # horizontal lines with their names: chance, the document's value
    kind: Literal["lines"] = "lines"


@dataclass(frozen=True)
class Bars:
    """One group of bars for each name in ``series``, all over the same ``labels``."""

    title: str
    y_label: str
    labels: tuple[str, ...]
    series: tuple[tuple[str, Sequence[Real]], ...]
    low: tuple[Sequence[Real], ...] | None = None  # one for each series
    high: tuple[Sequence[Real], ...] | None = None
    log_y: bool = False
    kind: Literal["bars"] = "bars"


@dataclass(frozen=True)
class Heat:
    """A matrix in colours. None: an empty cell (minus infinity, nothing to see)."""

    title: str
    x_label: str
    y_label: str
    values: Sequence[Sequence[float | None]]
    x_ticks: tuple[str, ...] | None = None
    y_ticks: tuple[str, ...] | None = None
    diverging: bool = False  # the middle colour stands for 0
    written: bool = False  # the numbers stand in the cells
    kind: Literal["heat"] = "heat"


@dataclass(frozen=True)
class Histogram:
    title: str
    x_label: str
    samples: tuple[tuple[str, Sequence[float]], ...]
    bins: int = 40
    kind: Literal["histogram"] = "histogram"


Panel = Lines | Bars | Heat | Histogram


@dataclass(frozen=True)
class Figure:
    """One picture of one or more panels. ``name`` is a file name without its ending."""

    name: str
    caption: str
    panels: tuple[Panel, ...]

    def _repr_html_(self) -> str:
        from vantage.figures.drawing import notebook_html

        return notebook_html(self)
