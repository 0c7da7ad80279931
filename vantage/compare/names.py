"""The names and words of an experiment, and what can be refused of them. Nothing here needs torch, so a command can say
at once that there is no such task."""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from vantage.errors import BadInput, unknown
from vantage.parts import known_entries, registry
from vantage.spec.registry import Entry
from vantage.spec.source_names import DeclaredEntry

Entries = Sequence[Entry[Any] | DeclaredEntry]

# The tasks as an experiment means them: names with the parameters that the papers used.
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "copy-one": ("copy", {"kind": "one"}),
    "copy-replace": ("copy", {"kind": "replace"}),
    "copy-twice": ("copy", {"times": 2}),
    "reverse-twice": ("reverse", {"times": 2}),
    "addition-reversed": ("addition", {"order": "reversed"}),
    "scan-actions": ("scan", {"count": "actions"}),
    "modular-arithmetic-brackets": ("modular-arithmetic", {"brackets": True}),
}
TEXT = "text"  # the task that reads files

DEFAULT = ("none", "sinusoidal", "learned", "rope", "t5", "alibi", "none-bidirectional")
CONTROL = "none-bidirectional"  # a bag of tokens: must stay at chance where order matters
RANDOMISED = "randomised-"
ALL, PLAIN = "all", "plain"  # every encoding, and those without random positions

# Key/value heads, by query heads: the three forms of grouped-query attention.
GROUPED: dict[str, Callable[[int], int]] = {
    "multi-head": lambda heads: heads,
    "multi-query": lambda heads: 1,
    "grouped-query": lambda heads: max(1, heads // 2),
}
# How many layers in a row share the keys and values of the first of them (CLA, Brandon et al. 2024).
SHARED_KEYS: dict[str, int] = {"shared-keys": 2}
# Registries whose parts compete as attention: kinds of it, and multi-head attention with one of the others.
ATTENDING = ("attention", "normaliser", "output", "indexer")
# What the names say that no part of its own stands behind.
NAMES_EXPLAINED = {
    "copy-one": "Copy one token that is repeated: all there is to do is to count.",
    "copy-replace": "Copy one repeated token with another in its place.",
    "copy-twice": "Copy, twice in a row.",
    "reverse-twice": "Backwards, twice in a row.",
    "addition-reversed": "Addition with the units first.",
    "scan-actions": "SCAN itself: at most two clauses, lengths counted in actions of the answer.",
    "modular-arithmetic-brackets": "Modular arithmetic with nested brackets.",
    CONTROL: "No encoding and no causal mask: nothing says where a token stands. A control that must stay at chance.",
    "multi-head": "Every query head has keys and values of its own.",
    "multi-query": "All query heads share one head of keys and values (Shazeer 2019).",
    "grouped-query": "Two query heads share keys and values (Ainslie et al. 2023).",
    "shared-keys": "Every second layer reads the keys and values of the layer before it (Brandon et al. 2024).",
}
EQUAL = ("compute", "parameters")
SCALES = ("tiny", "small", "paper-like")
SCALING_RULES = ("none", "linear", "ntk", "dynamic-ntk", "yarn", "longrope", "llama3", "self-extend", "dual-chunk")

EXPERIMENT_FILE = "study.json"


def plain_names(compared: Iterable[str]) -> tuple[str, ...]:
    """Every encoding that competes, the usual ones first."""
    return tuple(dict.fromkeys((*DEFAULT[:-1], *compared)))


def all_names(plain: Sequence[str], randomised: Iterable[str]) -> tuple[str, ...]:
    """These, the randomised form of those that have one, and the control."""
    return (*plain, *(RANDOMISED + name for name in randomised), CONTROL)


def attending_names(compared: Iterable[Entry[Any] | DeclaredEntry]) -> tuple[str, ...]:
    """Forms of multi-head attention first, then these parts."""
    return (*GROUPED, *SHARED_KEYS, *(entry.name for entry in compared))


@dataclass(frozen=True)
class ComparedNames:
    """What an experiment may name."""

    tasks: tuple[str, ...]
    positions: tuple[str, ...]
    attentions: tuple[str, ...]


KINDS = ("task", "position", *ATTENDING)


def compared_names() -> ComparedNames:
    """All of them. Parts from outside are imported for it; our own need not be."""
    return _names_of(*(known_entries(kind) or registry(kind).entries() for kind in KINDS))


def _names_of(tasks: Entries, encodings: Entries, *attending: Entries) -> ComparedNames:
    plain = plain_names(entry.name for entry in encodings if entry.compared)
    steady = {entry.name for entry in encodings if not entry.randomised}
    return ComparedNames(
        (*(entry.name for entry in tasks), *VARIANTS, TEXT),
        all_names(plain, (name for name in plain if name not in steady)),
        attending_names(entry for entries in attending for entry in entries if entry.compared),
    )


def check_names(tasks: Iterable[str] = (), positions: Iterable[str] = (), attentions: Iterable[str] = ()) -> None:
    """Refuse a name that nothing of ours has. Where parts come from outside, that is left to the experiment."""
    entries = [known for kind in KINDS if (known := known_entries(kind)) is not None]
    if len(entries) < len(KINDS):
        return
    names = _names_of(*entries)
    for what, chosen, known, sets in (
        ("task", tasks, names.tasks, ()),
        ("position", positions, names.positions, (ALL, PLAIN, "default")),
        ("attention", attentions, names.attentions, ()),
    ):
        for name in chosen:
            if name not in (*known, *sets):
                raise BadInput(unknown(what, name, known))


def paper_name(name: str) -> str:
    """A paper's short name as published.toml spells it: "randomized" is "randomised"."""
    key = name.lower().replace("randomiz", "randomis").replace("generalis", "generaliz")
    if key not in _papers():
        raise BadInput(unknown("published result", name, _papers()))
    return key


@functools.cache
def _papers() -> tuple[str, ...]:
    return tuple(tomllib.loads(resources.files("vantage.compare").joinpath("published.toml").read_text()))


def bpe_size(vocabulary: str) -> int | None:
    """The size in "bpe-4096"; ``None`` for "bytes" and "characters"."""
    if vocabulary in ("bytes", "characters"):
        return None
    kind, _, size = vocabulary.partition("-")
    if kind != "bpe" or not size.isdigit():
        raise BadInput(f"vocabulary={vocabulary!r}: write bytes, characters, or bpe-SIZE as in bpe-4096")
    if int(size) < 257:
        raise BadInput(f"vocabulary={vocabulary!r}: give at least 257, 256 bytes and the end of a text: bpe-257")
    return int(size)


def refuse_occupied(folder: Path) -> None:
    """A folder that holds an experiment, or is none, when a new one is wanted there."""
    if folder.exists() and not folder.is_dir():
        raise BadInput(f"{folder} is a file: give the folder of the experiment (--out)")
    if (folder / EXPERIMENT_FILE).exists():
        raise BadInput(
            f"{folder} already holds an experiment: continue it (--resume), or choose another folder (--out)"
        )


def budget_seconds(budget: str) -> float:
    """ "90s", "30m" or "2h"."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh]?)", budget.strip())
    if match is None or float(match[1]) <= 0:
        raise BadInput(f"a budget of {budget[:40]!r}: write it as 90s, 30m or 2h")
    return float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]]
