"""The numbers of a figure as tables and as CSV."""

from __future__ import annotations

import csv as _csv
import io
from collections.abc import Sequence
from dataclasses import dataclass

from vantage.figures.chart import Bars, Figure, Heat, Line, Lines, Panel


@dataclass(frozen=True)
class PanelTable:
    """The numbers of one panel."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str | float | None, ...], ...]


def table(figure: Figure | Panel) -> tuple[PanelTable, ...]:
    """What a figure shows, as numbers: a table for each panel."""
    panels = figure.panels if isinstance(figure, Figure) else (figure,)
    return tuple(_table(panel) for panel in panels)


def csv(figure: Figure | Panel) -> str:
    """The tables of a figure as CSV, one below the other with an empty line between."""
    out = io.StringIO()
    write = _csv.writer(out, lineterminator="\n")
    for i, one in enumerate(table(figure)):
        if i:
            write.writerow([])
        write.writerow([f"# {one.title}"])
        write.writerow(one.header)
        write.writerows(["" if cell is None else cell for cell in row] for row in one.rows)
    return out.getvalue()


def _table(panel: Panel) -> PanelTable:
    if isinstance(panel, Lines):
        rows = [_point(line, i) for line in panel.lines for i in range(len(line.x))]
        return PanelTable(panel.title, ("line", panel.x_label, panel.y_label, "low", "high"), tuple(rows))
    if isinstance(panel, Bars):
        header = ("", *(name for name, _ in panel.series))
        bars = [(label, *(values[i] for _, values in panel.series)) for i, label in enumerate(panel.labels)]
        return PanelTable(panel.title, header, tuple(bars))
    if isinstance(panel, Heat):
        across = panel.x_ticks or tuple(str(j) for j in range(max(len(row) for row in panel.values)))
        down = panel.y_ticks or tuple(str(i) for i in range(len(panel.values)))
        cells = [(name, *row) for name, row in zip(down, panel.values, strict=True)]
        return PanelTable(panel.title, (f"{panel.y_label} \\ {panel.x_label}", *across), tuple(cells))
    longest = max(len(samples) for _, samples in panel.samples)
    names = tuple(name for name, _ in panel.samples)
    drawn = [(i, *(_at(samples, i) for _, samples in panel.samples)) for i in range(longest)]
    return PanelTable(panel.title, ("sample", *names), tuple(drawn))


def _point(line: Line, i: int) -> tuple[str | float | None, ...]:
    around = [None if band is None else band[i] for band in (line.low, line.high)]
    return (line.name, line.x[i], line.y[i], *around)


def _at(samples: Sequence[float], i: int) -> float | None:
    return samples[i] if i < len(samples) else None
