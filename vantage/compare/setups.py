"""The papers' own set-ups as experiments, at a scale that one can afford, and what that leaves out, in words."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any

from vantage.compare.equal import hidden_of, parameters
from vantage.compare.experiment import Experiment, experiment_of
from vantage.compare.names import SCALES
from vantage.compare.published import paper
from vantage.compare.text import NAME
from vantage.errors import BadInput, unknown

# What a scale has where it says nothing else.
USUAL = {"score": "exact", "seeds": 3, "batch": 64, "train_length": 20, "test_examples": 512}


@dataclass(frozen=True)
class Setup:
    """A paper's set-up: setups.toml says what the fields mean."""

    theirs: Mapping[str, object]  # by what it is called in a sentence
    besides: tuple[str, ...]
    reads: str  # the text it reads, where it reads text
    scales: Mapping[str, Mapping[str, Any]]


@functools.cache
def _setups() -> dict[str, Setup]:
    fields = tomllib.loads(resources.files("vantage.compare").joinpath("setups.toml").read_text(encoding="utf-8"))
    return {
        name: Setup(one["theirs"], tuple(one["besides"]), one.get("reads", ""), {scale: one[scale] for scale in SCALES})
        for name, one in fields.items()
    }


def setup_of(name: str) -> tuple[str, Setup]:
    """By the paper's name; only some papers have a set-up that an experiment can be."""
    key = paper(name).name
    if key not in _setups():
        instead = "vantage compare --extend MODEL" if key == "context-extension" else "--tasks and --positions"
        raise BadInput(f"{key!r} has no set-up of its own to repeat (use {instead}). There are: {', '.join(_setups())}")
    return key, _setups()[key]


def experiment_for(name: str, scale: str, text: tuple[str, ...] = ()) -> Experiment:
    """The experiment of a paper at a scale. ``text``: files, for one that reads text."""
    name_of_paper, setup = setup_of(name)
    if scale not in SCALES:
        raise BadInput(unknown("scale", scale, SCALES))
    if setup.reads and not text:
        raise BadInput(f"{name_of_paper} reads text: name files with --text (the paper's is {setup.reads})")
    if text and not setup.reads:
        raise BadInput(f"{name_of_paper} has no task that reads text: leave --text out")
    fields = {**USUAL, **setup.scales[scale], "published": [name_of_paper]}
    if setup.reads:
        fields |= {"tasks": [NAME], "text": list(text)}
    return experiment_of(fields, f"{name_of_paper} ({scale})")


# ---- in words


def reductions(experiment: Experiment) -> list[str]:
    """How an experiment differs from the set-up of each paper that it is set beside."""
    sentences: list[str] = []
    for name in experiment.published:
        if paper(name).name not in _setups():
            continue
        _, setup = setup_of(name)
        ours = _ours(experiment)
        differs = [
            f"{what} {ours[what]} (theirs: {_format(value)})"
            for what, value in setup.theirs.items()
            if ours[what] != _format(value)
        ]
        if differs:
            sentences.append(f"Beside {paper(name).source}, this is another size: {', '.join(differs)}.")
        sentences += [f"{sentence}." for sentence in setup.besides]
    return sentences


def _ours(experiment: Experiment) -> dict[str, str]:
    entry = next(experiment.entries())
    values = {
        "width": experiment.shape.width,
        "layers": experiment.shape.layers,
        "heads": experiment.shape.heads,
        "steps": experiment.steps,
        "batch": experiment.batch,
        "training length": experiment.train_length,
        "longest test": max(experiment.test_lengths),
        "seeds": experiment.seeds,
        "test examples": experiment.test_examples,
        "text": ", ".join(experiment.text),
        "parameters": parameters(experiment.section(*entry), experiment.vocab(entry[0])),
    }
    return {name: _format(value) for name, value in values.items()}


def _format(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def notes(experiment: Experiment) -> list[str]:
    """What the page says of how the models were made comparable, and of what a paper's set-up was cut to."""
    sentences = reductions(experiment)
    if experiment.text:
        sentences.append(
            f"Text ({', '.join(experiment.text)}, {experiment.vocabulary}): trained on windows of "
            f"{experiment.train_length} tokens, and the last tenth is read. “text” cuts it into windows that do not "
            f"overlap; “text, sliding” moves the window by {experiment.reading(0).stride} tokens and scores the new "
            f"ones; “text, over position” is by where a token stands in the longest window."
        )
    if experiment.equal == "parameters":
        sentences += [_equality(experiment, name) for name in experiment.tasks]
    return sentences


def _equality(experiment: Experiment, name: str) -> str:
    """Which feed-forward widths made the counts of a task equal."""
    vocab, widths, counts = experiment.vocab(name), [], []
    for task, position, attention in experiment.entries():
        if task == name:
            section = experiment.section(name, position, attention)
            label = position if attention == "multi-head" else f"{position}, {attention}"
            widths.append(f"{label} {hidden_of(section)}")
            counts.append(parameters(section, vocab))
    apart = (max(counts) - min(counts)) / max(counts)
    return (
        f"Equal parameters in {name}: {min(counts):,} to {max(counts):,}, {apart:.2%} apart, by the width of the "
        f"feed-forward layers ({'; '.join(widths)}). Compute is then not equal; it is listed."
    )
