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
ROWS: list[tuple[Case, str]] = [(case, option) for case in CASES for option in ("plain", *case.options)]
IDS: list[str] = [name for case in CASES for name in case.ids()]
