"""What a recipe reaches, and which changes to its settings leave that standing.

A file of settings may have a section ``[promise]``: ``reaches`` says in words what a run comes to, and ``holds`` names
the changes with which that was measured as well, each as ``KEY`` (with everything below it) or ``KEY=VALUE``. Any other
change may take it away.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vantage.errors import BadInput
from vantage.training.tables import PROMISE, apply_change, settings_file

# How often is saved, when somebody is alarmed, on how many cores and processes: nothing of what is learned.
ALWAYS = ("save", "guard", "parallel", "loop.threads")


@dataclass(frozen=True)
class Promise:
    """What a run reaches, and the changes that leave it standing."""

    reaches: str
    holds: tuple[str, ...] = ()

    @property
    def also_with(self) -> str:
        """The changes, as one may write them."""
        return ", ".join(held if "=" in held else f"{held}=…" for held in self.holds)

    def covers(self, change: str) -> bool:
        key = change.partition("=")[0].strip()
        return any(
            _parsed(change) == _parsed(held) if "=" in held else f"{key}.".startswith(f"{held}.")
            for held in (*ALWAYS, *self.holds)
        )


def promise_of(source: str | Path) -> Promise | None:
    """The promise of a recipe or a file of settings; ``None``: it makes none."""
    section = settings_file(source).get(PROMISE)
    if section is None:
        return None
    reaches, holds = (section.get("reaches"), section.get("holds", [])) if isinstance(section, dict) else (None, [])
    known = isinstance(section, dict) and section.keys() <= {"reaches", "holds"}
    if not known or not isinstance(reaches, str) or not all(isinstance(one, str) for one in holds):
        raise BadInput(f"{source}: [{PROMISE}] has reaches, a sentence, and holds, a list of changes")
    return Promise(reaches, tuple(holds))


def promise_note(source: str | Path, changes: Iterable[str]) -> str | None:
    """One line for who changes a recipe so that it may not reach what it says; ``None``: there is nothing to say."""
    promise = promise_of(source)
    if promise is None:
        return None
    table = settings_file(source)
    voiding = [change for change in changes if _changes(table, change) and not promise.covers(change)]
    if not voiding:
        return None
    measured = f"as it is, and with {promise.also_with}" if promise.holds else "as it is"
    return f"{', '.join(voiding)}: {source} may not reach {promise.reaches}; that was measured {measured}"


def _changes(table: Mapping[str, Any], change: str) -> bool:
    """Whether it says anything else than the settings themselves."""
    changed = copy.deepcopy(dict(table))
    apply_change(changed, change)
    return changed != table


def _parsed(change: str) -> dict[str, Any]:
    table: dict[str, Any] = {}
    apply_change(table, change)
    return table
