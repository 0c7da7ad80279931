"""The folder that a model is saved to: written whole or not at all, and only ever in the place of one that we wrote.

What says that we wrote it is the metadata of its safetensors files, or the model_type of our own layout. Nothing here
needs torch, so a command can refuse a folder before it loads anything.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vantage.checkpoints.file_names import CONFIG
from vantage.errors import BadInput
from vantage.files import PART, replace_folder

METADATA = {"format": "pt", "saved_by": "vantage"}  # transformers refuses a file without the format
OURS = re.compile(
    r"config\.json|model(-\d{5}-of-\d{5})?\.safetensors|model\.safetensors\.index\.json"
    r"|tokenizer\.json|tokenizer_config\.json|preprocessor_config\.json|training\.json"
)
LARGEST_HEADER = 100 * 2**20  # of a safetensors file, as its library has it


def check_model_folder(folder: str | Path, *, overwrite: bool = False) -> None:
    """Refuse a folder that a model must not be saved to. ``overwrite`` allows one with a model that we saved there."""
    path = Path(folder).expanduser()
    if path.exists() and not path.is_dir():
        raise BadInput(f"{path} is a file: give the folder to write the model to")
    if not _holds_model(path):
        return
    if not overwrite:
        kind = "safetensors files" if any(path.glob("*.safetensors")) else CONFIG
        raise BadInput(
            f"{path} already holds {kind}: choose another folder, or say overwrite=True (vantage convert: --overwrite) "
            "to replace a model that Vantage saved there"
        )
    strangers = sorted(one.name for one in path.iterdir() if not OURS.fullmatch(one.name) or not one.is_file())
    if strangers:
        more = f" and {len(strangers) - 1} more" if len(strangers) > 1 else ""
        raise BadInput(
            f"{path} holds {strangers[0]!r}{more}, which is no part of a model that Vantage saves, and nothing else is "
            "ever deleted: choose another folder, or move that away"
        )
    if not _saved_by_us(path):
        raise BadInput(
            f"the model in {path} was not saved by Vantage, as far as its files say, so it is not replaced: choose "
            "another folder, or remove it yourself"
        )


@contextlib.contextmanager
def writing_model(folder: str | Path, *, overwrite: bool = False) -> Iterator[Path]:
    """A folder to write a model to, which takes its name at the end of the block.

    What stops the writer before that leaves the old model as it was. A folder that is there and holds no model is
    written to as it is, beside what is in it.
    """
    check_model_folder(folder, overwrite=overwrite)
    path = Path(folder).expanduser()
    path = path.resolve() if path.is_symlink() else path  # what a link leads to is replaced, not the link
    if path.exists() and not _holds_model(path):
        yield path
        return
    part = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}{PART}")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    try:
        yield part
        replace_folder(part, path)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _holds_model(path: Path) -> bool:
    return (path / CONFIG).exists() or any(path.glob("*.safetensors"))


def _saved_by_us(folder: Path) -> bool:
    """Whether the safetensors files say so in their headers; models of our own layout can be nobody else's."""
    try:
        kind = json.loads((folder / CONFIG).read_text(encoding="utf-8")).get("model_type")
        if isinstance(kind, str) and kind.startswith("vantage"):
            return True
        files = list(folder.glob("*.safetensors"))
        return bool(files) and all(_header(file)["__metadata__"]["saved_by"] == METADATA["saved_by"] for file in files)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):  # whatever it is, it is not ours
        return False


def _header(file: Path) -> dict[str, Any]:
    with file.open("rb") as source:
        size = int.from_bytes(source.read(8), "little")
        return json.loads(source.read(size)) if size <= LARGEST_HEADER else {}
