"""Every row of ``rows/``: add one there when you add a family."""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path

from tests.parity.case import Case

CASES: tuple[Case, ...] = tuple(
    case
    for info in pkgutil.iter_modules([str(Path(__file__).with_name("rows"))])
    for case in importlib.import_module(f"tests.parity.rows.{info.name}").CASES
)


def rows(kind: str) -> list[tuple[Case, str]]:
    """A case of this kind and one of its options."""
    return [(case, option) for case in CASES if case.kind == kind for option in ("plain", *case.options)]


def ids(kind: str) -> list[str]:
    return [name for case in CASES if case.kind == kind for name in case.ids()]


ROWS: list[tuple[Case, str]] = rows("decoder")
IDS: list[str] = ids("decoder")
