"""Results and exercises of the course material, executable: one file each.

``list()`` says which there are, ``run("A2")`` runs one, ``find("A2")`` gives it, ``draw(figure)`` draws what it found.
Names are imported when they are first used: which tags there are is known without torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vantage.figures.drawing import draw
    from vantage.studies.registry import find, studies
    from vantage.studies.report import write_report
    from vantage.studies.runner import Listing, Outcome, run
    from vantage.studies.study import Number, Parameter, Result, Study

_HOME = {
    "draw": "vantage.figures.drawing",
    "write_report": "vantage.studies.report",
    **dict.fromkeys(("find", "studies"), "vantage.studies.registry"),
    **dict.fromkeys(("Listing", "Outcome", "run"), "vantage.studies.runner"),
    **dict.fromkeys(("Number", "Parameter", "Result", "Study"), "vantage.studies.study"),
}

__all__ = [
    "Listing",
    "Number",
    "Outcome",
    "Parameter",
    "Result",
    "Study",
    "draw",
    "find",
    "list",
    "run",
    "studies",
    "write_report",
]


def list() -> Listing:
    """Every study, in its natural order."""
    from vantage.studies.registry import studies
    from vantage.studies.runner import Listing

    return Listing(studies().values())


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
