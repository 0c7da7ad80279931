"""Matplotlib's figures, which belong to no window: made, and written to files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from vantage.errors import BadInput, Refused
from vantage.figures.html import page, picture

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = (".png", ".svg", ".html")


def new_figure(width: float, height: float) -> Figure:
    """An empty figure, this many inches wide and high."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise Refused("pictures need matplotlib: pip install 'vantage[plot]'") from None

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def check_name(name: str) -> Path:
    """Where a picture goes. Asked before anything is computed."""
    path = Path(name)
    if path.suffix.lower() not in FORMATS:
        raise BadInput(f"{name}: a picture's name ends in {', '.join(FORMATS)}")
    try:
        if not path.parent.is_dir():
            raise BadInput(f"{name}: there is no folder {path.parent}")
        existed = path.exists()
        path.open("ab").close()  # only writing tells whether one may: folders, rights, names too long
        if not existed:
            path.unlink()
    except (OSError, ValueError) as e:
        raise BadInput(f"{name:.200}: no picture can be written there: {e.args[-1]}") from None
    return path


def save(figure: Figure, name: str, title: str, body: str = "") -> None:
    """As PNG, SVG, or a page with ``body`` below the picture."""
    path = check_name(name)
    try:
        if path.suffix.lower() == ".html":
            path.write_text(page(title, picture(figure) + body), encoding="utf-8")
        else:
            figure.savefig(path, dpi=150, bbox_inches="tight")
    except OSError as e:
        raise Refused(f"{name}: {e}") from e
