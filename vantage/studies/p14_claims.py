"""P14: what the documents claim of generalisation, each with a measured verdict."""

from __future__ import annotations

from dataclasses import replace

from vantage.compare.claims import RELATIVE, measure_claims
from vantage.compare.entries import ModelShape
from vantage.compare.experiment import Experiment
from vantage.compare.learning import chance_of
from vantage.compare.result_table import ResultTable
from vantage.compare.verdicts import Verdict as Measured
from vantage.figures import Bars, Figure
from vantage.studies.shared.runs import bounds, over_lengths, run_comparison
from vantage.studies.study import Number, Progress, Result, Values, Verdict
from vantage.studies.text import StudyText

TEXT = StudyText.beside(__file__)

POSITIONS = ("sinusoidal", "learned", "rope", "alibi", "t5", "none")
ATTENTION = ("multi-query", "grouped-query")
SETS = {
    "one": ("copy-one",),
    "two": ("copy-one", "copy-replace"),
    "five": ("copy-one", "copy-replace", "copy", "reverse", "ordering"),
}
PHRASES = {
    "holds": "hold",
    "does not hold": "do not hold",
    "not distinguishable": "cannot be told",
    "not measured": "were not measured",
}
AGREES = {"holds": True, "does not hold": False}  # what is not distinguishable, or not measured, decides nothing


def run(values: Values, progress: Progress) -> Result:
    length = int(values["length"])
    study = Experiment(
        tasks=SETS[str(values["tasks"])],
        positions=POSITIONS,
        train_length=length,
        test_lengths=(length, 3 * length // 2, 2 * length),
        seeds=int(values["seeds"]),
        steps=int(values["steps"]),
        batch=32,
        shape=ModelShape(int(values["width"]), 2, 4),
        test_examples=128,
    )
    heads = replace(study, positions=("rope",), attention=ATTENTION)  # its multi-head runs are in the first
    workers, share = int(values["workers"]), len(POSITIONS) / (len(POSITIONS) + len(ATTENTION))
    results = run_comparison(study, lambda done, doing: progress(share * done, doing), workers)
    results += run_comparison(heads, lambda done, doing: progress(share + (1 - share) * done, doing), workers)
    view = ResultTable(tuple(results), length)
    numbers = [_number(verdict) for verdict in measure_claims(results, length) if _trained_here(verdict)]
    progress(1.0, "done")
    return Result(_verdict(numbers), _words(numbers), tuple(numbers), (_lengths(view), _heads(view)))


def _trained_here(verdict: Measured) -> bool:
    """Whether a claim is about something that this study trains: of the relative encodings only some."""
    name = verdict.what.rpartition(": ")[2].partition(" (")[0]
    return name not in RELATIVE or name in POSITIONS


def _number(verdict: Measured) -> Number:
    """A claim, the word that was measured for it, and the interval of the effect that decided."""
    ends = None if verdict.effect is None else bounds(verdict.effect)
    return Number(f"{verdict.what}. {verdict.why}", verdict.word, "holds", AGREES.get(verdict.word), ends)


def _verdict(numbers: list[Number]) -> Verdict:
    """One size and a few tasks can speak against a claim; they do not make an erratum of it."""
    decided = [number.agrees for number in numbers if number.agrees is not None]
    return "agrees" if decided and all(decided) else "mixed"


def _words(numbers: list[Number]) -> str:
    words = [number.ours for number in numbers]
    counts = [f"{words.count(word)} {phrase}" for word, phrase in PHRASES.items() if word in words]
    return TEXT.conclusion(claims=len(numbers), counts=", ".join(counts))


def _lengths(view: ResultTable) -> Figure:
    panels = [panel for task in view.tasks for panel in over_lengths(view, task, _plain(view, task), chance_of(task))]
    return Figure("lengths", TEXT.caption("lengths"), tuple(panels))


def _plain(view: ResultTable, task: str) -> list[str]:
    """The encodings, with the plain attention."""
    return [entry for entry in view.entries(task) if "," not in entry]


def _heads(view: ResultTable) -> Figure:
    entries = ["rope", *(f"rope, {name}" for name in reversed(ATTENTION))]
    estimates = [[view.estimate(task, entry, "within") for entry in entries] for task in view.tasks]
    values = [[0.0 if e is None else e.value for e in row] for row in estimates]
    low = tuple([0.0 if e is None else e.low for e in row] for row in estimates)
    high = tuple([0.0 if e is None else e.high for e in row] for row in estimates)
    labels = ("multi-head", *reversed(ATTENTION))
    series = tuple(zip(view.tasks, values, strict=True))
    return Figure("heads", TEXT.caption("heads"), (Bars("key/value heads", "share right", labels, series, low, high),))


STUDY = TEXT.study(
    "P14",
    run,
    (
        TEXT.parameter("tasks", "two", choices=tuple(SETS)),
        TEXT.parameter("length", 10, 4, 40),
        TEXT.parameter("steps", 1000, 20, 20000),
        TEXT.parameter("seeds", 3, 1, 10),
        TEXT.parameter("width", 32, 16, 256),
        TEXT.parameter("workers", 0, 0, 64),
    ),
    seconds=300.0,
    trains=True,
)
