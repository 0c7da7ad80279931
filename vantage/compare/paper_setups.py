"""What setups.toml says of the papers' own set-ups, as the fields of an experiment. Nothing here needs torch."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any

from vantage.compare.names import SCALES, TEXT, paper_name
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
def setups() -> dict[str, Setup]:
    """Those of the papers that have one."""
    fields = tomllib.loads(resources.files("vantage.compare").joinpath("setups.toml").read_text(encoding="utf-8"))
    return {
        name: Setup(one["theirs"], tuple(one["besides"]), one.get("reads", ""), {scale: one[scale] for scale in SCALES})
        for name, one in fields.items()
    }


def setup_of(name: str) -> tuple[str, Setup]:
    """By the paper's name; only some papers have a set-up that an experiment can be."""
    key = paper_name(name)
    if key not in setups():
        instead = "vantage compare --extend MODEL" if key == "context-extension" else "--tasks and --positions"
        raise BadInput(f"{key!r} has no set-up of its own to repeat (use {instead}). There are: {', '.join(setups())}")
    return key, setups()[key]


def paper_fields(name: str, scale: str, text: tuple[str, ...] = ()) -> dict[str, Any]:
    """The fields of the experiment of a paper at a scale. ``text``: files, for one that reads text."""
    key, setup = setup_of(name)
    if scale not in SCALES:
        raise BadInput(unknown("scale", scale, SCALES))
    if setup.reads and not text:
        raise BadInput(f"{key} reads text: name files with --text (the paper's is {setup.reads})")
    if text and not setup.reads:
        raise BadInput(f"{key} has no task that reads text: leave --text out")
    reading = {"tasks": [TEXT], "text": list(text)} if setup.reads else {}
    return {**USUAL, **setup.scales[scale], "published": [key], **reading}
