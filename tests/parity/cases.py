"""Every row of ``rows/``: add one there when you add a family."""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path
from typing import Any

import pytest

from tests.parity.case import Case
from tests.sampling import draw, marks

OPTIONS = 40  # of the models of a kind, in `make test`
PUBLISHED = (Path(__file__).parents[2] / "vantage/families/published.toml").read_text(encoding="utf-8")

CASES: tuple[Case, ...] = tuple(
    case
    for info in pkgutil.iter_modules([str(Path(__file__).with_name("rows"))])
    for case in importlib.import_module(f"tests.parity.rows.{info.name}").CASES
)


def ids(*kinds: str) -> list[str]:
    return [name for case in CASES if case.kind in kinds for name in case.ids()]


def rows(*kinds: str) -> list[Any]:
    """A case of these kinds and one of its options, as parameters of a fixture.

    Every family runs as it comes, and so does each row that docs/families.md names; of the other options `make test`
    runs those that a seed draws.
    """
    names = ids(*kinds)
    always = [name for name in names if name.endswith("-plain") or f"[{name}]" in PUBLISHED]
    drawn = draw(names, always, OPTIONS)
    found = [(case, option) for case in CASES if case.kind in kinds for option in ("plain", *case.options)]
    return [pytest.param(row, id=name, marks=marks(name in drawn)) for row, name in zip(found, names, strict=True)]
