"""Tables and figures as HTML: for notebooks, and for pages that stand alone."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:70rem;padding:0 1rem}"
    "table{border-collapse:collapse;font-variant-numeric:tabular-nums}"
    "td,th{padding:.15rem .7rem;text-align:right;border-bottom:1px solid #ddd}td:first-child,th:first-child"
    "{text-align:left}img{max-width:100%}"
)
MAX_ROWS = 400


def table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A plain table; everything in it is escaped."""
    head = "".join(f"<th>{html.escape(name)}</th>" for name in header)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(_cell(value))}</td>" for value in row) + "</tr>" for row in rows[:MAX_ROWS]
    )
    more = f"<p>… and {len(rows) - MAX_ROWS} more</p>" if len(rows) > MAX_ROWS else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"


def picture(figure: Figure) -> str:
    """A figure inside the page."""
    return f'<img alt="figure" src="data:image/png;base64,{base64.b64encode(png(figure)).decode()}">'


def png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110, bbox_inches="tight")
    return buffer.getvalue()


def page_table(title: str, header: Sequence[str], rows: Sequence[Sequence[Any]], figure: Figure | None = None) -> str:
    """What a notebook shows."""
    shown = "" if figure is None else picture(figure)
    return f"<div><p><b>{html.escape(title)}</b></p>{shown}{table(header, rows)}</div>"


def page(title: str, body: str) -> str:
    """A page that stands alone."""
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f"<style>{STYLE}</style></head><body><h1>{html.escape(title)}</h1>{body}</body></html>\n"
    )


def _cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)
