"""Published results, and whether ours say the same: the same ordering, the same size of effect, or not.

How a row is decided:

- **Ordering**: every pair that the paper has apart by more than its ``margin`` and that we measured. A pair agrees or
  disagrees where our paired difference is distinguishable (its interval leaves out 0, after Holm's correction over the
  row's pairs), and is open where it is not.
- **Size**: the paper's own best against its worst. The same size, where our interval of that difference holds the
  paper's or ours is within a quarter of it (the paper's has an interval too, and does not say which); else smaller or
  larger. Differences of perplexity are compared as ratios, in nats.
- Lengths are matched by how many times the training length they are, within a quarter of that. Test lengths of a task
  without such a row count together, all beyond the training length.
"""

from __future__ import annotations

import functools
import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from typing import Any, Literal

from vantage.compare.cells import View, is_control, plain, plain_task
from vantage.compare.results import Result
from vantage.compare.statistics import (
    Estimate,
    Sample,
    average,
    difference,
    estimate,
    holm,
    mean_reciprocal_rank,
    p_value,
)
from vantage.compare.verdicts import SURE, Beside, Verdict, worded
from vantage.errors import BadInput, unknown

Kind = Literal["table", "change", "rank", "gain", "best"]
QUARTER = 0.25
FLAT = 0.1  # a change of loss up to this, in nats, is none: a tenth of the perplexity
# Theirs is not named more closely; the first of ours that was measured stands for it.
ALIASES: Mapping[str, tuple[str, ...]] = {
    "absolute": ("sinusoidal", "learned"),
    **{name: (f"{name}-+-lora", name) for name in ("linear", "ntk", "yarn")},  # theirs are trained a little, too
}
# What makes a task another task, with what stands where nothing is said. Other parameters are its size.
TELLING = {"kind": "random", "times": "1", "count": "clauses", "order": "plain", "brackets": "false", "hints": "0"}


@dataclass(frozen=True)
class Row:
    """One row of a paper: its numbers by entry, and where ours are to be found."""

    what: str
    kind: Kind
    mark: str
    numbers: Mapping[str, float]
    before: Mapping[str, float] = field(default_factory=dict)
    ours: tuple[str, ...] = ()
    train: int = 0
    length: int = 0
    note: str = ""


@dataclass(frozen=True)
class Paper:
    name: str
    title: str
    source: str
    measure: str
    margin: float
    setup: str
    means: str
    rows: tuple[Row, ...]


@functools.cache
def _papers() -> dict[str, Paper]:
    said: dict[str, Any] = tomllib.loads(resources.files("vantage.compare").joinpath("published.toml").read_text())
    papers: dict[str, Paper] = {}
    for name, paper in said.items():
        found = tuple(Row(**{**row, "ours": tuple(row.get("ours", ()))}) for row in paper.pop("rows"))
        papers[name] = Paper(name=name, rows=found, **paper)
    return papers


def names() -> tuple[str, ...]:
    return tuple(_papers())


def paper(name: str) -> Paper:
    """A paper by its short name; "randomized" is "randomised"."""
    asked = name.lower().replace("randomiz", "randomis").replace("generalis", "generaliz")
    if asked not in _papers():
        raise BadInput(unknown("published result", name, _papers()))
    return _papers()[asked]


def rows(name: str) -> tuple[Row, ...]:
    return paper(name).rows


def compare_with(
    name: str,
    results: Sequence[Result],
    train_length: int | Mapping[str, int],
    measures: Mapping[str, str] | None = None,
) -> list[Verdict]:
    """Every row of a paper with our numbers beside and a verdict; "not measured" where we have none."""
    chosen = paper(name)
    view = View(tuple(results), train_length, measures or {})
    found: list[Verdict] = []
    for row in chosen.rows:
        found += _DECIDE[row.kind](chosen, row, view)
    return found


# ------------------------------------------------------------------------------------------------ finding our runs


def _told(task: str) -> tuple[str, dict[str, str]]:
    name, _, inside = plain_task(task).rstrip(")").partition("(")
    pairs = (part.partition("=") for part in inside.split(",") if "=" in part)
    return name, {key: value for key, _, value in pairs if key in TELLING}


def same_task(asked: str, task: str) -> bool:
    """Whether a task of ours is what a row asks for; ``*`` stands for anything but what is there by itself."""
    (name, wanted), (other, there) = _told(asked), _told(task)
    if name != other:
        return False
    for key, usual in TELLING.items():
        want, got = wanted.get(key, usual), there.get(key, usual)
        if got == usual if want == "*" else want != got:
            return False
    return True


def _tasks(chosen: Paper, row: Row, view: View) -> list[str]:
    if row.ours:
        return [task for task in view.tasks if any(same_task(asked, task) for asked in row.ours)]
    return [task for task in view.counted if (view.measure(task) == "loss") == (chosen.measure == "loss")]


def _entry(view: View, task: str, theirs: str) -> str | None:
    """Our entry for a name of theirs, with the plain attention."""
    there = {plain(entry): entry for entry in view.entries(task)}
    return next((there[name] for name in ALIASES.get(theirs, (theirs,)) if name in there), None)


def _where(row: Row, view: View, task: str) -> list[int]:
    """Our lengths that answer to the row's."""
    if not row.length:
        return view.lengths(task, "beyond")
    times = row.length / row.train
    near = [length for length in view.lengths(task) if abs(length / view.trained(task) / times - 1) <= QUARTER]
    return sorted(near, key=lambda length: abs(length / view.trained(task) - times))[:1]


def _shown(sample: Sample | None, measure: str) -> Estimate | None:
    if sample is None:
        return None
    return estimate(sample).mapped(math.exp) if measure == "loss" else estimate(sample)


# -------------------------------------------------------------------------------------------------- kinds of rows


def _table(chosen: Paper, row: Row, view: View) -> list[Verdict]:
    found = []
    for task in _tasks(chosen, row, view):
        where = _where(row, view, task)
        ours: dict[str, Sample] = {}
        for theirs in row.numbers:
            entry = _entry(view, task, theirs)
            sample = view.sample(task, entry, where, chosen.measure) if entry and where else None
            if sample is not None:
                ours[theirs] = sample
        if ours:
            found.append(_ordered(chosen, row, ours, f"{row.what} (ours: {task}, {_lengths(where)})"))
    return found or [_missing(chosen, row)]


def _ordered(chosen: Paper, row: Row, ours: Mapping[str, Sample], what: str) -> Verdict:
    """Pairs with the paper's better one first, so that a difference above 0 agrees."""
    loss = chosen.measure == "loss"
    theirs = {name: -math.log(number) if loss else number for name, number in row.numbers.items()}
    good = {name: sample.negated() if loss else sample for name, sample in ours.items()}
    order = sorted(good, key=lambda name: -theirs[name])
    pairs = [(a, b) for i, a in enumerate(order) for b in order[i + 1 :] if theirs[a] - theirs[b] > chosen.margin]
    apart = {pair: found for pair in pairs if (found := difference(good[pair[0]], good[pair[1]])) is not None}
    beside = tuple(Beside(name, row.numbers[name], _shown(ours.get(name), chosen.measure)) for name in row.numbers)
    if not apart:
        why = "No two of the entries that the paper tells apart were measured on the same seeds"
        return Verdict(what, "not measured", why, None, None, beside, chosen.source, row.mark)
    chances = dict(zip(apart, holm([p_value(found) for found in apart.values()]), strict=True))
    effects = {pair: estimate(found) for pair, found in apart.items()}
    sure = [pair for pair in apart if chances[pair] <= SURE and not effects[pair].holds(0.0)]
    agree = [pair for pair in sure if effects[pair].value > 0]
    against = [pair for pair in sure if effects[pair].value < 0]
    open_ = len(apart) - len(sure)
    ordering = _ordering_word(len(agree), len(against), open_)
    widest = max(apart, key=lambda pair: theirs[pair[0]] - theirs[pair[1]])
    size = theirs[widest[0]] - theirs[widest[1]]
    word = ordering
    if widest in sure and ordering != "not distinguishable":
        word = f"{ordering}, {_size_word(effects[widest], size)}"
    unit = "nats" if loss else "of accuracy"
    why = (
        f"Of {len(apart)} pairs that the paper tells apart, {len(agree)} agree, {len(against)} disagree and "
        f"{open_} are open. {widest[0]} over {widest[1]}: {worded(effects[widest], unit)}, theirs {size:+.3f}"
    )
    if against:
        why += ". Against the paper: " + "; ".join(f"{b} over {a}" for a, b in against)
    return Verdict(what, word, _noted(why, row), effects[widest], size, beside, chosen.source, row.mark)


def _ordering_word(agree: int, against: int, open_: int) -> str:
    if not agree and not against:
        return "not distinguishable"
    if against:
        return "not the same ordering" if against >= agree else "the same ordering in part"
    return "same ordering" if not open_ else "same ordering as far as it can be told"


def _size_word(effect: Estimate, size: float) -> str:
    if effect.holds(size) or abs(effect.value - size) <= QUARTER * abs(size):
        return "same size of effect"
    if effect.value * size < 0:
        return "the opposite effect"
    return "smaller effect" if abs(effect.value) < abs(size) else "larger effect"


def _change(chosen: Paper, row: Row, view: View) -> list[Verdict]:
    """How each entry's loss changes from its training length to beyond: it grows, stays or falls."""
    found = []
    for task in _tasks(chosen, row, view):
        far, near = _where(row, view, task), view.lengths(task, "within")[-1:]
        for name, number in row.numbers.items():
            entry = _entry(view, task, name)
            after = view.sample(task, entry, far, "loss") if entry and far else None
            before = view.sample(task, entry, near, "loss") if entry and near else None
            apart = difference(after, before) if after and before else None
            if apart is None:
                continue
            effect, size = estimate(apart), math.log(number / row.before[name])
            theirs, ours = _shape(size, size), _shape(effect.low, effect.high)
            alike = (ours == "grows") == (theirs == "grows")  # who stays and who falls both hold
            word = "not distinguishable" if ours == "is open" else "same shape" if alike else "another shape"
            if word == "same shape" and theirs != "stays":
                word += f", {_size_word(effect, size)}"
            what = f"{name} {row.what} (ours: {task}, {near[0]} to {far[0]})"
            why = f"Their perplexity {theirs}, ours {ours}: {worded(effect, 'nats')}, theirs {size:+.3f}"
            beside = (
                Beside(f"{name}, at the training length", row.before[name], _shown(before, "loss")),
                Beside(f"{name}, beyond", number, _shown(after, "loss")),
            )
            found.append(Verdict(what, word, _noted(why, row), effect, size, beside, chosen.source, row.mark))
    return found or [_missing(chosen, row)]


def _shape(low: float, high: float) -> str:
    if low > FLAT:
        return "grows"
    if high < -FLAT:
        return "falls"
    return "stays" if low >= -FLAT and high <= FLAT else "is open"


def _rank(chosen: Paper, row: Row, view: View) -> list[Verdict]:
    """Ranks among the paper's entries alone, over all our tasks that its rows ask for."""
    asked = [asked for other in chosen.rows for asked in other.ours]
    tasks: list[dict[str, Sample]] = []
    for task in view.tasks:
        where = view.lengths(task, "beyond")
        if not where or not any(same_task(one, task) for one in asked):
            continue
        named = {theirs: _entry(view, task, theirs) for theirs in row.numbers}
        samples = {n: view.sample(task, entry, where, chosen.measure) for n, entry in named.items() if entry}
        tasks.append({n: sample for n, sample in samples.items() if sample is not None})
    ours = mean_reciprocal_rank([task for task in tasks if len(task) > 1])
    if len(ours) < 2:
        return [_missing(chosen, row)]
    order = sorted(ours, key=lambda name: -row.numbers[name])
    pairs = [
        (a, b) for i, a in enumerate(order) for b in order[i + 1 :] if row.numbers[a] - row.numbers[b] > chosen.margin
    ]
    agree = sum(ours[a].low > ours[b].high for a, b in pairs)
    against = sum(ours[b].low > ours[a].high for a, b in pairs)
    word = _ordering_word(agree, against, len(pairs) - agree - against)
    why = (
        f"Over {len(tasks)} tasks. Of {len(pairs)} pairs that the paper tells apart, {agree} agree, {against} disagree "
        f"and {len(pairs) - agree - against} are open, as their intervals overlap"
    )
    beside = tuple(Beside(name, row.numbers[name], ours.get(name)) for name in row.numbers)
    top = max(ours, key=lambda name: ours[name].value)
    return [Verdict(row.what, word, _noted(why, row), ours[top], row.numbers[top], beside, chosen.source, row.mark)]


def _gain(chosen: Paper, row: Row, view: View) -> list[Verdict]:
    """Each randomised entry less the plain one, over all tasks; each by itself and all together."""
    gains: dict[str, list[Sample]] = {}
    for task in view.counted if view.results else []:
        where = view.lengths(task, "beyond")
        for entry in view.entries(task):
            base = next((e for e in view.entries(task) if plain(entry) == f"randomised-{plain(e)}"), None)
            if base is None or is_control(base) or view.measure(task) == "loss" or not where:
                continue
            with_, without = (view.sample(task, each, where, chosen.measure) for each in (entry, base))
            if with_ and without and (apart := difference(with_, without)) is not None:
                gains.setdefault(base, []).append(apart)
    everything = [gain for each in gains.values() for gain in each]
    if not everything:
        return [_missing(chosen, row)]
    parts = [(row.what, everything)]
    if len(gains) > 1:
        parts += [(f"gain of randomised {name}", each) for name, each in gains.items()]
    size = row.numbers["gain"]
    found = []
    for what, part in parts:
        if (gain := average(part)) is None:
            continue
        effect = estimate(gain)
        word = _size_word(effect, size)
        word = "not distinguishable" if effect.holds(0.0) else f"a gain too, {word}" if effect.value > 0 else word
        why = f"Over {len(part)} pairs of task and encoding: {worded(effect, 'of accuracy')}, theirs {size:+.3f} in all"
        found.append(Verdict(what, word, _noted(why, row), effect, size, (), chosen.source, row.mark))
    return found


def _best(chosen: Paper, row: Row, view: View) -> list[Verdict]:
    """The best of our runs against the best of theirs; the spread over seeds is said beside it."""
    found = []
    for task in _tasks(chosen, row, view):
        where = _where(row, view, task)
        for name, number in row.numbers.items():
            entry = _entry(view, task, name)
            sample = view.sample(task, entry, where, chosen.measure) if entry and where else None
            if sample is None:
                continue
            top, effect = max(sample.values), estimate(sample)
            word = "as good a run" if top >= number else "no run as good"
            why = f"The best of {len(sample.seeds)} runs has {top:.3f}, theirs {number:.3f}; our worst has "
            why += f"{min(sample.values):.3f}"
            beside = (Beside(name, number, effect),)
            what = f"{row.what} (ours: {task}, {_lengths(where)})"
            found.append(Verdict(what, word, _noted(why, row), effect, number, beside, chosen.source, row.mark))
    return found or [_missing(chosen, row)]


def _missing(chosen: Paper, row: Row) -> Verdict:
    beside = tuple(Beside(name, number, None) for name, number in row.numbers.items())
    why = _noted("This study has no run that answers to it", row)
    return Verdict(row.what, "not measured", why, None, None, beside, chosen.source, row.mark)


def _noted(why: str, row: Row) -> str:
    return f"{why}. {row.note}" if row.note else f"{why}."


def _lengths(where: Sequence[int]) -> str:
    return f"length {where[0]}" if len(where) == 1 else f"lengths {where[0]} to {where[-1]}"


_DECIDE = {"table": _table, "change": _change, "rank": _rank, "gain": _gain, "best": _best}
