"""Studies made up for tests of what runs, draws and prints them."""

from __future__ import annotations

import math

from vantage.errors import Refused
from vantage.figures import Bars, Figure, Heat, Histogram, Line, Lines
from vantage.studies.study import Number, Parameter, Progress, Result, Study, Values

X = (1, 2, 4, 8)
LINES = Lines(
    "a < b & a long title that has to be wrapped, since no panel is as wide as that",
    "x",
    "y",
    (
        Line("first", X, (1.0, 0.5, 0.25, 0.125), (0.9, 0.4, 0.2, 0.1), (1.1, 0.6, 0.3, 0.2)),
        Line("2", X, X, look="dots"),
    ),
    log_x=True,
    log_y=True,
    marks=(("the document", 0.5),),
)
BARS = Bars("bars", "n", ("one", "two"), (("a", (1, 20000)), ("b", (3, 4))), ((0, 1), (2, 3)), ((2, 3), (4, 5)))
HEAT = Heat("heat", "key", "query", ((1.0, None), (0.25, 0.75)), ("k1", "k2"), ("q1", "q2"), written=True)
SIGNED = Heat("signed", "key", "query", tuple(tuple((i - j) / 9 for j in range(30)) for i in range(30)), diverging=True)
HISTOGRAM = Histogram("samples", "x", (("a", (0.0, 0.5, 1.0)), ("b", (1.0, 2.0))), bins=4)
PANELS = (LINES, BARS, HEAT, SIGNED, HISTOGRAM)
FIGURE = Figure("panels", "What to see: <everything>.", PANELS)


def run(values: Values, progress: Progress) -> Result:
    progress(0.5, "half of it")
    size = float(values["size"])
    numbers = (
        Number("size", size, 2.0, abs(size - 2.0) < 1e-9, (size - 0.1, size + 0.1)),
        Number("<b>no markup</b>", math.inf),
        Number("word", str(values["kind"])),
    )
    return Result("agrees" if size == 2.0 else "mixed", f"The size is {size}.", numbers, (FIGURE,))


def study(tag: str = "A90", **changes: object) -> Study:
    said = {
        "tag": tag,
        "title": "Made <up>",
        "sources": ("S0",),
        "statement": "It is `two`.",
        "explanation": "One.\n\nTwo.",
        "run": run,
        "parameters": (
            Parameter("size", 2.0, "how large", 0.0, 10.0),
            Parameter("kind", "a", "which", choices=("a", "b")),
        ),
    }
    return Study(**(said | changes))


def refuses(values: Values, progress: Progress) -> Result:
    raise Refused("this cannot run here: do something about it")


def breaks(values: Values, progress: Progress) -> Result:
    raise ZeroDivisionError("a fault")
