"""The papers' own set-ups as studies, at a scale that one can afford, and what that leaves out, in words."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any

from vantage.compare.equal import hidden_of, parameters
from vantage.compare.published import paper
from vantage.compare.study import Study, study_of
from vantage.compare.text import NAME
from vantage.errors import BadInput, unknown

SCALES = ("tiny", "small", "paper-like")


@dataclass(frozen=True)
class Setup:
    """A paper's set-up: setups.toml says what the fields mean."""

    theirs: Mapping[str, object]  # by what it is called in a sentence
    besides: tuple[str, ...]
    reads: str  # the text it reads, where it reads text
    scales: Mapping[str, Mapping[str, Any]]


@functools.cache
def _setups() -> dict[str, Setup]:
    said = tomllib.loads(resources.files("vantage.compare").joinpath("setups.toml").read_text(encoding="utf-8"))
    return {
        name: Setup(one["theirs"], tuple(one["besides"]), one.get("reads", ""), {scale: one[scale] for scale in SCALES})
        for name, one in said.items()
    }


def setup_of(name: str) -> tuple[str, Setup]:
    """By the paper's name; only some papers have a set-up that a study can be."""
    found = paper(name).name
    if found not in _setups():
        instead = "vantage compare --extend MODEL" if found == "context-extension" else "--tasks and --positions"
        raise BadInput(
            f"{found!r} has no set-up of its own to repeat (use {instead}). There are: {', '.join(_setups())}"
        )
    return found, _setups()[found]


def study_for(name: str, scale: str, text: tuple[str, ...] = ()) -> Study:
    """The study of a paper at a scale. ``text``: files, for one that reads text."""
    found, setup = setup_of(name)
    if scale not in SCALES:
        raise BadInput(unknown("scale", scale, SCALES))
    if setup.reads and not text:
        raise BadInput(f"{found} reads text: name files with --text (the paper's is {setup.reads})")
    if text and not setup.reads:
        raise BadInput(f"{found} has no task that reads text: leave --text out")
    said = {**setup.scales[scale], "published": [found]}
    if setup.reads:
        said |= {"tasks": [NAME], "text": list(text)}
    return study_of(said, f"{found} ({scale})")


# ---- in words


def reductions(study: Study) -> list[str]:
    """How a study differs from the set-up of each paper that it is set beside."""
    found: list[str] = []
    for name in study.published:
        if paper(name).name not in _setups():
            continue
        _, setup = setup_of(name)
        ours = _ours(study)
        differs = [
            f"{what} {ours[what]} (theirs: {_told(value)})"
            for what, value in setup.theirs.items()
            if ours[what] != _told(value)
        ]
        if differs:
            found.append(f"Beside {paper(name).source}, this is another size: {', '.join(differs)}.")
        found += [f"{sentence}." for sentence in setup.besides]
    return found


def _ours(study: Study) -> dict[str, str]:
    entry = next(study.entries())
    facts = {
        "width": study.shape.width,
        "layers": study.shape.layers,
        "heads": study.shape.heads,
        "steps": study.steps,
        "batch": study.batch,
        "training length": study.train_length,
        "longest test": max(study.test_lengths),
        "seeds": study.seeds,
        "test examples": study.test_examples,
        "text": ", ".join(study.text),
        "parameters": parameters(study.section(*entry), study.vocab(entry[0])),
    }
    return {name: _told(value) for name, value in facts.items()}


def _told(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def notes(study: Study) -> list[str]:
    """What the page says of how the models were made comparable, and of what a paper's set-up was cut to."""
    found = reductions(study)
    if study.text:
        found.append(
            f"Text ({', '.join(study.text)}, {study.vocabulary}): trained on windows of {study.train_length} tokens, "
            f"and the last tenth is read. “text” cuts it into windows that do not overlap; “text, sliding” moves the "
            f"window by {study.reading(0).stride} tokens and scores the new ones; “text, over position” is by where a "
            f"token stands in the longest window."
        )
    if study.equal == "parameters":
        found += [_equality(study, name) for name in study.tasks]
    return found


def _equality(study: Study, name: str) -> str:
    """Which feed-forward widths made the counts of a task equal."""
    vocab, widths, counts = study.vocab(name), [], []
    for task, position, attention in study.entries():
        if task == name:
            section = study.section(name, position, attention)
            label = position if attention == "multi-head" else f"{position}, {attention}"
            widths.append(f"{label} {hidden_of(section)}")
            counts.append(parameters(section, vocab))
    apart = (max(counts) - min(counts)) / max(counts)
    return (
        f"Equal parameters in {name}: {min(counts):,} to {max(counts):,}, {apart:.2%} apart, by the width of the "
        f"feed-forward layers ({'; '.join(widths)}). Compute is then not equal; it is listed."
    )
