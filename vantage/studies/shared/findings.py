"""Numbers beside those of the document, and the verdict they make."""

from __future__ import annotations

import math
from collections.abc import Sequence

from vantage.errors import BadInput
from vantage.figures import Figure
from vantage.studies.study import Number, Result, Value, Verdict

NORMAL_95 = 1.959963984540054  # the share of a normal distribution within so many deviations is 95 %


def mean(samples: Sequence[float]) -> float:
    return sum(samples) / len(samples)


def interval(samples: Sequence[float]) -> tuple[float, float]:
    """The normal interval of 95 % around the mean of independent samples."""
    n = len(samples)
    if n < 2:
        raise BadInput(f"{n} samples: an interval needs at least 2")
    middle = mean(samples)
    variance = sum((x - middle) ** 2 for x in samples) / (n - 1)
    half = NORMAL_95 * math.sqrt(variance / n)
    return middle - half, middle + half


def more_in_pairs(high: Sequence[float], low: Sequence[float]) -> bool:
    """Whether the first of each pair is larger in the mean, by more than the interval of their differences."""
    return interval([a - b for a, b in zip(high, low, strict=True)])[0] > 0


def compared(
    what: str, ours: Value, document: Value, *, within: float = 0.0, interval: tuple[float, float] | None = None
) -> Number:
    """What was found beside what the document says; they agree if they are no further apart than ``within``."""
    if isinstance(ours, str) or isinstance(document, str):
        agrees = ours == document
    else:
        agrees = abs(ours - document) <= within
    return Number(what, ours, document, agrees, interval)


def judged(what: str, ours: Value, agrees: bool, document: Value | None = None) -> Number:
    """A finding that is no equation: ``agrees`` is what the caller's comparison came to."""
    return Number(what, ours, document, agrees)


def held(what: str, ours: bool, document: bool | None = True) -> Number:
    """A statement that is true or not, beside what the document says of it (None: nothing)."""
    claim = None if document is None else _yes(document)
    return Number(what, _yes(ours), claim, None if document is None else ours == document)


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def checked(what: str, ours: int | float, wanted: int | float, *, within: float = 0.0) -> Number:
    """A finding beside what it must be by reasons that are not the document's."""
    return Number(what, ours, None, abs(ours - wanted) <= within)


def conclude(words: str, numbers: Sequence[Number], figures: Sequence[Figure], slips: Sequence[Number] = ()) -> Result:
    """``numbers`` must not disagree with the document, ``slips`` must: they show where it is wrong.

    ``words`` say what is expected. Whatever comes out otherwise is said instead, and makes the verdict "mixed".
    """
    odd = [n.what for n in numbers if n.agrees is False] + [n.what for n in slips if n.agrees is not False]
    verdict: Verdict = "mixed" if odd else "erratum" if slips else "agrees"
    outcome = f"Not as expected: {'; '.join(odd)}." if odd else words
    return Result(verdict, outcome, (*numbers, *slips), tuple(figures))
