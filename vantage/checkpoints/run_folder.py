"""The folder of a training run: which of its models is loaded, and what its checkpoints say of themselves."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from vantage.checkpoints.file_names import CONFIG, SINGLE
from vantage.checkpoints.json_files import inside
from vantage.errors import CheckpointError
from vantage.files import sha256_of

LOG, MODEL, BEST, CHECKPOINTS = "log.jsonl", "model", "best", "checkpoints"  # in the folder of a run
STATE = "state.json"  # in a checkpoint
TRAINED = "training.json"  # in a model that a run saved
_STEP = re.compile(r"step-(\d{8,})")
_TRAINER_STEP = re.compile(r"checkpoint-(\d+)")  # what the Trainer of transformers calls its own


# ---- which model


def model_folder(path: Path) -> Path:
    """The folder to load for this path, which may be a run or hold checkpoints.

    A run that has finished saved its model: the last weights, or the best with ``evaluate.best``. Of one that has not,
    or that was given more steps since, it is the best so far where the run keeps that, otherwise the last checkpoint.
    Of a folder of checkpoints it is the last.
    """
    if not path.is_dir() or (path / CONFIG).exists():
        return path
    if not (path / LOG).is_file():
        return last_checkpoint(path) or path
    saved = steps(path / CHECKPOINTS)
    if (path / MODEL).is_dir() and not (saved and saved[-1] > trained_steps(path / MODEL, saved[-1])):
        return path / MODEL
    last = last_checkpoint(path / BEST) or last_checkpoint(path / CHECKPOINTS)
    if last is None:
        raise CheckpointError(
            f"{path} is a run that has saved nothing yet: wait for its first checkpoint (save.every), or continue it "
            "(`vantage train … --resume`)"
        )
    return last


def is_checkpoint(path: Path) -> bool:
    """Whether this is a checkpoint of a training, which holds more than a model."""
    return (path / STATE).is_file() and not (path / SINGLE).exists()


def check_checkpoint(path: Path) -> None:
    """Refuse what holds no model, as far as names of files tell. Only the kinds that cannot hold code are opened."""
    if path.is_dir():
        if not is_checkpoint(path):
            inside(path, CONFIG)
    elif path.suffix != ".gguf":
        raise CheckpointError(
            f"{path} is no .gguf file and no folder; other files may hold code (pickle) and are never opened"
        )


def trained_steps(folder: Path, unknown: int) -> int:
    """After how many steps a run saved this model; earlier versions did not write that."""
    try:
        return int(json.loads((folder / TRAINED).read_text())["step"])
    except (OSError, ValueError, KeyError, TypeError):
        return unknown


def last_checkpoint(folder: Path) -> Path | None:
    """The last whole checkpoint in a folder, ours or of the Trainer of transformers; ``None``: there is none."""
    if ours := steps(folder):
        return folder / folder_name(ours[-1])
    names = [path for path in folder.glob("checkpoint-*") if _TRAINER_STEP.fullmatch(path.name)]
    saved = [path for path in names if (path / CONFIG).is_file()]
    return max(saved, key=lambda path: int(path.name.rpartition("-")[2]), default=None)


# ---- checkpoints by step


def folder_name(step: int) -> str:
    return f"step-{step:08d}"


def steps(folder: Path) -> list[int]:
    """The steps that have a whole checkpoint, in order."""
    if not folder.is_dir():
        return []
    matches = (_STEP.fullmatch(path.name) for path in folder.iterdir() if path.is_dir())
    return sorted(int(match[1]) for match in matches if match)


# ---- what a checkpoint says besides its tensors


def metadata(folder: Path, step: int) -> dict[str, Any]:
    """What a checkpoint says besides its tensors. Its other files are not looked at."""
    return _state(folder / folder_name(step), step)[0]


def verified_metadata(folder: Path, step: int) -> dict[str, Any]:
    """What a checkpoint says besides its tensors, after its files have been checked."""
    return verify(folder / folder_name(step), step)


def verify(here: Path, step: int | None = None) -> dict[str, Any]:
    """Check the files of one checkpoint by size and checksum; what it says besides its tensors."""
    metadata, files = _state(here, step)
    for name, checksum in files.items():
        path = here / name
        if Path(name).name != name or not path.is_file():
            raise _damaged(here, f"{name} is missing")
        size = path.stat().st_size
        if size != checksum["bytes"]:
            raise _damaged(here, f"{name} has {size} bytes and should have {checksum['bytes']}")
        if sha256_of(path) != checksum["sha256"]:
            raise _damaged(here, f"{name} is not what was written: its checksum differs")
    return metadata


def _state(here: Path, step: int | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """The metadata and the files' checksums. ``step``: of which it must be, where that is known."""
    try:
        state = json.loads((here / STATE).read_text())
        metadata, files = dict(state["facts"]), {str(name): dict(checksum) for name, checksum in state["files"].items()}
        number, complete = state["step"], all({"bytes", "sha256"} <= set(checksum) for checksum in files.values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as e:
        raise _damaged(here, f"its {STATE} cannot be read ({e})") from e
    if not complete:
        raise _damaged(here, f"its {STATE} does not say the size and checksum of every file")
    if step is not None and number != step:
        raise _damaged(here, f"its {STATE} is of step {number}")
    return metadata, files


def _damaged(here: Path, why: str) -> CheckpointError:
    return CheckpointError(f"{here} is damaged: {why}. Remove that folder to continue from the checkpoint before it")
