"""Files and folders that are whole or not there at all, whatever stops the writer.

A file is written beside its place, flushed to the disk, and takes its name last. So a reader finds the old one or the
new one, never half of one, also after a power cut.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import os
import shutil
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from vantage.errors import BadInput

Files = str | Path | Sequence[str | Path]  # one name or pattern, or several
GIB = 2**30
SHARD_BYTES = 5 * GIB  # of the largest file of a saved model
PART = ".part"  # how the name of what is half written ends
AT_FDCWD, EXCHANGE = -100, 2  # of renameat2(2); 2 is also RENAME_SWAP of macOS


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
    """Give a folder that is all written its name, in the place of what is there.

    Where the system can exchange two names at once (Linux, macOS) there is a whole folder of that name at every
    moment. Elsewhere a kill between two renames leaves both folders whole, under other names.
    """
    sync_folder(written)
    if not path.exists():
        written.rename(path)
    elif exchange(written, path):
        remove_folder(written)  # by now the old one
    else:
        old = _set_aside(path)
        try:
            written.rename(path)
        except OSError:
            old.rename(path)
            raise
        shutil.rmtree(old, ignore_errors=True)
    sync(path.parent)


def exchange(a: Path, b: Path) -> bool:
    """Let two files or folders have each other's name, in one step; False where the system cannot."""
    import ctypes  # seldom wanted

    if os.name != "posix":
        return False
    libc, names = ctypes.CDLL(None), (os.fsencode(a), os.fsencode(b))
    try:
        if sys.platform == "darwin":
            return libc.renamex_np(*names, EXCHANGE) == 0
        return libc.renameat2(AT_FDCWD, names[0], AT_FDCWD, names[1], EXCHANGE) == 0
    except AttributeError:  # a library that has no such call
        return False


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
        shutil.rmtree(_set_aside(path), ignore_errors=True)


def _set_aside(path: Path) -> Path:
    """Take a folder's name from it; under its new one nobody looks for it."""
    aside = path.with_name(f"{path.name}.old{PART}")
    shutil.rmtree(aside, ignore_errors=True)
    path.rename(aside)
    return aside


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


def expand(files: Files) -> list[Path]:
    """The files that these names and patterns stand for, each once: as given, and by name within a pattern."""
    names = [files] if isinstance(files, (str, Path)) else list(files)
    paths_found: dict[Path, None] = {}
    for one in names:
        paths = [Path(one)]
        if not paths[0].exists() and glob.has_magic(str(one)):
            paths = sorted(p for p in map(Path, glob.glob(str(one), recursive=True)) if p.is_file())
        if not paths or not paths[0].exists():
            raise BadInput(f"there is no file {str(one)!r}: give a file's name, or a pattern as in 'texts/**/*.txt'")
        if paths[0].is_dir():
            raise BadInput(f"{one} is a folder: give a pattern as in '{one}/**/*.txt'")
        paths_found |= dict.fromkeys(paths)
    if not paths_found:
        raise BadInput("no files: give at least one name, or a pattern as in 'texts/**/*.txt'")
    return list(paths_found)
