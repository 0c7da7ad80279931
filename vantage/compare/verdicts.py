"""What the numbers allow one to say, in words: who is better than whom, and who stays at chance."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass

from vantage.compare.result_table import Part, ResultTable, is_control, normalise_task
from vantage.compare.statistics import Estimate, Sample, difference, estimate, holm, p_value
from vantage.training import tasks

SURE = 0.05  # of Holm's corrected p-values
AT_CHANCE = 0.05  # this close to chance is at chance


@dataclass(frozen=True)
class Beside:
    """A published number and ours. Perplexities where the loss is scored."""

    entry: str
    theirs: float | None
    ours: Estimate | None


@dataclass(frozen=True)
class Verdict:
    """A statement of others and what we found of it. ``effect`` is the interval that decided."""

    what: str
    word: str  # "holds", "same ordering", "not distinguishable", "not measured", …
    why: str
    effect: Estimate | None = None
    theirs: float | None = None  # their number for the effect
    beside: tuple[Beside, ...] = ()
    source: str = ""
    mark: str = ""  # R: recomputed from their logs, T: read in a transcription


@dataclass(frozen=True)
class PairedComparison:
    """Two entries in one task, the better mean first. The difference is of accuracy, or of the loss turned round."""

    task: str
    better: str
    worse: str
    difference: Estimate
    p: float
    corrected: float

    @property
    def distinguishable(self) -> bool:
        """The interval of the paired difference leaves out 0, and Holm's corrected p-value agrees."""
        return not self.difference.holds(0.0) and self.corrected <= SURE

    @property
    def word(self) -> str:
        return "better" if self.distinguishable else "not distinguishable"


@dataclass(frozen=True)
class RankedEntry:
    """Where an entry ends in a task: its reciprocal rank, and its distance from the best mean."""

    entry: str
    rank: float
    word: str
    behind: Estimate | None


def comparisons(table: ResultTable, task: str, part: Part = "beyond") -> list[PairedComparison]:
    """Every pair of a task, corrected for how many pairs the task has."""
    samples = table.ranked(task, part)
    order = sorted(samples, key=lambda entry: (-samples[entry].mean, entry))
    pairs: list[tuple[str, str, Sample]] = []
    for better, worse in itertools.combinations(order, 2):
        if (apart := difference(samples[better], samples[worse])) is not None:
            pairs.append((better, worse, apart))
    chances = [p_value(apart) for _, _, apart in pairs]
    return [
        PairedComparison(task, better, worse, estimate(apart), p, corrected)
        for (better, worse, apart), p, corrected in zip(pairs, chances, holm(chances), strict=True)
    ]


def rank_entries(table: ResultTable, task: str, part: Part = "beyond") -> list[RankedEntry]:
    """The entries of a task from the best mean down, those who tie on the same rank. The controls are not placed."""
    samples = table.ranked(task, part)
    order = sorted(samples, key=lambda entry: (-samples[entry].mean, entry))
    if not order:
        return []
    against_best = {pair.worse: pair for pair in comparisons(table, task, part) if pair.better == order[0]}
    ranked: list[RankedEntry] = []
    for entry in order:
        above = [samples[other].mean > samples[entry].mean + 1e-12 for other in order]
        level = [abs(samples[other].mean - samples[entry].mean) <= 1e-12 for other in order]
        rank = sum(above) + (sum(level) + 1) / 2
        pair = against_best.get(entry)
        if pair is None:
            word = "best mean"
        elif pair.distinguishable:
            word = "behind the best"
        else:
            word = "not distinguishable from the best"
        ranked.append(RankedEntry(entry, rank, word, pair.difference if pair else None))
    return ranked


def chance_of(task: str, chance: Mapping[str, float] | None = None) -> float | None:
    """What a guess gets: of the task as it is written, or of the task whatever its parameters."""
    bare = normalise_task(task).partition("(")[0]
    for name in (task, bare):
        if chance is not None and name in chance:
            return chance[name]
    return tasks.chance_of(bare)


def controls(table: ResultTable, chance: Mapping[str, float] | None = None) -> list[Verdict]:
    """A control must stay at chance; where it does not, the task can be solved without what it is to measure.

    It holds where the whole interval lies within ``AT_CHANCE`` of it: an interval that excludes nothing shows nothing.
    """
    verdicts: list[Verdict] = []
    for task, entry in itertools.product(table.tasks, [e for e in table.all_entries if is_control(e)]):
        level, scored = chance_of(task, chance), table.sample(task, entry, table.lengths(task))
        if scored is None or table.measure(task) == "loss":
            continue
        what = f"{entry} stays at chance in {task}"
        if level is None:
            why = "Chance is not known for this task, so the control decides nothing here."
            verdicts.append(Verdict(what, "not measured", why, estimate(scored)))
            continue
        at = estimate(scored)
        near = level - AT_CHANCE <= at.low and at.high <= level + AT_CHANCE
        if at.holds(level):
            word = "holds" if near else "not distinguishable"
            where = f"within {AT_CHANCE:g} of chance" if near else "which holds chance, and too much else"
        else:
            word, where = "does not hold", f"which is {'above' if at.low > level else 'below'} chance"
        why = f"Right in {at.value:.3f} of the rows of all lengths [{at.low:.3f}, {at.high:.3f}], {where} ({level:g})."
        verdicts.append(Verdict(what, word, why, at, level))
    return verdicts


def format_effect(effect: Estimate, unit: str) -> str:
    """An effect with its interval, as it stands in a sentence."""
    if math.isinf(effect.low) or math.isinf(effect.high):
        return f"{effect.value:+.3f} {unit} (one seed, no interval)"
    return f"{effect.value:+.3f} {unit} [{effect.low:+.3f}, {effect.high:+.3f}]"
