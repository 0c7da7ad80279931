"""What the numbers allow one to say, in words: who is better than whom, and who stays at chance."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from vantage.compare.learning import Chance, TaskLearning, chance_of, guess_level, task_learning
from vantage.compare.result_table import Part, ResultTable, is_control
from vantage.compare.statistics import Estimate, Sample, average, difference, estimate, holm, p_value

SURE = 0.05  # of Holm's corrected p-values
AT_CHANCE = 0.05  # this close to chance is at chance
ALL_TASKS = "all tasks"


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


def comparisons(
    table: ResultTable, task: str, part: Part = "beyond", chance: Chance | None = None
) -> list[PairedComparison]:
    """Every pair of a task of which at least one entry learned it, corrected for how many these are.

    Two entries that did not learn a task are equally good at nothing: their difference is not tested.
    """
    learned = set(task_learning(table, task, chance).learned)
    return _paired(task, table.ranked(task, part), lambda a, b: a in learned or b in learned)


def overall_comparisons(table: ResultTable, chance: Chance | None = None) -> list[PairedComparison]:
    """Every pair over all tasks together, beyond the training length: the mean of the tasks, each of which counts the
    same, seed by seed. What it says is said of these tasks. Empty where there are fewer than two to put together.

    Tasks that nobody learned are left out, and perplexities, which are no shares.
    """
    tasks = overall_tasks(table, chance)
    if len(tasks) < 2:
        return []
    samples = [table.ranked(task, "beyond") for task in tasks]
    entries = [entry for entry in samples[0] if all(entry in one for one in samples)]
    means = {entry: average([one[entry] for one in samples]) for entry in entries}
    learned = {entry for task in tasks for entry in task_learning(table, task, chance).learned}
    known = {entry: mean for entry, mean in means.items() if mean is not None}
    return _paired(ALL_TASKS, known, lambda a, b: a in learned or b in learned)


def overall_tasks(table: ResultTable, chance: Chance | None = None) -> list[str]:
    """The tasks that are put together: those that somebody learned, and that are scored by a share."""
    return [
        task
        for task in table.counted
        if table.measure(task) != "loss"
        and len(table.ranked(task, "beyond")) > 1
        and not task_learning(table, task, chance).nobody
    ]


def _paired(task: str, samples: Mapping[str, Sample], comparable: Callable[[str, str], bool]) -> list[PairedComparison]:
    order = sorted(samples, key=lambda entry: (-samples[entry].mean, entry))
    pairs: list[tuple[str, str, Sample]] = []
    for better, worse in itertools.combinations(order, 2):
        if comparable(better, worse) and (apart := difference(samples[better], samples[worse])) is not None:
            pairs.append((better, worse, apart))
    chances = [p_value(apart) for _, _, apart in pairs]
    return [
        PairedComparison(task, better, worse, estimate(apart), p, corrected)
        for (better, worse, apart), p, corrected in zip(pairs, chances, holm(chances), strict=True)
    ]


def rank_entries(
    table: ResultTable, task: str, part: Part = "beyond", chance: Chance | None = None
) -> list[RankedEntry]:
    """The entries of a task from the best mean down, those who tie on the same rank. The controls are not placed."""
    samples = table.ranked(task, part)
    order = sorted(samples, key=lambda entry: (-samples[entry].mean, entry))
    if not order:
        return []
    learning = task_learning(table, task, chance)
    against_best = {pair.worse: pair for pair in comparisons(table, task, part, chance) if pair.better == order[0]}
    ranked: list[RankedEntry] = []
    for entry in order:
        above = [samples[other].mean > samples[entry].mean + 1e-12 for other in order]
        level = [abs(samples[other].mean - samples[entry].mean) <= 1e-12 for other in order]
        rank = sum(above) + (sum(level) + 1) / 2
        pair = against_best.get(entry)
        word = _rank_word(pair, entry, learning, first=entry == order[0])
        ranked.append(RankedEntry(entry, rank, word, pair.difference if pair else None))
    return ranked


def _rank_word(pair: PairedComparison | None, entry: str, learning: TaskLearning, *, first: bool) -> str:
    if learning.nobody:
        return "not learned"
    if first:
        word = "best mean"
    elif pair is None:
        word = "not compared with the best"
    else:
        word = "behind the best" if pair.distinguishable else "not distinguishable from the best"
    return f"{word}; not learned" if entry in learning.not_learned else word


def controls(table: ResultTable, chance: Chance | None = None) -> list[Verdict]:
    """A control must stay at chance; where it does not, the task can be solved without what it is to measure.

    It holds where the whole interval lies within ``AT_CHANCE`` of it: an interval that excludes nothing shows nothing.
    """
    verdicts: list[Verdict] = []
    for task, entry in itertools.product(table.tasks, [e for e in table.all_entries if is_control(e)]):
        level = chance_of(task, chance) if table.measure(task) == "exact" else guess_level(table, task, chance)
        scored = table.sample(task, entry, table.lengths(task))
        if scored is None or table.measure(task) == "loss":
            continue
        what = f"{entry} stays at chance in {task}"
        if level is None:
            why = "Chance is not known for this task, so the control decides nothing here."
            verdicts.append(Verdict(what, "not measured", why, estimate(scored)))
            continue
        at = estimate(scored)
        near = level - AT_CHANCE <= at.low and at.high <= level + AT_CHANCE
        if near:
            word, where = "holds", f"within {AT_CHANCE:g} of chance"
        elif at.holds(level):
            word, where = "not distinguishable", "which holds chance, and too much else"
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
