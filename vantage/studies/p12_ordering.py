"""P12: is a sequence ascending? Encodings compared at the training lengths and beyond."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

from vantage.compare.cells import View, is_control
from vantage.compare.entries import CONTROL, DEFAULT, PLAIN, Shape
from vantage.compare.statistics import Sample, difference, estimate
from vantage.compare.study import Study as Comparison
from vantage.compare.study import task_of
from vantage.compare.verdicts import chance_of
from vantage.figures import Bars, Figure
from vantage.studies.shared.findings import conclude, judged
from vantage.studies.shared.runs import bounds, over_lengths, run_comparison
from vantage.studies.study import Number, Parameter, Progress, Result, Study, Values
from vantage.training.sequences import HELD_OUT, Sequences

TASK = "ordering"
S3 = ("sinusoidal", "learned", "rope")
ENCODINGS = {"S3": (*S3, "none", CONTROL), "usual": DEFAULT, "all": (*PLAIN, CONTROL)}
COUNTED = 4000  # examples that are looked at for the task's own sake


def run(values: Values, progress: Progress) -> Result:
    length = int(values["length"])
    study = Comparison(
        tasks=(TASK,),
        positions=ENCODINGS[str(values["encodings"])],
        train_length=length,
        test_lengths=(length, 2 * length, 4 * length),
        seeds=int(values["seeds"]),
        steps=int(values["steps"]),
        batch=32,
        shape=Shape(int(values["width"]), 2, 4),
        test_examples=256,
    )
    numbers = _task(study)
    results = run_comparison(study, progress, int(values["workers"]))
    view = View(tuple(results), length)
    entries = view.entries(TASK)
    control = next(entry for entry in entries if is_control(entry))
    chance = chance_of(TASK) or 0.0
    at = view.estimate(TASK, control, view.lengths(TASK))
    assert at is not None
    numbers.append(
        Number(
            "bidirectional attention without position, all lengths: right",
            at.value,
            chance,
            at.holds(chance),
            bounds(at),
        )
    )
    for entry in entries:
        if not is_control(entry):
            numbers += _entry(view, entry, control)
    progress(1.0, "done")
    words = _words(view, entries)
    result = conclude(words, numbers, [_lengths(view, entries, chance), _swaps(view, entries)])
    # an encoding that did not learn in these steps is no fault of the task: say both
    return result if result.verdict == "agrees" else replace(result, words=f"{result.words} {words}")


def _words(view: View, entries: list[str]) -> str:
    """What was found, in the mean over seeds: nothing here is known beforehand."""
    real = [entry for entry in entries if not is_control(entry)]

    def spans(found: list[Sample | None]) -> str:
        means = [one.mean for one in found if one is not None]
        return f"{min(means):.2f} to {max(means):.2f}" if means else "nothing"

    within, beyond = (spans([view.sample(TASK, e, part) for e in real]) for part in ("within", "beyond"))
    near = spans([view.group(TASK, e, "swap 1", "within") for e in real])
    return (
        "The task needs order: who sees a bag of numbers is right half of the time. Without the control, the entries "
        f"are right in {within} of the rows at the training length ({near} of swaps of neighbours) and in {beyond} "
        "beyond it."
    )


def _task(study: Comparison) -> list[Number]:
    """What the task must be for its scores to mean anything."""
    made = task_of(TASK)
    data = Sequences(made, "line", (study.shortest(made), study.train_length), (study.train_length,))
    trained = [data.example(i) for i in range(COUNTED)]
    tested = [data.example(HELD_OUT + i, 4 * study.train_length) for i in range(COUNTED)]
    shares = [sum(e.group == "ascending" for e in some) / COUNTED for some in (trained, tested)]
    seen = {symbol for example in trained for symbol in example.prompt}
    missing = {symbol for example in tested for symbol in example.prompt} - seen
    kinds = Counter(e.group for e in tested if e.group != "ascending")
    sure = 4 * math.sqrt(0.25 / COUNTED)  # four standard deviations of a fair coin
    return [
        judged("ascending, of the training examples", shares[0], abs(shares[0] - 0.5) < sure, 0.5),
        judged(
            f"ascending, of the tests of length {4 * study.train_length}", shares[1], abs(shares[1] - 0.5) < sure, 0.5
        ),
        judged("numbers of the tests that training never showed", len(missing), not missing, 0),
        judged(
            "negatives by swap distance, in the tests",
            ", ".join(sorted(kinds, key=lambda k: int(k.split()[1]))),
            "swap 1" in kinds,
        ),
    ]


def _entry(view: View, entry: str, control: str) -> list[Number]:
    """An encoding at the training length, on swaps of neighbours, and beyond."""
    found = []
    for part in ("within", "beyond"):
        one = view.estimate(TASK, entry, part)
        ours, theirs = view.sample(TASK, entry, part), view.sample(TASK, control, part)
        gain = None if ours is None or theirs is None else difference(ours, theirs)
        if one is None or gain is None:
            continue
        # S3's three must learn the task within their range: better than the control, the whole interval
        agrees = estimate(gain).low > 0 if part == "within" and entry in S3 else None
        found.append(Number(f"{entry}: right {part} the training lengths", one.value, None, agrees, bounds(one)))
    near = view.group(TASK, entry, "swap 1", "within")
    if near is not None:
        found.append(
            Number(f"{entry}: swaps of neighbours told, within", near.mean, None, None, bounds(estimate(near)))
        )
    return found


def _lengths(view: View, entries: list[str], chance: float) -> Figure:
    caption = (
        "The share of rows right, with intervals of 95 % over seeds. The first length is the longest of the training; "
        "bidirectional attention without position stays at chance."
    )
    return Figure("lengths", caption, over_lengths(view, TASK, entries, chance))


def _swaps(view: View, entries: list[str]) -> Figure:
    groups = view.groups(TASK)
    order = sorted(groups, key=lambda name: (name != "ascending", len(name), name))
    series = []
    for entry in entries:
        shares = [view.group(TASK, entry, name, "within") for name in order]
        series.append((entry, [0.0 if share is None else share.mean for share in shares]))
    bars = Bars("at the training length", "share right", tuple(order), tuple(series))
    caption = (
        "By what was done to the sequence. A swap of neighbours leaves one place out of order and is the hard one; a "
        "wide swap can be told from a number that does not fit its place. A model that says yes to all is right on "
        "“ascending” and nowhere else."
    )
    return Figure("swaps", caption, (bars,))


STUDY = Study(
    tag="P12",
    title="An ordering task",
    sources=("S3",),
    statement=(
        "Given a sequence of numbers, say whether it is ascending: a task that cannot be done without order. S3 "
        "compares sinusoidal, learned and rotary encodings on it, at the training lengths and beyond."
    ),
    explanation=(
        "Whether a sequence is ascending does not depend on which numbers it has, only on their order, so a model that "
        "does not know positions cannot do better than a coin. That must be made true: as many sequences ascend as do "
        "not, the others are made by one swap, the coin is tossed after the numbers are drawn, and bidirectional "
        "attention without position runs along as a control. A causal decoder without an encoding is no control: its "
        "mask knows order (P11).\n\n"
        "Swaps of neighbours are scored apart. They change one comparison of two adjacent numbers, so the model must "
        "look at every token and the one before it; a wide swap is seen by a number that is far too large for "
        "where it stands. Beyond the training length several things fail at once: learned rows that were never trained "
        "(P6), angles and distances never met, and numbers that lie closer together. The runs are those of `vantage "
        "compare`: paired seeds, the same data and the same search for a learning rate for all."
    ),
    run=run,
    parameters=(
        Parameter(
            "encodings", "S3", "which: S3's three with two controls, the usual seven, or all", choices=tuple(ENCODINGS)
        ),
        Parameter("length", 10, "the longest training sequence; tests go to four times that", 4, 30),
        Parameter("steps", 2500, "of training, for each run", 20, 20000),
        Parameter("seeds", 3, "runs of each", 1, 10),
        Parameter("width", 32, "of the models, a multiple of 8", 16, 256),
        Parameter("workers", 0, "processes; 0: one for each core", 0, 64),
    ),
    seconds=300.0,
    trains=True,
)
