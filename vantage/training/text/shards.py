"""Tokens on disk, mapped into memory: raw little-endian numbers in a few files, and an index that vouches for them.

A folder of shards is finished or not there: it is written under another name and renamed when every byte is on
the disk.
"""

from __future__ import annotations

import functools
import hashlib
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vantage.checkpoints.folder import inside, read_json
from vantage.checkpoints.tokenizer import Tokenizer, from_folder
from vantage.errors import BadInput, CheckpointError
from vantage.files import GIB
from vantage.training.text.vocabulary import fingerprint

FORMAT, INDEX = "vantage tokens 1", "index.json"
ALWAYS_VERIFIED = GIB  # bytes: about a second to read through


@dataclass(frozen=True)
class FileEntry:
    """A file that the index lists."""

    file: str
    count: int  # of numbers
    sha256: str


@dataclass(frozen=True)
class Index:
    """What ``index.json`` says."""

    fingerprint: str  # of the files, the vocabulary and how documents were told apart
    vocabulary: str  # the tokenizer's fingerprint
    vocab: int
    dtype: str
    tokens: int
    shards: tuple[FileEntry, ...]
    documents: FileEntry  # where each begins, and where the last one ends
    sources: tuple[FileEntry, ...] = field(default=())  # the files, and their sizes in bytes

    def write(self, folder: Path) -> None:
        text = json.dumps({"format": FORMAT, **asdict(self)}, indent=1)
        (folder / INDEX).write_text(text + "\n", encoding="utf-8")

    @staticmethod
    def read(folder: Path) -> Index:
        try:
            fields: dict[str, Any] = read_json(folder, INDEX)
        except CheckpointError as e:
            raise CheckpointError(f"{folder}: {e}: {_PREPARE_AGAIN.format(folder)}") from e
        if fields.pop("format", None) != FORMAT:
            raise CheckpointError(f"{folder / INDEX} does not say {FORMAT!r}: {_PREPARE_AGAIN.format(folder)}")
        try:
            entries = {name: tuple(FileEntry(**one) for one in fields.pop(name)) for name in ("shards", "sources")}
            return Index(documents=FileEntry(**fields.pop("documents")), **entries, **fields)
        except (KeyError, TypeError) as e:
            raise CheckpointError(
                f"{folder / INDEX} is not as it was written ({e}): {_PREPARE_AGAIN.format(folder)}"
            ) from e


_PREPARE_AGAIN = "remove the folder {} and prepare the files again"


class Shards:
    """A stream of tokens, documents one after the other. Made by ``prepare``, or opened from a folder.

    ``tokenizer``: the one that the caller means to use; tokens of another are refused. ``verify``: read everything
    and compare checksums (by default up to a gigabyte); sizes are always compared.
    """

    def __init__(self, folder: str | Path, *, tokenizer: Tokenizer | None = None, verify: bool | None = None):
        self.folder = Path(folder)
        if not (self.folder / INDEX).is_file():
            raise BadInput(f"{folder} holds no {INDEX}: give a folder that prepare(...) made")
        self.index = Index.read(self.folder)
        if tokenizer is not None and fingerprint(tokenizer) != self.index.vocabulary:
            raise BadInput(
                f"{folder} was made with another vocabulary, of {self.index.vocab} tokens and not this one of "
                f"{len(tokenizer)}: prepare the files with this one, into another folder"
            )
        self.tokenizer = tokenizer or self._own_tokenizer()
        dtype = np.dtype(self.index.dtype)
        if verify is None:
            verify = self.index.tokens * dtype.itemsize <= ALWAYS_VERIFIED
        self._parts = [self._map(entry, dtype, verify) for entry in self.index.shards]
        self._starts = np.cumsum([0, *(len(part) for part in self._parts)])
        self.documents: NDArray[np.int64] = self._map(self.index.documents, np.dtype("<i8"), verify)

    @property
    def vocab(self) -> int:
        return self.index.vocab

    def __len__(self) -> int:
        return self.index.tokens

    def read(self, start: int, count: int) -> NDArray[np.int64]:
        """Tokens start … start + count - 1, copied."""
        if start < 0 or count < 0 or start + count > len(self):
            raise BadInput(f"tokens {start} to {start + count} of {len(self)}: they are not all there")
        out, copied = np.empty(count, np.int64), 0
        part = int(np.searchsorted(self._starts, start, "right")) - 1
        while copied < count:
            low = start + copied - int(self._starts[part])
            tokens = self._parts[part][low : low + count - copied]
            out[copied : copied + len(tokens)] = tokens
            copied, part = copied + len(tokens), part + 1
        return out

    def _own_tokenizer(self) -> Tokenizer:
        tokenizer = from_folder(self.folder)
        if tokenizer is None or fingerprint(tokenizer) != self.index.vocabulary:
            raise CheckpointError(
                f"the tokenizer in {self.folder} is not the one its tokens were made with: {self._again}"
            )
        return tokenizer

    def _map(self, entry: FileEntry, dtype: np.dtype[Any], verify: bool) -> NDArray[Any]:
        path = inside(self.folder, entry.file) if (self.folder / entry.file).exists() else None
        if path is None:
            raise CheckpointError(f"{self.folder} has no file {entry.file!r}, which its index lists: {self._again}")
        if (size := path.stat().st_size) != (expected := entry.count * dtype.itemsize):
            raise CheckpointError(f"{path} has {size:,} bytes and should have {expected:,}: {self._again}")
        if verify and sha256(path) != entry.sha256:
            raise CheckpointError(f"{path} is damaged, its checksum is another: {self._again}")
        return np.memmap(path, dtype, "r") if size else np.empty(0, dtype)

    @property
    def _again(self) -> str:
        return _PREPARE_AGAIN.format(self.folder)


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def file_checksum(path: Path) -> str:
    """The same, read once by a process as long as size and time of the file stay: texts can be large."""
    now = path.stat()
    return _file_checksum(path, now.st_size, now.st_mtime_ns)


@functools.lru_cache(maxsize=4096)
def _file_checksum(path: Path, size: int, time_ns: int) -> str:
    return sha256(path)
