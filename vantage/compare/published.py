"""Published results, and whether ours say the same: the same ordering, the same size of effect, or not.

How a row is decided:

- **Ordering**: every pair that the paper has apart by more than its ``margin`` and that we measured. A pair agrees or
  disagrees where our paired difference is distinguishable (its interval leaves out 0, after Holm's correction over the
  row's pairs), and is open where it is not.
- **Size**: the paper's own best against its worst. The same size, where our interval of that difference holds the
  paper's or ours is within a quarter of it (the paper's has an interval too, and does not say which); else smaller or
  larger. Differences of perplexity are compared as ratios, in nats.
- A task that no entry of ours learned at the training lengths (``learning``) is not measured.
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

from vantage.compare.learning import task_learning
from vantage.compare.names import paper_name
from vantage.compare.result_table import ResultTable, is_control, normalise_name, normalise_task
from vantage.compare.results import RunResult
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
from vantage.compare.verdicts import SURE, Beside, Verdict, format_effect

Kind = Literal["table", "change", "rank", "gain", "best"]
QUARTER = 0.25
FLAT = 0.1  # a change of loss up to this, in nats, is none: a tenth of the perplexity
# Theirs is not named more closely; the first of ours that was measured stands for it.
ALIASES: Mapping[str, tuple[str, ...]] = {
    "absolute": ("sinusoidal", "learned"),
    **{name: (f"{name}-+-lora", name) for name in ("linear", "ntk", "yarn")},  # theirs are trained a little, too
}
# What makes a task another task, with what stands where nothing is said. Other parameters are its size.
IDENTIFYING = {"kind": "random", "times": "1", "count": "clauses", "order": "plain", "brackets": "false", "hints": "0"}


@dataclass(frozen=True)
class PublishedRow:
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
    rows: tuple[PublishedRow, ...]


@functools.cache
def _papers() -> dict[str, Paper]:
    papers_toml: dict[str, Any] = tomllib.loads(
        resources.files("vantage.compare").joinpath("published.toml").read_text()
    )
    papers: dict[str, Paper] = {}
    for name, paper in papers_toml.items():
        rows = tuple(PublishedRow(**{**row, "ours": tuple(row.get("ours", ()))}) for row in paper.pop("rows"))
        papers[name] = Paper(name=name, rows=rows, **paper)
    return papers


def names() -> tuple[str, ...]:
    return tuple(_papers())


def paper(name: str) -> Paper:
    """A paper by its short name; "randomized" is "randomised"."""
    return _papers()[paper_name(name)]


def rows(name: str) -> tuple[PublishedRow, ...]:
    return paper(name).rows


def compare_with(
    name: str,
    results: Sequence[RunResult],
    train_length: int | Mapping[str, int],
    measures: Mapping[str, str] | None = None,
) -> list[Verdict]:
    """Every row of a paper with our numbers beside and a verdict; "not measured" where we have none."""
    chosen = paper(name)
    table = ResultTable(tuple(results), train_length, measures or {})
    verdicts: list[Verdict] = []
    for row in chosen.rows:
        verdicts += _DECIDE[row.kind](chosen, row, table)
    return verdicts


# ------------------------------------------------------------------------------------------------ finding our runs


def _parameters_of(task: str) -> tuple[str, dict[str, str]]:
    name, _, arguments = normalise_task(task).rstrip(")").partition("(")
    pairs = (part.partition("=") for part in arguments.split(",") if "=" in part)
    return name, {key: value for key, _, value in pairs if key in IDENTIFYING}


def same_task(pattern: str, task: str) -> bool:
    """Whether a task of ours is what a row asks for; ``*`` stands for anything but what is there by itself."""
    (name, theirs), (other, ours) = _parameters_of(pattern), _parameters_of(task)
    if name != other:
        return False
    for key, usual in IDENTIFYING.items():
        their_value, our_value = theirs.get(key, usual), ours.get(key, usual)
        if our_value == usual if their_value == "*" else their_value != our_value:
            return False
    return True


def _tasks(chosen: Paper, row: PublishedRow, table: ResultTable) -> list[str]:
    if row.ours:
        return [task for task in table.tasks if any(same_task(pattern, task) for pattern in row.ours)]
    return [task for task in table.counted if (table.measure(task) == "loss") == (chosen.measure == "loss")]


def _entry(table: ResultTable, task: str, theirs: str) -> str | None:
    """Our entry for a name of theirs, with the plain attention."""
    ours = {normalise_name(entry): entry for entry in table.entries(task)}
    return next((ours[name] for name in ALIASES.get(theirs, (theirs,)) if name in ours), None)


def _where(row: PublishedRow, table: ResultTable, task: str) -> list[int]:
    """Our lengths that answer to the row's."""
    if not row.length:
        return table.lengths(task, "beyond")
    times = row.length / row.train
    near = [length for length in table.lengths(task) if abs(length / table.trained(task) / times - 1) <= QUARTER]
    return sorted(near, key=lambda length: abs(length / table.trained(task) - times))[:1]


def _unlearned(chosen: Paper, table: ResultTable, task: str) -> bool:
    return task_learning(table, task, measure=chosen.measure).nobody


def _shown(sample: Sample | None, measure: str) -> Estimate | None:
    if sample is None:
        return None
    return estimate(sample).mapped(math.exp) if measure == "loss" else estimate(sample)


# -------------------------------------------------------------------------------------------------- kinds of rows


def _table(chosen: Paper, row: PublishedRow, table: ResultTable) -> list[Verdict]:
    verdicts = []
    for task in _tasks(chosen, row, table):
        where = _where(row, table, task)
        ours: dict[str, Sample] = {}
        for theirs in row.numbers:
            entry = _entry(table, task, theirs)
            sample = table.sample(task, entry, where, chosen.measure) if entry and where else None
            if sample is not None:
                ours[theirs] = sample
        if not ours:
            continue
        what = f"{row.what} (ours: {task}, {_lengths(where)})"
        decide = _not_learned if _unlearned(chosen, table, task) else _ordered
        verdicts.append(decide(chosen, row, ours, what))
    return verdicts or [_missing(chosen, row)]


def _not_learned(chosen: Paper, row: PublishedRow, ours: Mapping[str, Sample], what: str) -> Verdict:
    beside = tuple(Beside(name, row.numbers[name], _shown(ours.get(name), chosen.measure)) for name in row.numbers)
    why = _noted("No entry of ours learned the task at the training lengths, so no order follows from it", row)
    return Verdict(what, "not measured", why, None, None, beside, chosen.source, row.mark)


def _ordered(chosen: Paper, row: PublishedRow, ours: Mapping[str, Sample], what: str) -> Verdict:
    """Pairs with the paper's better one first, so that a difference above 0 agrees."""
    loss = chosen.measure == "loss"
    theirs = {name: -math.log(number) if loss else number for name, number in row.numbers.items()}
    good = {name: sample.negated() if loss else sample for name, sample in ours.items()}
    order = sorted(good, key=lambda name: -theirs[name])
    pairs = [(a, b) for i, a in enumerate(order) for b in order[i + 1 :] if theirs[a] - theirs[b] > chosen.margin]
    apart = {pair: paired for pair in pairs if (paired := difference(good[pair[0]], good[pair[1]])) is not None}
    beside = tuple(Beside(name, row.numbers[name], _shown(ours.get(name), chosen.measure)) for name in row.numbers)
    if not apart:
        why = "No two of the entries that the paper tells apart were measured on the same seeds"
        return Verdict(what, "not measured", why, None, None, beside, chosen.source, row.mark)
    chances = dict(zip(apart, holm([p_value(paired) for paired in apart.values()]), strict=True))
    effects = {pair: estimate(paired) for pair, paired in apart.items()}
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
        f"{open_} are open. {widest[0]} over {widest[1]}: {format_effect(effects[widest], unit)}, theirs {size:+.3f}"
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


def _change(chosen: Paper, row: PublishedRow, table: ResultTable) -> list[Verdict]:
    """How each entry's loss changes from its training length to beyond: it grows, stays or falls."""
    verdicts = []
    for task in _tasks(chosen, row, table):
        far, near = _where(row, table, task), table.lengths(task, "within")[-1:]
        for name, number in row.numbers.items():
            entry = _entry(table, task, name)
            after = table.sample(task, entry, far, "loss") if entry and far else None
            before = table.sample(task, entry, near, "loss") if entry and near else None
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
            why = f"Their perplexity {theirs}, ours {ours}: {format_effect(effect, 'nats')}, theirs {size:+.3f}"
            beside = (
                Beside(f"{name}, at the training length", row.before[name], _shown(before, "loss")),
                Beside(f"{name}, beyond", number, _shown(after, "loss")),
            )
            verdicts.append(Verdict(what, word, _noted(why, row), effect, size, beside, chosen.source, row.mark))
    return verdicts or [_missing(chosen, row)]


def _shape(low: float, high: float) -> str:
    if low > FLAT:
        return "grows"
    if high < -FLAT:
        return "falls"
    return "stays" if low >= -FLAT and high <= FLAT else "is open"


def _rank(chosen: Paper, row: PublishedRow, table: ResultTable) -> list[Verdict]:
    """Ranks among the paper's entries alone, over all our tasks that its rows ask for."""
    patterns = [patterns for other in chosen.rows for patterns in other.ours]
    tasks: list[dict[str, Sample]] = []
    for task in table.tasks:
        where = table.lengths(task, "beyond")
        if not where or not any(same_task(one, task) for one in patterns) or _unlearned(chosen, table, task):
            continue
        named = {theirs: _entry(table, task, theirs) for theirs in row.numbers}
        samples = {n: table.sample(task, entry, where, chosen.measure) for n, entry in named.items() if entry}
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


def _gain(chosen: Paper, row: PublishedRow, table: ResultTable) -> list[Verdict]:
    """Each randomised entry less the plain one, over all tasks; each by itself and all together."""
    gains: dict[str, list[Sample]] = {}
    for task in [task for task in table.counted if not _unlearned(chosen, table, task)]:
        where = table.lengths(task, "beyond")
        for entry in table.entries(task):
            base = next(
                (e for e in table.entries(task) if normalise_name(entry) == f"randomised-{normalise_name(e)}"), None
            )
            if base is None or is_control(base) or table.measure(task) == "loss" or not where:
                continue
            with_, without = (table.sample(task, each, where, chosen.measure) for each in (entry, base))
            if with_ and without and (apart := difference(with_, without)) is not None:
                gains.setdefault(base, []).append(apart)
    everything = [gain for each in gains.values() for gain in each]
    if not everything:
        return [_missing(chosen, row)]
    parts = [(row.what, everything)]
    if len(gains) > 1:
        parts += [(f"gain of randomised {name}", each) for name, each in gains.items()]
    size = row.numbers["gain"]
    verdicts = []
    for what, part in parts:
        if (gain := average(part)) is None:
            continue
        effect = estimate(gain)
        word = _size_word(effect, size)
        word = "not distinguishable" if effect.holds(0.0) else f"a gain too, {word}" if effect.value > 0 else word
        ours = format_effect(effect, "of accuracy")
        why = f"Over {len(part)} pairs of task and encoding: {ours}, theirs {size:+.3f} in all"
        verdicts.append(Verdict(what, word, _noted(why, row), effect, size, (), chosen.source, row.mark))
    return verdicts


def _best(chosen: Paper, row: PublishedRow, table: ResultTable) -> list[Verdict]:
    """The best of our runs against the best of theirs; the spread over seeds is said beside it."""
    verdicts = []
    for task in _tasks(chosen, row, table):
        where = _where(row, table, task)
        for name, number in row.numbers.items():
            entry = _entry(table, task, name)
            sample = table.sample(task, entry, where, chosen.measure) if entry and where else None
            if sample is None:
                continue
            top, effect = max(sample.values), estimate(sample)
            word = "as good a run" if top >= number else "no run as good"
            why = f"The best of {len(sample.seeds)} runs has {top:.3f}, theirs {number:.3f}; our worst has "
            why += f"{min(sample.values):.3f}"
            beside = (Beside(name, number, effect),)
            what = f"{row.what} (ours: {task}, {_lengths(where)})"
            verdicts.append(Verdict(what, word, _noted(why, row), effect, number, beside, chosen.source, row.mark))
    return verdicts or [_missing(chosen, row)]


def _missing(chosen: Paper, row: PublishedRow) -> Verdict:
    beside = tuple(Beside(name, number, None) for name, number in row.numbers.items())
    why = _noted("This experiment has no run that answers to it", row)
    return Verdict(row.what, "not measured", why, None, None, beside, chosen.source, row.mark)


def _noted(why: str, row: PublishedRow) -> str:
    return f"{why}. {row.note}" if row.note else f"{why}."


def _lengths(where: Sequence[int]) -> str:
    return f"length {where[0]}" if len(where) == 1 else f"lengths {where[0]} to {where[-1]}"


_DECIDE = {"table": _table, "change": _change, "rank": _rank, "gain": _gain, "best": _best}
