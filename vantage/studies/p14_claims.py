"""P14: what the documents claim of generalisation, each with a measured verdict."""

from __future__ import annotations

from dataclasses import replace

from vantage.compare.cells import View
from vantage.compare.claims import RELATIVE, measure_claims
from vantage.compare.entries import Shape
from vantage.compare.study import Study as Comparison
from vantage.compare.verdicts import Verdict as Measured
from vantage.compare.verdicts import chance_of
from vantage.figures import Bars, Figure
from vantage.studies.shared.runs import bounds, over_lengths, run_comparison
from vantage.studies.study import Number, Parameter, Progress, Result, Study, Values, Verdict

POSITIONS = ("sinusoidal", "learned", "rope", "alibi", "t5", "none")
ATTENTION = ("multi-query", "grouped-query")
SETS = {
    "one": ("copy-one",),
    "two": ("copy-one", "copy-replace"),
    "five": ("copy-one", "copy-replace", "copy", "reverse", "ordering"),
}
SAID = {
    "holds": "hold",
    "does not hold": "do not hold",
    "not distinguishable": "cannot be told",
    "not measured": "were not measured",
}
AGREES = {"holds": True, "does not hold": False}  # what is not distinguishable, or not measured, decides nothing


def run(values: Values, progress: Progress) -> Result:
    length = int(values["length"])
    study = Comparison(
        tasks=SETS[str(values["tasks"])],
        positions=POSITIONS,
        train_length=length,
        test_lengths=(length, 3 * length // 2, 2 * length),
        seeds=int(values["seeds"]),
        steps=int(values["steps"]),
        batch=32,
        shape=Shape(int(values["width"]), 2, 4),
        test_examples=128,
    )
    heads = replace(study, positions=("rope",), attention=ATTENTION)  # its multi-head runs are in the first
    workers, share = int(values["workers"]), len(POSITIONS) / (len(POSITIONS) + len(ATTENTION))
    results = run_comparison(study, lambda done, doing: progress(share * done, doing), workers)
    results += run_comparison(heads, lambda done, doing: progress(share + (1 - share) * done, doing), workers)
    view = View(tuple(results), length)
    numbers = [_number(verdict) for verdict in measure_claims(results, length) if _asked(verdict)]
    progress(1.0, "done")
    return Result(_verdict(numbers), _words(numbers), tuple(numbers), (_lengths(view), _heads(view)))


def _asked(verdict: Measured) -> bool:
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
    told = ", ".join(f"{words.count(word)} {said}" for word, said in SAID.items() if word in words)
    return f"Of {len(numbers)} claims at this size: {told}. At other sizes and in other tasks it may be otherwise."


def _lengths(view: View) -> Figure:
    panels = [panel for task in view.tasks for panel in over_lengths(view, task, _plain(view, task), chance_of(task))]
    caption = (
        "The share of rows right over the length; the first is the longest of the training. A claim of generalising "
        "holds if a line falls by less than a tenth."
    )
    return Figure("lengths", caption, tuple(panels))


def _plain(view: View, task: str) -> list[str]:
    """The encodings, with the plain attention."""
    return [entry for entry in view.entries(task) if "," not in entry]


def _heads(view: View) -> Figure:
    entries = ["rope", *(f"rope, {name}" for name in reversed(ATTENTION))]
    found = [[view.estimate(task, entry, "within") for entry in entries] for task in view.tasks]
    values = [[0.0 if e is None else e.value for e in row] for row in found]
    low = tuple([0.0 if e is None else e.low for e in row] for row in found)
    high = tuple([0.0 if e is None else e.high for e in row] for row in found)
    labels = ("multi-head", *reversed(ATTENTION))
    series = tuple(zip(view.tasks, values, strict=True))
    caption = "RoPE with fewer key/value heads, at the training length. S2 expects them to fall from left to right."
    return Figure("heads", caption, (Bars("key/value heads", "share right", labels, series, low, high),))


STUDY = Study(
    tag="P14",
    title="Claims about generalisation, measured",
    sources=("S0", "S1", "S2", "S3"),
    statement=(
        "Relative and rotary encodings generalise over length; sinusoidal ones can extrapolate; learned ones are "
        "slightly better within their range; ALiBi extrapolates well (S0, S1, S3). Multi-query attention loses "
        "quality as models grow, and grouped-query attention lies between it and multi-head (S2)."
    ),
    explanation=(
        "Such sentences are repeated from paper to paper, and published results disagree about them. So each is made "
        "a question with an answer: from the training lengths to those beyond, does a model lose less than a tenth of "
        "its rows? The claim holds where the whole interval of the difference says so, does not hold where the whole "
        "interval says the contrary, and cannot be told where it holds both. A model that did not learn the task "
        "within its range is no evidence. Every encoding gets the same data, the same seeds and the same search for a "
        "learning rate.\n\n"
        "What is measured here is a small model on small tasks, such as repeating a token as often as it stands in "
        "the prompt. Tasks like these are stricter than the perplexity of text, where most of what a model needs is "
        "near: an encoding that lets perplexity stay flat over length may still not count beyond what it was trained "
        "on, and the published tables show both. One size also says nothing of how a difference grows with size. Read "
        "a verdict with its interval, and run the study with more seeds, more steps or other tasks before quoting it."
    ),
    run=run,
    parameters=(
        Parameter("tasks", "two", "how many tasks, from the quickest on", choices=tuple(SETS)),
        Parameter("length", 10, "the training length", 4, 40),
        Parameter("steps", 1000, "of training, for each run", 20, 20000),
        Parameter("seeds", 3, "runs of each", 1, 10),
        Parameter("width", 32, "of the models, a multiple of 8", 16, 256),
        Parameter("workers", 0, "processes; 0: one for each core", 0, 64),
    ),
    seconds=300.0,
    trains=True,
)
