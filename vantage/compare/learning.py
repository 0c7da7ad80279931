"""Whether a task was learned. Who cannot do it at the lengths of its training says nothing about greater ones.

An entry has **learned** a task if its mean at the training lengths is at least half of the way from what a guess gets
to perfect. What a guess gets is counted in the task itself (``vantage.training.tasks.guess``): the commonest answer, or
the commonest symbol at each place where tokens are scored. A text is learned if its loss is ``TOLERANCE`` below that of
the frequencies of its tokens, which need no context.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from vantage.compare.result_table import ResultTable, normalise_task
from vantage.compare.statistics import Sample
from vantage.compare.task_names import task_of
from vantage.errors import BadInput
from vantage.training.tasks import chance_of as stated_chance
from vantage.training.tasks.guess import guess_score

LEARNED_SHARE = 0.5  # of the way from a guess to perfect
TOLERANCE = 0.1  # nats

Chance = Mapping[str, float]  # by task: what a guess gets, where an experiment says it itself


@dataclass(frozen=True)
class TaskLearning:
    """Who learned a task. ``guess`` and ``bar`` are accuracies, or losses where the loss is scored; None: not known."""

    guess: float | None
    bar: float | None
    learned: tuple[str, ...]
    not_learned: tuple[str, ...]

    @property
    def nobody(self) -> bool:
        return not self.learned and bool(self.not_learned)


def chance_of(task: str, chance: Chance | None = None) -> float | None:
    """What a guess gets, as the experiment says it, or the task itself; None: so little that nobody states it."""
    bare = normalise_task(task).partition("(")[0]
    for name in (task, bare):
        if chance is not None and name in chance:
            return chance[name]
    return stated_chance(bare)


def guess_level(
    table: ResultTable, task: str, chance: Chance | None = None, measure: str | None = None
) -> float | None:
    """What a guess gets at the training length, in the measure of the task, or in another. None: not known."""
    measure = measure or table.measure(task)
    if measure == "loss":
        return chance_of(task, chance)
    if measure == "exact" and (level := chance_of(task, chance)) is not None:
        return level
    try:
        score = guess_score(task_of(task), table.trained(task))
    except BadInput:  # a task that is not one of ours, or has no such length
        return None
    return score.tokens if measure == "tokens" else score.exact


def is_learned(sample: Sample, guess: float | None, measure: str) -> bool:
    """Of what an entry has at the training lengths. Larger is better in a sample: a loss is below 0."""
    if measure == "loss":
        return guess is None or -sample.mean <= guess - TOLERANCE
    return sample.mean >= _bar(guess or 0.0)


def task_learning(
    table: ResultTable, task: str, chance: Chance | None = None, measure: str | None = None
) -> TaskLearning:
    """Of every entry that competes in a task. One that was not tested at the training lengths is taken at its word."""
    measure = measure or table.measure(task)
    guess = guess_level(table, task, chance, measure)
    learned: list[str] = []
    not_learned: list[str] = []
    for entry in table.entries(task, controls=False):
        sample = table.sample(task, entry, "within", measure)
        good = sample if sample is None or measure != "loss" else sample.negated()
        (learned if good is None or is_learned(good, guess, measure) else not_learned).append(entry)
    if measure == "loss":
        bar = None if guess is None else guess - TOLERANCE
    else:
        bar = _bar(guess or 0.0)
    return TaskLearning(guess, bar, tuple(learned), tuple(not_learned))


def _bar(guess: float) -> float:
    return guess + LEARNED_SHARE * (1 - guess)
