"""P12: is a sequence ascending? Encodings compared at the training lengths and beyond."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

from vantage.compare.entries import ModelShape, plain_positions
from vantage.compare.experiment import Experiment
from vantage.compare.experiment_fields import shortest
from vantage.compare.learning import chance_of
from vantage.compare.names import CONTROL, DEFAULT
from vantage.compare.result_table import ResultTable, is_control
from vantage.compare.statistics import Sample, difference, estimate
from vantage.compare.task_names import task_of
from vantage.figures import Bars, Figure
from vantage.studies.shared.findings import conclude, judged
from vantage.studies.shared.runs import bounds, over_lengths, run_comparison
from vantage.studies.study import Number, Progress, Result, Values
from vantage.studies.text import StudyText
from vantage.training.sequences import HELD_OUT, Sequences

TEXT = StudyText.beside(__file__)

TASK = "ordering"
S3 = ("sinusoidal", "learned", "rope")
ENCODINGS = ("S3", "usual", "all")
COUNTED = 4000  # examples that are looked at for the task's own sake


def _positions(which: str) -> tuple[str, ...]:
    return {"S3": (*S3, "none", CONTROL), "usual": DEFAULT, "all": (*plain_positions(), CONTROL)}[which]


def run(values: Values, progress: Progress) -> Result:
    length = int(values["length"])
    study = Experiment(
        tasks=(TASK,),
        positions=_positions(str(values["encodings"])),
        train_length=length,
        test_lengths=(length, 2 * length, 4 * length),
        seeds=int(values["seeds"]),
        steps=int(values["steps"]),
        batch=32,
        shape=ModelShape(int(values["width"]), 2, 4),
        test_examples=256,
    )
    numbers = _task(study)
    results = run_comparison(study, progress, int(values["workers"]))
    view = ResultTable(tuple(results), length)
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


def _words(view: ResultTable, entries: list[str]) -> str:
    """What was found, in the mean over seeds: nothing here is known beforehand."""
    real = [entry for entry in entries if not is_control(entry)]

    def spans(samples: list[Sample | None]) -> str:
        means = [one.mean for one in samples if one is not None]
        return f"{min(means):.2f} to {max(means):.2f}" if means else "nothing"

    within, beyond = (spans([view.sample(TASK, e, part) for e in real]) for part in ("within", "beyond"))
    near = spans([view.group(TASK, e, "swap 1", "within") for e in real])
    return TEXT.conclusion(within=within, near=near, beyond=beyond)


def _task(study: Experiment) -> list[Number]:
    """What the task must be for its scores to mean anything."""
    task = task_of(TASK)
    data = Sequences(task, "line", (shortest(task, study.train_length), study.train_length), (study.train_length,))
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


def _entry(view: ResultTable, entry: str, control: str) -> list[Number]:
    """An encoding at the training length, on swaps of neighbours, and beyond."""
    numbers = []
    for part in ("within", "beyond"):
        one = view.estimate(TASK, entry, part)
        ours, theirs = view.sample(TASK, entry, part), view.sample(TASK, control, part)
        gain = None if ours is None or theirs is None else difference(ours, theirs)
        if one is None or gain is None:
            continue
        # S3's three must learn the task within their range: better than the control, the whole interval
        agrees = estimate(gain).low > 0 if part == "within" and entry in S3 else None
        numbers.append(Number(f"{entry}: right {part} the training lengths", one.value, None, agrees, bounds(one)))
    near = view.group(TASK, entry, "swap 1", "within")
    if near is not None:
        numbers.append(
            Number(f"{entry}: swaps of neighbours told, within", near.mean, None, None, bounds(estimate(near)))
        )
    return numbers


def _lengths(view: ResultTable, entries: list[str], chance: float) -> Figure:
    return Figure("lengths", TEXT.caption("lengths"), over_lengths(view, TASK, entries, chance))


def _swaps(view: ResultTable, entries: list[str]) -> Figure:
    groups = view.groups(TASK)
    order = sorted(groups, key=lambda name: (name != "ascending", len(name), name))
    series = []
    for entry in entries:
        shares = [view.group(TASK, entry, name, "within") for name in order]
        series.append((entry, [0.0 if share is None else share.mean for share in shares]))
    bars = Bars("at the training length", "share right", tuple(order), tuple(series))
    return Figure("swaps", TEXT.caption("swaps"), (bars,))


STUDY = TEXT.study(
    "P12",
    run,
    (
        TEXT.parameter("encodings", "S3", choices=ENCODINGS),
        TEXT.parameter("length", 10, 4, 30),
        TEXT.parameter("steps", 2500, 20, 20000),
        TEXT.parameter("seeds", 3, 1, 10),
        TEXT.parameter("width", 32, 16, 256),
        TEXT.parameter("workers", 0, 0, 64),
    ),
    seconds=300.0,
    trains=True,
)
