"""Text files as they lie about: patterns, .gz, one document a file or many."""

from __future__ import annotations

import contextlib
import functools
import gzip
import io
import json
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

from vantage.errors import BadInput

OnBytes = Callable[[int], None]  # how many bytes have been read
PIECE = 2**18  # characters that are encoded in one go, about


def pieces(path: Path, *, separator: str | None = None, on_bytes: OnBytes | None = None) -> Iterator[tuple[str, bool]]:
    """The text of a file in pieces, and whether a document ends with each.

    A file is one document, or ends one at every line that is ``separator`` and nothing else ("": at empty lines), which
    is itself left out. Pieces are cut before a line break, so that words stay whole. ``on_bytes`` counts the bytes of
    the file itself, packed as it may be.
    """
    with _reading(path), path.open("rb") as disk, _unpacked(path, disk) as raw:
        file = io.TextIOWrapper(raw, encoding="utf-8", newline="")
        yield from _counted(_cut(file.readline, "", "\r\n", separator), disk, on_bytes)


def byte_pieces(
    path: Path, *, separator: str | None = None, on_bytes: OnBytes | None = None
) -> Iterator[tuple[bytes, bool]]:
    """The same of a file that need not be text."""
    with _reading(path), path.open("rb") as disk, _unpacked(path, disk) as file:
        cut = _cut(file.readline, b"", b"\r\n", None if separator is None else separator.encode())
        yield from _counted(cut, disk, on_bytes)


def offset_by(on_bytes: OnBytes | None, before: int) -> OnBytes | None:
    """Whoever counts the bytes of several files, for one that comes after ``done`` of them."""
    return None if on_bytes is None else lambda at: on_bytes(before + at)


def lines(path: Path, *, on_bytes: OnBytes | None = None) -> list[str]:
    """The lines of a text file, without their ends."""
    text = "".join(piece for piece, _ in pieces(path, on_bytes=on_bytes))
    split_lines = text.replace("\r\n", "\n").split(
        "\n"
    )  # not splitlines: that also cuts at characters inside a sentence
    return split_lines[:-1] if split_lines[-1] == "" else split_lines


def records(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects of a JSONL file with their line numbers, from 1. Empty lines are passed over."""
    for number, line in enumerate(lines(path), 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except ValueError as e:
            raise BadInput(f"{path}, line {number} is not JSON: {e}") from e
        if not isinstance(value, dict):
            raise BadInput(f"{path}, line {number}: expected an object, got {type(value).__name__}")
        yield number, value


def _cut(
    readline: Callable[[int], Any], empty: Any, newline: Any, separator: str | bytes | None
) -> Iterator[tuple[Any, bool]]:
    buffered, size = [], 0
    for line in iter(functools.partial(readline, PIECE), empty):
        if separator is not None and line.strip() == separator:
            yield empty.join(buffered), True
            buffered, size = [], 0
            continue
        buffered.append(line)
        size += len(line)
        if size >= PIECE:
            text = empty.join(buffered)
            whole = text.rstrip(newline) or text
            yield whole, False
            buffered, size = [text[len(whole) :]], len(text) - len(whole)
    yield empty.join(buffered), True


def _counted(cut: Iterator[tuple[Any, bool]], disk: BinaryIO, on_bytes: OnBytes | None) -> Iterator[tuple[Any, bool]]:
    for one in cut:
        if on_bytes is not None:
            on_bytes(disk.tell())
        yield one


def _unpacked(path: Path, disk: BinaryIO) -> BinaryIO:
    return cast(BinaryIO, gzip.GzipFile(fileobj=disk, mode="rb")) if path.suffix == ".gz" else disk


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    """What can go wrong with a file, said with its name."""
    try:
        yield
    except UnicodeDecodeError as e:
        hint = "convert it to UTF-8, or use a vocabulary of bytes"
        raise BadInput(f"{path} is not UTF-8 text ({e.reason}): {hint}") from e
    except (EOFError, gzip.BadGzipFile, zlib.error) as e:
        raise BadInput(f"{path} is damaged ({e}): fetch it again") from e
    except OSError as e:
        raise BadInput(f"{path} cannot be read: {e.strerror or e}") from e
