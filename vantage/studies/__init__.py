"""The documents' results and exercises, executable: one file each.

``list()`` says which there are, ``run("A2")`` runs one, ``find("A2")`` gives it, ``draw(figure)`` draws what it found.
"""

from vantage.figures.drawing import draw
from vantage.studies.registry import find, studies
from vantage.studies.report import write_report
from vantage.studies.runner import Listing, Outcome, run
from vantage.studies.study import Number, Parameter, Result, Study

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
    return Listing(studies().values())
