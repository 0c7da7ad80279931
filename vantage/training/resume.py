"""A folder that holds a run: whether it may go on, with which settings, and what more steps do to the schedule."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from vantage.errors import BadInput, VantageError
from vantage.training import checkpoint
from vantage.training.distributed import World
from vantage.training.examples import ExampleData
from vantage.training.settings import TrainSettings, settings_of, settings_table
from vantage.training.tables import SETTINGS_FILE, check_run_folder, flat

# What decides when a run ends, saves or warns, and not what it computes: it may be changed when a run goes on.
FREE = (
    "save",
    "guard",
    "parallel",
    "loop.steps",
    "loop.threads",
    "evaluate.goal",
    "evaluate.patience",
    "evaluate.min_delta",
)
MAX_SHOWN = 8  # differences in one message
TOTAL, STEPS = "schedule.total", "loop.steps"


def claim(folder: Path, resume: bool, settings: TrainSettings, origin: Mapping[str, Any], world: World) -> str | None:
    """Refuse a folder that holds a run already, unless that run is to go on with the same settings and data.

    What there is to say about a schedule that gets longer, or None.
    """
    check_run_folder(folder, resume=resume)
    saved = checkpoint.steps(folder / "checkpoints")
    note = None
    if saved:
        before = checkpoint.metadata(folder / "checkpoints", saved[-1])
        _check_settings(folder, before, settings, origin)
        if before.get("data", origin["data"]) != origin["data"]:
            examples = isinstance(settings.data, ExampleData)
            what = "these are other examples" if examples else "a file that [data] names has changed"
            raise BadInput(
                f"{folder} holds a run on other data: {what}. Bring {'them' if examples else 'it'} back, or train anew "
                "in another folder with --out"
            )
        if settings.loop.steps < saved[-1]:
            raise BadInput(f"{folder} has done {saved[-1]} steps already: give more than that (--steps), all counted")
        note = _schedule_note(_table_before(folder, before), settings, saved[-1])
    world.wait()
    return note


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """What differs between two tables of settings, by its whole name: old and new. What is free to differ is left out.

    The length of a schedule that lasts as long as the run goes with the number of steps.
    """
    old, new = flat(before), flat(now)
    if old.get(TOTAL) == old.get(STEPS) and new.get(TOTAL) == new.get(STEPS):
        for table in (old, new):
            table.pop(TOTAL, None)
    names = [name for name in (*old, *(name for name in new if name not in old)) if old.get(name) != new.get(name)]
    return {name: (old.get(name), new.get(name)) for name in names if not _free(name)}


def _check_settings(
    folder: Path, before: Mapping[str, Any], settings: TrainSettings, origin: Mapping[str, Any]
) -> None:
    if before.get("fingerprint") == origin["fingerprint"]:
        return
    table = _table_before(folder, before)
    changes = {} if table is None else differences(table, settings_table(settings))
    if table is not None and not changes:
        return
    listed = [f"{name} {_shown(old)} -> {_shown(new)}" for name, (old, new) in changes.items()]
    more = f" and {len(listed) - MAX_SHOWN} more" if len(listed) > MAX_SHOWN else ""
    which = f": {', '.join(listed[:MAX_SHOWN])}{more}" if listed else ""
    raise BadInput(f"{folder} holds a run with other settings{which}. Give the same ones, or another folder with --out")


def _table_before(folder: Path, before: Mapping[str, Any]) -> dict[str, Any] | None:
    """All settings of the run as it was saved; None where an older version did not write them and none can be read."""
    table = before.get("settings")
    if isinstance(table, dict):
        return table
    try:
        earlier = settings_of(json.loads((folder / SETTINGS_FILE).read_text()))
    except (OSError, ValueError, VantageError):
        return None
    return settings_table(earlier) if earlier.fingerprint() == before.get("fingerprint") else None


def _schedule_note(before: Mapping[str, Any] | None, settings: TrainSettings, done: int) -> str | None:
    schedule, steps = settings.schedule, settings.loop.steps
    total = getattr(schedule, "total", None)
    if total is None or before is None or steps == done:
        return None
    name, rate = type(schedule).__name__.lower(), settings.optimiser.lr
    if total < steps and done <= steps:
        return (
            f"the schedule ({name}) ends at step {total}: from there on the learning rate stays at "
            f"{rate * schedule.at(steps):.2e}. schedule.total={steps} makes it last as long as the run"
        )
    was = flat(before).get(TOTAL)
    if not isinstance(was, int) or was == total:
        return None
    earlier = replace(schedule, total=was)
    if all(earlier.at(step) == schedule.at(step) for step in range(done)):
        return None
    return (
        f"the schedule ({name}) now lasts {total} steps instead of {was}: the learning rate goes from "
        f"{rate * earlier.at(done):.2e} to {rate * schedule.at(done):.2e} here and follows the longer one. The first "
        f"{done} steps had the shorter one, so this is not what {steps} steps from the start would have been"
    )


def _free(name: str) -> bool:
    return any(name == one or name.startswith(f"{one}.") for one in FREE)


def _shown(value: Any) -> str:
    text = json.dumps(value, default=repr)
    return "none" if value is None else text if len(text) <= 40 else text[:37] + "..."
