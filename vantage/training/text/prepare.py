"""Text files to shards of tokens, once: the same files and vocabulary are found again, however they are called."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vantage.checkpoints.tokenizer import Tokenizer
from vantage.errors import BadInput, CheckpointError
from vantage.files import Files, expand, settle_folder
from vantage.training.text.files import OnBytes, byte_pieces, offset_by, pieces
from vantage.training.text.shards import INDEX, FileEntry, Index, Shards, file_checksum
from vantage.training.text.vocabulary import (
    Bytes,
    Existing,
    Vocabulary,
    build_vocabulary,
    fingerprint,
    of_bytes,
    plain_backend,
)

Progress = Callable[[int, int], None]  # bytes that have been read, of how many
SHARD = 2**26  # tokens in a file
PIECES_PER_BATCH = 16  # pieces encoded together, on all cores
ABANDONED = 24 * 3600.0  # seconds after which unfinished work is taken for a dead process's


def prepare(
    files: Files,
    vocabulary: Vocabulary | Tokenizer,
    folder: str | Path,
    *,
    separator: str | None = None,
    progress: Progress | None = None,
    shard: int = SHARD,
) -> Shards:
    """The tokens of these files, from ``folder`` if they are there already.

    One file is one document, or, with ``separator``, one ends at each line that is nothing but that. A vocabulary
    that has an end token gets one after every document, and the start token before it if its texts begin with one.
    A folder holds any number of preparations, each in a folder of its own. ``progress`` counts the files twice where
    a vocabulary is learned from them first.
    """
    paths, home = expand(files), Path(folder)
    if isinstance(vocabulary, Existing):  # its path says nothing of what is there now
        vocabulary = vocabulary.build()
    sources = tuple(FileEntry(str(path), path.stat().st_size, file_checksum(path)) for path in paths)
    name = _fingerprint(sources, vocabulary, separator, shard)
    ready = home / name[:16]
    if (ready / INDEX).exists():
        return Shards(ready, tokenizer=vocabulary if isinstance(vocabulary, Tokenizer) else None)
    size = sum(source.count for source in sources)
    learned = 0 if isinstance(vocabulary, (Tokenizer, Bytes)) else size
    on_bytes: OnBytes | None = None if progress is None else lambda count: progress(count, learned + size)
    tokenizer = build_vocabulary(vocabulary, paths, on_bytes)
    try:
        home.mkdir(parents=True, exist_ok=True)
        _sweep(home)
        making = Path(tempfile.mkdtemp(prefix=".making-", dir=home))
        try:
            _make(making, _TokenSource(paths, sources, separator, offset_by(on_bytes, learned), shard), tokenizer, name)
            _publish(making, ready)
        finally:
            shutil.rmtree(making, ignore_errors=True)
    except OSError as e:
        raise BadInput(f"cannot write tokens to {home} ({e.strerror or e}): make room, or choose another folder") from e
    return Shards(ready, tokenizer=tokenizer, verify=False)


class _TokenSource:
    """The files, and how far they are done."""

    def __init__(
        self,
        paths: Sequence[Path],
        sources: tuple[FileEntry, ...],
        separator: str | None,
        on_bytes: OnBytes | None,
        shard: int,
    ):
        self.paths, self.sources, self.separator = paths, sources, separator
        self.on_bytes, self.shard = on_bytes, shard

    def documents(self, tokenizer: Tokenizer) -> Iterator[tuple[NDArray[np.int64], bool]]:
        """Tokens, and whether a document ends with them."""
        before, by_byte = 0, of_bytes(tokenizer)
        for path, source in zip(self.paths, self.sources, strict=True):
            on_bytes = offset_by(self.on_bytes, before)
            yield from self._bytes(path, on_bytes) if by_byte else self._encoded(path, tokenizer, on_bytes)
            before += source.count

    def _bytes(self, path: Path, on_bytes: OnBytes | None) -> Iterator[tuple[NDArray[np.int64], bool]]:
        for piece, last in byte_pieces(path, separator=self.separator, on_bytes=on_bytes):
            yield np.frombuffer(piece, np.uint8).astype(np.int64), last

    def _encoded(
        self, path: Path, tokenizer: Tokenizer, on_bytes: OnBytes | None
    ) -> Iterator[tuple[NDArray[np.int64], bool]]:
        backend, parts = plain_backend(tokenizer), pieces(path, separator=self.separator, on_bytes=on_bytes)
        while together := list(itertools.islice(parts, PIECES_PER_BATCH)):
            batch = [text for text, _ in together]
            try:
                encoded = backend.encode_batch_fast(batch, add_special_tokens=False)
            except Exception as e:  # it raises bare Exception
                raise BadInput(f"{path}: {tokenizer.refusal(''.join(batch), e)}") from e
            for one, (_, last) in zip(encoded, together, strict=True):
                yield np.array(one.ids, np.int64), last


def _make(folder: Path, work: _TokenSource, tokenizer: Tokenizer, name: str) -> None:
    dtype = np.dtype("<u2" if len(tokenizer) <= 2**16 else "<u4")
    before, after = _around(tokenizer)
    shards: list[FileEntry] = []
    starts, tokens, fresh = [0], 0, True
    pending: list[NDArray[np.int64]] = []
    waiting = 0

    def take(part: NDArray[np.int64]) -> None:
        nonlocal tokens, waiting, pending
        pending.append(part)
        tokens, waiting = tokens + len(part), waiting + len(part)
        while waiting >= work.shard:
            everything = np.concatenate(pending)
            flush(everything[: work.shard])
            pending = [everything[work.shard :]]
            waiting = len(pending[0])

    def flush(part: NDArray[np.int64]) -> None:
        shards.append(_write(folder, f"tokens-{len(shards):05}.bin", part.astype(dtype)))

    for part, last in work.documents(tokenizer):
        if fresh and len(part):
            take(before)
            fresh = False
        take(part)
        if last and not fresh:  # an empty document is none
            take(after)
            starts.append(tokens)
            fresh = True
    if not tokens:
        raise BadInput(f"{', '.join(map(str, work.paths))}: there is no text in these files")
    if waiting:
        flush(np.concatenate(pending))
    documents = _write(folder, "documents.bin", np.array(starts, "<i8"))
    tokenizer.save(folder)
    vocabulary = fingerprint(tokenizer)
    Index(name, vocabulary, len(tokenizer), dtype.str, tokens, tuple(shards), documents, work.sources).write(folder)


def _around(tokenizer: Tokenizer) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """What stands before and after every document."""
    bos, eos = tokenizer.bos, tokenizer.eos
    starts = bos is not None and tokenizer.encode("")[:1] == [bos]
    return np.array([bos] if starts else [], np.int64), np.array([] if eos is None else [eos], np.int64)


def _write(folder: Path, name: str, numbers: NDArray[Any]) -> FileEntry:
    data = numbers.tobytes()
    (folder / name).write_bytes(data)
    return FileEntry(name, len(numbers), hashlib.sha256(data).hexdigest())


def _publish(making: Path, ready: Path) -> None:
    settle_folder(making, ready)
    if not (ready / INDEX).exists():
        raise CheckpointError(f"{ready} lacks its {INDEX}: remove that folder and prepare the files again")


def _sweep(home: Path) -> None:
    """Remove what a killed process left."""
    for path in home.glob(".making-*"):
        with contextlib.suppress(FileNotFoundError):  # its maker has just finished
            if time.time() - path.stat().st_mtime > ABANDONED:
                shutil.rmtree(path, ignore_errors=True)


def _fingerprint(
    sources: Sequence[FileEntry], vocabulary: Vocabulary | Tokenizer, separator: str | None, shard: int
) -> str:
    """By content: neither the files' names nor their dates count."""
    vocabulary_identity = fingerprint(vocabulary) if isinstance(vocabulary, Tokenizer) else repr(vocabulary)
    packed = [Path(source.file).suffix == ".gz" for source in sources]
    contents = [(source.sha256, gz) for source, gz in zip(sources, packed, strict=True)]
    return hashlib.sha256(repr((1, contents, vocabulary_identity, separator, shard)).encode()).hexdigest()
