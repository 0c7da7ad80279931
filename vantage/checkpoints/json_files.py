"""Files of a checkpoint's folder that hold JSON: nothing outside the folder is opened, and nothing absurdly large."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from vantage.errors import CheckpointError

LARGEST_JSON = 64 * 2**20  # a tokenizer's vocabulary takes some megabytes; a config a few kilobytes


def inside(folder: Path, file: str) -> Path:
    """The path of a file of this folder; refused if it leaves the folder, by name or through a link."""
    path = folder / file
    if Path(file).name != file or not path.resolve().is_relative_to(folder.resolve()):
        raise CheckpointError(f"{file!r} leads out of the folder {folder}: only files in it are opened")
    if not path.is_file():
        raise CheckpointError(f"{folder} has no file {file!r}")
    return path


def read_json(folder: Path, file: str) -> dict[str, Any]:
    path = inside(folder, file)
    if path.stat().st_size > LARGEST_JSON:
        raise CheckpointError(f"{file} has {path.stat().st_size:,} bytes, more than any real one")
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, ValueError, RecursionError) as e:
        raise CheckpointError(f"{file} is not JSON: {e}") from e
    if not isinstance(value, dict):
        raise CheckpointError(f"{file}: expected an object with keys, got {type(value).__name__}")
    return value
