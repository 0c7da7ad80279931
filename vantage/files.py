"""Files and folders that are whole or not there at all, whatever stops the writer.

A file is written beside its place, flushed to the disk, and takes its name last. So a reader finds the old one or the
new one, never half of one, also after a power cut.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

GIB = 2**30
SHARD_BYTES = 5 * GIB  # of the largest file of a saved model
PART = ".part"  # how the name of what is half written ends


@contextlib.contextmanager
def replacing(path: str | Path, *, durable: bool = True) -> Iterator[Path]:
    """A path to write to; what stands there takes the place of ``path`` at the end of the block.

    An exception leaves the old file as it was and the new one is removed. ``durable=False`` does not wait for the
    disk: for scratch files that nobody reads after a power cut.
    """
    path = Path(path)
    part = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}{PART}")
    try:
        yield part
        if durable:
            sync(part)
        part.replace(path)
        if durable:
            sync(path.parent)
    finally:
        part.unlink(missing_ok=True)


def write_text(path: str | Path, text: str) -> None:
    """Replace a file's text (UTF-8), whole or not at all."""
    with replacing(path) as part:
        part.write_text(text, encoding="utf-8")


def append_text(path: str | Path, text: str) -> None:
    """Add to a file, and wait for the disk. A kill may leave a last line without its end."""
    with Path(path).open("a", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def replace_folder(written: Path, path: Path) -> None:
    """Give a folder that is all written its name, in the place of what is there."""
    sync_folder(written)
    remove_folder(path)
    written.rename(path)
    sync(path.parent)


def settle_folder(written: Path, path: Path) -> None:
    """Give a folder that is all written its name, unless another process was faster with the same."""
    sync_folder(written)
    try:
        written.rename(path)
    except OSError:
        if not path.is_dir():
            raise
    sync(path.parent)


def remove_folder(path: Path) -> None:
    """Remove a folder. Half removed it must not look whole, so it loses its name first."""
    if path.exists():
        doomed = path.with_name(f"{path.name}.old{PART}")
        shutil.rmtree(doomed, ignore_errors=True)
        path.rename(doomed)
        shutil.rmtree(doomed, ignore_errors=True)


def sync_folder(folder: Path) -> None:
    """Every byte of it on the disk."""
    for path in sorted(folder.rglob("*")):
        sync(path)
    sync(folder)


def sync(path: Path) -> None:
    """A file's bytes, or a folder's list of names, on the disk."""
    if os.name == "nt":  # folders cannot be opened there, and a read-only handle cannot be flushed
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
