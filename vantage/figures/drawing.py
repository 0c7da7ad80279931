"""Charts with matplotlib: as a Figure, as PNG, as SVG in the page's colours, and for a notebook.

SVG is drawn once for light and for dark paper: every colour that must follow the paper is written as a CSS variable.
"""

from __future__ import annotations

import base64
import io
import math
import re
import textwrap
from html import escape
from typing import TYPE_CHECKING, Any

from vantage.errors import BadInput, Refused
from vantage.figures.canvas import new_figure
from vantage.figures.chart import Bars, Figure, Heat, Histogram, Lines, Panel
from vantage.figures.heatmap import SIGNED, coloured
from vantage.figures.palette import LIGHT, PAPER

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawn

WIDE, HIGH = 4.4, 3.3  # inches of a panel: a telephone's width at the size of the type
TALL_ROW = 0.3  # inches of one row of a heat map with its numbers written in
TYPE = 9.5  # points
MARKERS = "os^Dv<>P"
DASHES: dict[str, Any] = {"solid": "-", "dashed": (0, (4, 2)), "dots": "none"}
INK, SOFT, RULE = "#1b1f25", "#545b67", "#d5d9e1"  # one step beside the page's own, to be told from other blacks
ON_DARK, ON_LIGHT = "#fefefe", "#010101"  # numbers in the cells of a heat map: the same on any paper
MAX_TICKS = 24  # names along a side of a heat map; more of them and only some are shown
LONG_LABEL = 14  # letters of a bar's name that still fit under it

# What SVG says instead of a colour: a variable of the page, and the colour where the page has none.
_VARIABLES = {
    **{colour: f"var(--s{i}, {colour})" for i, colour in enumerate(LIGHT)},
    INK: f"var(--ink, {INK})",
    SOFT: f"var(--soft, {SOFT})",
    RULE: f"var(--rule, {RULE})",
}
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', sans-serif"


# ---------------------------------------------------------------------------------------------------- matplotlib


def draw(figure: Figure | Panel, *, columns: int | None = None) -> Drawn:
    """A matplotlib figure with all panels, which belongs to no window."""
    panels = figure.panels if isinstance(figure, Figure) else (figure,)
    if not panels:
        raise BadInput("a figure without panels: there is nothing to draw")
    columns = columns or (len(panels) if len(panels) <= 3 else 2 if len(panels) == 4 else 3)
    rows = math.ceil(len(panels) / columns)
    high = max(_height(panel) for panel in panels)
    drawn = new_figure(WIDE * columns, high * rows)
    drawn.set_layout_engine("constrained", w_pad=0.07, h_pad=0.06)
    with _style():
        cells = drawn.subfigures(rows, columns, squeeze=False).flatten()
        for cell, panel in zip(cells, panels, strict=False):
            _paint(cell, panel)
    return drawn


def png(figure: Figure | Panel, *, dpi: int = 150) -> bytes:
    buffer = io.BytesIO()
    with _style():
        draw(figure).savefig(buffer, format="png", dpi=dpi, facecolor=PAPER[0])
    return buffer.getvalue()


def svg(figure: Figure | Panel, *, name: str = "", label: str = "", alone: bool = False) -> str:
    """An ``<svg>`` element to stand inside a page. ``name`` makes its ids its own among several of one page.

    ``label`` is what it is called where it is not seen. ``alone``: a file instead, which needs no page.
    """
    buffer = io.StringIO()
    with _style():
        drawn = draw(figure)
        drawn.savefig(
            buffer, format="svg", transparent=not alone, metadata=dict.fromkeys(("Date", "Creator", "Format"))
        )
    if alone:
        return buffer.getvalue()
    words = (figure.name, figure.caption) if isinstance(figure, Figure) else ("panel", figure.title)
    return _for_pages(buffer.getvalue(), name or words[0], label or words[1])


def notebook_html(figure: Figure) -> str:
    """A figure for a notebook, with its caption: as PNG, which every notebook shows.

    Without matplotlib it says what to install.
    """
    caption = escape(figure.caption)
    try:
        drawn = base64.b64encode(png(figure, dpi=100)).decode()
    except Refused as why:
        return f"<p><i>{escape(str(why))}</i></p><p>{caption}</p>"
    return f'<img style="max-width:100%" alt="{caption}" src="data:image/png;base64,{drawn}"><p>{caption}</p>'


def _for_pages(text: str, name: str, label: str) -> str:
    text = re.sub(r' (width|height)="[\d.]+pt"', "", text[text.index("<svg") :], count=2)
    text = text.replace("<svg", f'<svg role="img" aria-label="{escape(label)}"', 1)
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.DOTALL)
    prefix = re.sub(r"[^A-Za-z0-9]+", "-", name)
    text = re.sub(r'\b(id="|href="#|url\(#)', rf"\g<1>{prefix}-", text)
    text = re.sub(r'font-family: [^;"]*', f"font-family: {FONT}", text)
    text = re.sub(r'font: ([\d.]+px) [^;"]*', lambda m: f"font: {m[1]} {FONT}", text)  # as matplotlib 3.10 writes it
    text = re.sub(r"#[0-9a-f]{6}\b", lambda m: _VARIABLES.get(m[0], m[0]), text)
    return text.strip()


def _style() -> Any:
    """Settings for drawing, and as they were afterwards."""
    new_figure(1, 1)  # refuses in words where there is no matplotlib
    import matplotlib

    colours = {"text.color": INK, "axes.edgecolor": SOFT, "axes.labelcolor": SOFT, "grid.color": RULE}
    colours |= {"xtick.color": SOFT, "ytick.color": SOFT, "xtick.labelcolor": SOFT, "ytick.labelcolor": SOFT}
    sizes = dict.fromkeys(("font.size", "axes.labelsize", "legend.fontsize"), TYPE)
    sizes |= {"xtick.labelsize": TYPE - 1, "ytick.labelsize": TYPE - 1}
    plain = {"svg.fonttype": "none", "svg.hashsalt": "vantage", "axes.spines.top": False, "axes.spines.right": False}
    plain |= {"legend.frameon": False, "text.parse_math": False, "axes.unicode_minus": True}
    settings: dict[Any, Any] = {**colours, **sizes, **plain}
    return matplotlib.rc_context(settings)


# -------------------------------------------------------------------------------------------------------- panels


def _height(panel: Panel) -> float:
    if isinstance(panel, Heat) and panel.written:
        return max(HIGH, 1.2 + TALL_ROW * len(panel.values))
    return HIGH


def _paint(cell: Any, panel: Panel) -> None:
    axes = cell.subplots()
    cell.suptitle(_wrapped(panel.title, 50), x=0.02, ha="left", fontsize=TYPE, fontweight="bold")
    if isinstance(panel, Lines):
        _lines(axes, panel)
    elif isinstance(panel, Bars):
        _bars(axes, panel)
    elif isinstance(panel, Heat):
        _heat(cell, axes, panel)
    else:
        _histogram(axes, panel)
    handles, names = axes.get_legend_handles_labels()
    if len(names) > 1 or (names and isinstance(panel, Lines) and panel.marks):
        longest = max(len(name) for name in names)
        columns = min(len(names), max(1, 52 // (longest + 6)))
        cell.legend(handles, names, loc="outside lower center", ncols=columns)


def _wrapped(text: str, letters: int) -> str:
    return "\n".join(textwrap.wrap(text, letters)) or " "


def _lines(axes: Axes, panel: Lines) -> None:
    axes.grid(True, linewidth=0.7)
    for i, line in enumerate(panel.lines):
        colour, few = LIGHT[i % len(LIGHT)], len(line.x) <= 24
        marker = MARKERS[i % len(MARKERS)] if few or line.look == "dots" else None
        axes.plot(
            list(line.x),
            list(line.y),
            color=colour,
            linestyle=DASHES[line.look],
            marker=marker,
            markersize=4.5 if few else 3,
            linewidth=1.8,
            label=line.name,
        )
        if line.low is not None and line.high is not None:
            axes.fill_between(list(line.x), list(line.low), list(line.high), color=colour, alpha=0.15, linewidth=0)
    for i, (name, at) in enumerate(panel.marks):
        axes.axhline(at, color=SOFT, linewidth=1.2, linestyle=((0, (1, 2)), (0, (6, 2)), "-.")[i % 3], label=name)
    axes.set_xlabel(panel.x_label)
    axes.set_ylabel(panel.y_label)
    if panel.log_x:
        _log(axes, "x")
    elif all(float(x).is_integer() for line in panel.lines for x in line.x):
        from matplotlib.ticker import MaxNLocator

        axes.xaxis.set_major_locator(MaxNLocator(nbins=7, integer=True))
        _thousands(axes.xaxis)
    if panel.log_y:
        _log(axes, "y")
    else:
        _thousands(axes.yaxis)


def _log(axes: Axes, which: str) -> None:
    """Powers of ten as plain text: matplotlib would write them as formulas."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    if which == "x":
        axes.set_xscale("log")
    else:
        axes.set_yscale("log")
    axis = axes.xaxis if which == "x" else axes.yaxis
    low, high = sorted(axis.get_view_interval())
    axis.set_major_formatter(FuncFormatter(lambda value, _: _power(value)))
    few = low > 0 and high / low < 30  # hardly a power of ten: the steps between are named too
    between = FuncFormatter(lambda value, _: _power(value) if f"{value:.0e}"[0] in "25" else "")
    axis.set_minor_formatter(between if few else NullFormatter())


def _power(value: float) -> str:
    """A number on a logarithmic axis, short."""
    if 1e-3 <= value < 1e5:
        return f"{value:,g}"
    digits, _, power = f"{value:.0e}".partition("e")
    return f"{digits}e{int(power)}"


def _thousands(axis: Any) -> None:
    """Large numbers with commas."""
    from matplotlib.ticker import FuncFormatter

    if max(map(abs, axis.get_view_interval())) >= 1e4:
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))


def _bars(axes: Axes, panel: Bars) -> None:
    axes.grid(True, axis="y", linewidth=0.7)
    axes.set_axisbelow(True)
    n, wide = len(panel.series), 0.8 / max(1, len(panel.series))
    for i, (name, values) in enumerate(panel.series):
        at = [x + (i - (n - 1) / 2) * wide for x in range(len(panel.labels))]
        axes.bar(at, list(values), width=wide * 0.94, color=LIGHT[i % len(LIGHT)], label=name)
        if panel.low is not None and panel.high is not None:
            down = [max(0.0, v - low) for v, low in zip(values, panel.low[i], strict=True)]
            up = [max(0.0, high - v) for v, high in zip(values, panel.high[i], strict=True)]
            axes.errorbar(at, list(values), yerr=[down, up], fmt="none", ecolor=INK, elinewidth=1, capsize=2.5)
    labels = [_wrapped(label, LONG_LABEL) for label in panel.labels]
    crowded = len(labels) * max(len(part) for label in labels for part in label.split("\n")) > 56
    axes.set_xticks(range(len(labels)), labels, rotation=45 if crowded else 0, ha="right" if crowded else "center")
    axes.set_ylabel(panel.y_label)
    if panel.log_y:
        _log(axes, "y")
    else:
        _thousands(axes.yaxis)


def _heat(cell: Any, axes: Axes, panel: Heat) -> None:
    data = [[math.nan if value is None else float(value) for value in row] for row in panel.values]
    shown = [value for row in data for value in row if math.isfinite(value)] or [0.0]
    top = max(abs(min(shown)), abs(max(shown))) or 1.0
    low, high = (-top, top) if panel.diverging else (min(shown), max(shown))
    if low == high:
        low, high = min(low, 0.0), max(high, 0.0) or 1.0
    clean = [[value if math.isfinite(value) else math.nan for value in row] for row in data]
    image: Any = coloured(axes, clean, SIGNED if panel.diverging else "cividis", low, high)
    cell.colorbar(image, ax=axes, shrink=0.9).outline.set_visible(False)
    axes.set_xlabel(panel.x_label)
    axes.set_ylabel(panel.y_label)
    axes.spines[:].set_visible(False)
    _ticks(axes.set_xticks, panel.x_ticks, turned=True)
    _ticks(axes.set_yticks, panel.y_ticks)
    if panel.written:
        for i, row in enumerate(clean):
            for j, value in enumerate(row):
                if math.isfinite(value):
                    red, green, blue, _ = image.cmap(image.norm(value))
                    dark = 0.299 * red + 0.587 * green + 0.114 * blue < 0.5
                    axes.text(j, i, f"{value:.3g}", ha="center", va="center", color=ON_DARK if dark else ON_LIGHT)


def _ticks(put: Any, names: tuple[str, ...] | None, *, turned: bool = False) -> None:
    if names is None:
        return
    step = math.ceil(len(names) / MAX_TICKS)
    at = range(0, len(names), step)
    crowded = turned and (len(at) > 10 or len(at) * max(len(names[i]) for i in at) > 40)
    put(list(at), [names[i] for i in at], **({"rotation": 90} if crowded else {}))


def _histogram(axes: Axes, panel: Histogram) -> None:
    axes.grid(True, axis="y", linewidth=0.7)
    axes.set_axisbelow(True)
    low = min(min(samples) for _, samples in panel.samples)
    high = max(max(samples) for _, samples in panel.samples)
    edges = (low, high) if high > low else (low - 0.5, high + 0.5)
    for i, (name, samples) in enumerate(panel.samples):
        colour = LIGHT[i % len(LIGHT)]
        axes.hist(list(samples), bins=panel.bins, range=edges, color=colour, alpha=0.35, label=name)
        axes.hist(list(samples), bins=panel.bins, range=edges, color=colour, histtype="step", linewidth=1.4)
    axes.set_xlabel(panel.x_label)
    axes.set_ylabel("samples")
