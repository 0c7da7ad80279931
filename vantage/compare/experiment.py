"""An experiment: which tasks, which encodings, which lengths, how many seeds; and the jobs that it comes to."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from vantage.compare import text as texts
from vantage.compare.entries import all_positions, check_entry, goes_with, plain_positions, section
from vantage.compare.equal import matched
from vantage.compare.experiment_fields import (
    STEPS_BY_DEFAULT,
    TASKS_BY_DEFAULT,
    ExperimentFields,
    check_fields,
    shortest,
)
from vantage.compare.names import ALL, CONTROL, DEFAULT, PLAIN
from vantage.compare.results import Key
from vantage.compare.task_names import task_of
from vantage.errors import BadInput
from vantage.spec.table_reader import PartNames, Reader
from vantage.training.models import Decoder
from vantage.training.sequences import Sequences
from vantage.training.tasks.guess import guess_score

GUESSABLE = 0.5  # of the tokens: a task where a guess gets more is scored by whole rows


@dataclass(frozen=True)
class Experiment(ExperimentFields):
    """What is compared. Every entry gets the same data, the same steps and the same search for its learning rate."""

    def __post_init__(self) -> None:
        check_fields(self)
        for position in self.positions:
            for attention in self.attention:
                check_entry(position, attention)
        if self.text:
            self.reading(0)
        for attention in self.attention:
            if not any(goes_with(position, attention) for position in self.positions):
                raise BadInput(f"none of these positions can act in {attention}: add none to the positions")
        if not self.wanted():
            raise BadInput(f"{CONTROL} answers with one symbol, and none of these tasks does: add a causal encoding")
        if self.equal == "parameters":
            for name in self.tasks:
                _matched(self, name)

    def reading(self, seed: int) -> texts.Reading:
        tests = tuple(sorted({self.train_length, *self.test_lengths}))
        tokens = self.test_examples * self.train_length
        return texts.Reading(texts.shards(self.text, self.vocabulary), self.train_length, tests, tokens, seed)

    def data(self, name: str, reads: Any, seed: int) -> Sequences | texts.Reading:
        """What a run learns and is tested on."""
        return self.reading(seed) if name == texts.NAME else self.sequences(name, reads, seed)

    def vocab(self, name: str) -> int:
        return self.data(name, "line", 0).vocab

    def sequences(self, name: str, reads: Any, seed: int) -> Sequences:
        task = task_of(name)
        lengths = (shortest(task, self.train_length), self.train_length)
        tests = tuple(sorted({self.train_length, *self.test_lengths}))
        return Sequences(task, reads, lengths, tests, self.test_examples, seed)

    def longest(self, name: str) -> int:
        """The most tokens that any row of a task has, as a decoder reads it."""
        top = max(self.train_length, *self.test_lengths)
        if name == texts.NAME:
            return top
        task = task_of(name)
        probe = Sequences(task, "line", (top, top), (top,), 64)
        return max(batch.tokens.shape[1] for batch in probe.held_out()[f"length {top}"]) + 1

    def section(self, name: str, position: str, attention: str) -> Decoder:
        if self.equal == "parameters":
            return _matched(self, name)[position, attention]
        return section(position, attention, self.shape, self.longest(name))

    def wanted(self) -> list[Key]:
        """Every result. A text is read in several ways by the same run, and each of them is a result."""
        return [
            Key(reading, position, attention, seed)
            for name in self.tasks
            for reading in (texts.READINGS if name == texts.NAME else (name,))
            for attention in self.attention
            for position in self.positions
            for seed in range(self.first_seed, self.first_seed + self.seeds)
            if self.fits(name, position, attention)
        ]

    def trainings(self) -> int:
        """How many models are trained, the searches apart."""
        return len([key for key in self.wanted() if key.task in self.tasks])

    def fits(self, name: str, position: str, attention: str) -> bool:
        """A control without a causal mask answers with one symbol: it is left out of tasks with longer answers. So is a
        position where nothing could read it."""
        if position != CONTROL:
            return goes_with(position, attention)
        if not goes_with(position, attention):
            return False
        if name == texts.NAME:
            return False
        return self._answer_length(name) == 1

    def _answer_length(self, name: str) -> int:
        at = self.train_length
        return len(Sequences(task_of(name), "line", (at, at), (at,)).example(0).answer)

    def measures(self) -> dict[str, str]:
        """What is scored in a task that is not scored by whole rows."""
        by_tokens = [name for name in self.tasks if name != texts.NAME and self._scored_by_tokens(name)]
        return dict.fromkeys(by_tokens, "tokens")

    def _scored_by_tokens(self, name: str) -> bool:
        """Tokens say more than whole rows, but not where a guess has most of them, as where one token is repeated."""
        if self.score != "auto":
            return self.score == "tokens"
        return self._answer_length(name) > 1 and guess_score(task_of(name), self.train_length).tokens < GUESSABLE

    def entries(self) -> Iterator[tuple[str, str, str]]:
        yield from dict.fromkeys((trained_on(key), key.position, key.attention) for key in self.wanted())

    def fingerprint(self) -> str:
        """Of the settings, and of what the files of text hold."""
        identity = {name: value for name, value in asdict(self).items() if value != _BEFORE.get(name)} | (
            {"text": texts.shards(self.text, self.vocabulary).index.fingerprint} if self.text else {}
        )
        return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]


# Fields that experiments had not always, with what they then had: their fingerprints stay what they were.
_BEFORE = {"score": "exact", "first_seed": 0}


def kept_experiment(fields: dict[str, Any], where: str) -> Experiment:
    """An experiment as a folder has kept it, perhaps since before some of the fields."""
    return experiment_of(_BEFORE | fields, where)


def default_steps(tasks: Collection[str]) -> int:
    """Of a run, where nobody asks for a number."""
    return STEPS_BY_DEFAULT if set(tasks) <= set(TASKS_BY_DEFAULT) else Experiment.steps


def trained_on(key: Key) -> str:
    """The task of a run: a text is one task, in however many ways it is read."""
    return texts.NAME if key.task in texts.READINGS else key.task


@functools.lru_cache(32)
def _matched(experiment: Experiment, name: str) -> dict[tuple[str, str], Decoder]:
    """The models of a task, at equal parameters."""
    longest = experiment.longest(name)
    pairs = [(p, a) for a in experiment.attention for p in experiment.positions if experiment.fits(name, p, a)]
    return matched({(p, a): section(p, a, experiment.shape, longest) for p, a in pairs}, experiment.vocab(name))


def expand_positions(words: tuple[str, ...]) -> tuple[str, ...]:
    """ "all" stands for every encoding, "plain" for those without random positions."""
    sets = {ALL: all_positions(), PLAIN: plain_positions(), "default": DEFAULT}
    names = [name for word in words for name in sets.get(word, (word,))]
    return tuple(dict.fromkeys(names))


def written_experiment(fields: dict[str, Any], where: str) -> Experiment:
    """An experiment from a table that somebody wrote, where "all" may stand for names of encodings."""
    if isinstance(fields.get("positions"), list):
        fields = {**fields, "positions": list(expand_positions(tuple(fields["positions"])))}
    return experiment_of(fields, where)


def experiment_of(fields: dict[str, Any], where: str) -> Experiment:
    """An experiment from a nested table."""
    return Reader(4096, PartNames(error=BadInput, loose=True)).part(fields, (Experiment,), where, 0)
