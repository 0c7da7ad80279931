"""Running a verb inside the test's own process."""

from __future__ import annotations

from collections.abc import Sequence

from vantage.cli.main import main


def exit_code(argv: Sequence[str]) -> int:
    """What the shell would see: argparse leaves by itself, a verb returns."""
    try:
        return main(list(argv))
    except SystemExit as stop:
        return int(stop.code or 0)
