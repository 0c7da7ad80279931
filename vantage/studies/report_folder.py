"""Where a report is to be written. Nothing here needs torch, so a command can refuse it at once."""

from __future__ import annotations

from pathlib import Path

from vantage.errors import BadInput
from vantage.figures.canvas import new_figure


def check_report(folder: str | Path) -> None:
    """Asked before anything is computed: that there is something to draw with, and somewhere to write."""
    new_figure(1, 1)
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"no report can be written to {folder}: {error.strerror}") from error
