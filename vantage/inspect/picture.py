"""Pictures that stay readable: large matrices are reduced by the maximum of each tile, never by skipping."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from vantage.errors import BadInput, Refused
from vantage.inspect.html import page, picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SIDE = 512  # cells along a side at most: each has a pixel of its own, so none is skipped in drawing
FORMATS = (".png", ".svg", ".html")
LABELS = 48  # more tokens than this along a side cannot be read


class Reduced(NamedTuple):
    """A matrix small enough to be seen, and what was done to it."""

    cells: Tensor
    note: str  # empty: nothing


def reduced(matrix: Tensor, side: int = SIDE) -> Reduced:
    """At most side x side cells: each the entry of largest size in its tile, so that one bright cell stays bright."""
    rows, columns = matrix.shape
    if rows <= side and columns <= side:
        return Reduced(matrix, "")
    to = (min(rows, side), min(columns, side))
    x = matrix.float().nan_to_num(neginf=float("-inf"))[None, None]
    high = F.adaptive_max_pool2d(x, to)[0, 0]
    if bool((matrix < 0).any()):  # scores: keep whichever is further from 0
        low = -F.adaptive_max_pool2d(-x.masked_fill(x == float("-inf"), 0.0), to)[0, 0]
        high = torch.where(high.abs() >= low.abs(), high, low).where(high > float("-inf"), high)
    tile = f"{-(-rows // to[0])} x {-(-columns // to[1])}"
    return Reduced(high, f"{rows:,} x {columns:,} cells reduced by maximum over tiles of {tile}")


def heat(axes: Axes, matrix: Tensor, *, title: str = "", signed: bool = False, side: int = SIDE) -> Any:
    """A heat map. Weights are drawn on a square-root scale, so that small ones are seen; signed values around 0."""
    from matplotlib.colors import PowerNorm

    cells, note = reduced(matrix, side)
    data = cells.masked_fill(cells == float("-inf"), float("nan")).float().cpu().numpy()
    extent = (-0.5, matrix.shape[1] - 0.5, matrix.shape[0] - 0.5, -0.5)
    shared = {"aspect": "auto", "extent": extent, "interpolation": "nearest"}
    if signed:
        finite = cells[cells.isfinite()]
        top = float(finite.abs().max()) if len(finite) else 1.0
        image = axes.imshow(data, cmap="RdBu_r", vmin=-(top or 1.0), vmax=top or 1.0, **shared)
        axes.set_facecolor("0.85")
    else:
        image = axes.imshow(data, cmap="magma", norm=PowerNorm(0.5, 0.0, max(1e-9, float(cells.max()))), **shared)
    axes.set_title("\n".join(line for line in (title, note) if line), fontsize=9)
    return image


def token_ticks(axes: Axes, queries: list[str], keys: list[str]) -> None:
    """Tokens along the sides, where they can be read."""
    if 0 < len(keys) <= LABELS:
        axes.set_xticks(range(len(keys)), [_plain(t) for t in keys], rotation=90, fontsize=7)
    if 0 < len(queries) <= LABELS:
        axes.set_yticks(range(len(queries)), [_plain(t) for t in queries], fontsize=7)


def _plain(token: str) -> str:
    """A token that no font stumbles over and no formula is made of."""
    shown = token.replace("\n", "\\n").replace(" ", "␣") or "∅"
    return "".join(c if c.isprintable() and ord(c) < 0x2500 else "□" for c in shown.replace("␣", "_")).replace(
        "$", r"\$"
    )


def new_figure(width: float, height: float) -> Figure:
    """A figure that belongs to no window."""
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
        there = path.exists()
        path.open("ab").close()  # only writing tells whether one may: folders, rights, names too long
        if not there:
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
