"""What an experiment found, in a few sentences: the head of the page, the end of the command, the studio's verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vantage.compare.learning import TaskLearning, task_learning
from vantage.compare.result_table import ResultTable, perplexity
from vantage.compare.statistics import Estimate
from vantage.compare.verdicts import (
    PairedComparison,
    comparisons,
    overall_comparisons,
    overall_tasks,
    rank_entries,
)
from vantage.figures.inline_svg import interval_text

UNIT = {"exact": " of the rows", "tokens": " of the tokens", "loss": ""}
LISTED = 3  # entries that are named one by one; of more only the number is said
MORE = "Give them more --steps or a longer --budget, or choose an easier task."


def summary(table: ResultTable, metadata: Mapping[str, Any]) -> list[str]:
    """A sentence for each task, and one for all of them together where there are several."""
    sentences = [_task_sentence(table, task, metadata) for task in table.tasks]
    learnings = [task_learning(table, task, metadata["chance"]) for task in table.counted]
    if learnings and all(learning.nobody for learning in learnings):
        what = "the task" if len(learnings) == 1 else "any of the tasks"
        return [*sentences, f"So no entry {_can(metadata)} {what}, and nothing is said about which is better. {MORE}"]
    return sentences + _overall_sentences(table, metadata)


def _task_sentence(table: ResultTable, task: str, metadata: Mapping[str, Any]) -> str:
    reach, chance = metadata["reach"], metadata["chance"]
    learning = task_learning(table, task, chance)
    if learning.nobody:
        return _not_learned(table, task, learning, metadata)
    ranked = rank_entries(table, task, chance=chance)
    if not ranked:
        return f"{task}: nothing was tested beyond the {reach}."
    loss = table.measure(task) == "loss"
    first = table.estimate(task, ranked[0].entry, "beyond")
    if first and first.value == 0 and not loss:
        return f"{task}: beyond the {reach} no entry had anything right."
    sentence = f"{task}: beyond the {reach} “{ranked[0].entry}” has the best mean"
    sentence += f", {format_estimate(first, loss)}{UNIT[table.measure(task)]}" if first else ""
    if len(ranked) == 1:
        return f"{sentence}. It was alone."
    rest = [one.entry for one in ranked[1:]]
    sentence += _beside_the_best(ranked[0].entry, rest, comparisons(table, task, chance=chance))
    if learning.not_learned:
        sentence += f" Not learned at the lengths of the training: {', '.join(learning.not_learned)}."
    return sentence


def _beside_the_best(best: str, rest: Sequence[str], pairs: Sequence[PairedComparison]) -> str:
    """Whom the best is distinguishable from, and how many pairs are decided in all."""
    behind = {pair.worse for pair in pairs if pair.better == best and pair.distinguishable}
    level = [entry for entry in rest if entry not in behind]
    if not level:
        words = ", and is distinguishable from every other."
    elif len(level) == len(rest) > LISTED:
        words = ". No other is distinguishable from it."
    else:
        words = f". Not distinguishable from it: {', '.join(level)}."
    return f"{words} {decided(pairs)}"


def decided(pairs: Sequence[PairedComparison]) -> str:
    count = sum(pair.distinguishable for pair in pairs)
    return f"{count} of {len(pairs)} pair{'s are' if len(pairs) != 1 else ' is'} decided."


def _not_learned(table: ResultTable, task: str, learning: TaskLearning, metadata: Mapping[str, Any]) -> str:
    """Who came furthest, and what a guess would have had."""
    reach, loss = metadata["reach"], table.measure(task) == "loss"
    within = {entry: table.estimate(task, entry, "within") for entry in learning.not_learned}
    known = {entry: one for entry, one in within.items() if one is not None}
    sentence = f"{task}: no entry {_can(metadata)} the task."
    if not known:
        return sentence
    best = (min if loss else max)(known, key=lambda entry: known[entry].value)
    value = f"{format_estimate(known[best], loss)}{UNIT[table.measure(task)]}"
    sentence += f" Within the {reach} the best mean is that of “{best}”, {value}"
    if learning.guess is not None:
        guess = f"{perplexity(learning.guess):.2f}" if loss else f"{learning.guess:.2f}"
        sentence += f"; {'the frequencies of the tokens alone give' if loss else 'a guess gets'} {guess}"
    return f"{sentence}. What they score beyond it says nothing, and no pair is compared."


def _overall_sentences(table: ResultTable, metadata: Mapping[str, Any]) -> list[str]:
    pairs = overall_comparisons(table, metadata["chance"])
    if not pairs:
        return []
    tasks = overall_tasks(table, metadata["chance"])
    best = pairs[0].better
    rest = [entry for entry in dict.fromkeys(pair.worse for pair in pairs) if entry != best]
    left_out = [task for task in table.counted if task not in tasks]
    how_many = "Both" if len(tasks) == 2 else f"All {len(tasks)}"
    sentence = f"{how_many} tasks together, each counting the same: “{best}” has the best mean"
    sentence += _beside_the_best(best, rest, pairs)
    if left_out:
        sentence += f" Left out: {', '.join(left_out)}."
    return [sentence]


def _can(metadata: Mapping[str, Any]) -> str:
    """A model that was loaded was not trained here."""
    return "learned" if metadata["samples"][0] == "seed" else "can do"


def format_estimate(estimate: Estimate, loss: bool) -> str:
    return interval_text(estimate.value, estimate.low, estimate.high, log=loss)
