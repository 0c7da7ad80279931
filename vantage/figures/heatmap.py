"""Heat maps that stay readable: large matrices are reduced by the maximum of each tile, never by skipping."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.image import AxesImage

SIDE = 512  # cells along a side at most: each has a pixel of its own, so none is skipped in drawing
SIGNED = "RdBu"  # below 0 red, above 0 blue, as in the studio's own charts
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


def coloured(
    axes: Axes,
    cells: Any,
    colours: str,
    low: float,
    high: float,
    *,
    power: float = 1.0,
    extent: tuple[float, float, float, float] | None = None,
) -> AxesImage:
    """Cells in colours from ``low`` to ``high``. ``power``: of the scale between; ``extent``: how they are numbered."""
    from matplotlib.colors import PowerNorm

    shared: dict[str, Any] = {"aspect": "auto", "interpolation": "nearest", "extent": extent, "cmap": colours}
    if power == 1.0:
        return axes.imshow(cells, vmin=low, vmax=high, **shared)
    return axes.imshow(cells, norm=PowerNorm(power, low, high), **shared)


def heat(axes: Axes, matrix: Tensor, *, title: str = "", signed: bool = False, side: int = SIDE) -> AxesImage:
    """A heat map. Weights are drawn on a square-root scale, so that small ones are seen; signed values around 0."""
    cells, note = reduced(matrix, side)
    data = cells.masked_fill(cells == float("-inf"), float("nan")).float().cpu().numpy()
    extent = (-0.5, matrix.shape[1] - 0.5, matrix.shape[0] - 0.5, -0.5)
    if signed:
        finite = cells[cells.isfinite()]
        top = float(finite.abs().max()) if len(finite) else 1.0
        image = coloured(axes, data, SIGNED, -(top or 1.0), top or 1.0, extent=extent)
        axes.set_facecolor("0.85")
    else:
        image = coloured(axes, data, "magma", 0.0, max(1e-9, float(cells.max())), power=0.5, extent=extent)
    axes.set_title("\n".join(line for line in (title, note) if line), fontsize=9)
    return image


def token_ticks(axes: Axes, queries: list[str], keys: list[str]) -> None:
    """Tokens along the sides, where they can be read."""
    if 0 < len(keys) <= LABELS:
        axes.set_xticks(range(len(keys)), [plain_token(t) for t in keys], rotation=90, fontsize=7)
    if 0 < len(queries) <= LABELS:
        axes.set_yticks(range(len(queries)), [plain_token(t) for t in queries], fontsize=7)


def plain_token(token: str) -> str:
    """A token that no font stumbles over and no formula is made of."""
    shown = token.replace("\n", "\\n").replace(" ", "␣") or "∅"
    return "".join(c if c.isprintable() and ord(c) < 0x2500 else "□" for c in shown.replace("␣", "_")).replace(
        "$", r"\$"
    )
