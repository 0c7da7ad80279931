"""A GGUF file: its metadata and its tensors, mapped and checked before anything is believed.

Every count and length is held against the bytes that are left before it is used, so a file of n bytes
cannot make this read, loop or allocate more than n bytes' worth. Numbers in arrays stay views of the file and
strings in arrays are decoded when somebody iterates over them. Weights are dequantised by the ``gguf`` package.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize
from torch import Tensor

from vantage.errors import BadInput, CheckpointError
from vantage.model.packed import PACKED_TYPES

MAGIC, VERSIONS = b"GGUF", (2, 3)
# What the format allows, and more than any real file has: a header is refused before it is followed further.
LONGEST_KEY, LONGEST_NAME, MOST_DIMS, DEEPEST, MOST_KEYS, MOST_TENSORS = 65535, 64, 4, 4, 2**16, 2**17
SMALLEST_KEY, SMALLEST_TENSOR = 14, 33  # bytes of the shortest possible entry
SEARCHED, STEPS = 2**14, 2**12  # bytes searched at once for the lengths of strings, and strings taken one by one
CHUNK_NUMBERS = 2**18  # numbers dequantised at a time: what a core's cache holds

STRING, ARRAY, BOOL = 8, 9, 7
CODES = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 10: "Q", 11: "q", 12: "d"}
READ = {kind: struct.Struct("<" + code) for kind, code in CODES.items()}
NUMBERS = {kind: np.dtype("<" + code) for kind, code in CODES.items()}
WIDTHS = {kind: reader.size for kind, reader in READ.items()} | {BOOL: 1}

KINDS = {GGMLQuantizationType[name] for name in ("F32", *sorted(PACKED_TYPES))}


@dataclass(frozen=True)
class StoredTensor:
    """Where a tensor lies and how. ``shape`` is in torch's order."""

    kind: GGMLQuantizationType
    shape: tuple[int, ...]
    start: int  # from the beginning of the file
    nbytes: int


class Strings:
    """A list of strings that stays in the file until it is read."""

    def __init__(self, data: np.ndarray, count: int, where: str):
        """``data``: of each its length in 8 bytes and then itself."""
        self._data, self._count, self._where = data, count, where

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[str]:
        return iter(self.read())

    def __getitem__(self, i: int) -> str:
        if not 0 <= i < self._count:
            raise IndexError(i)
        before = 0
        for begins in _string_begins(self._data, self._count):
            if i < before + len(begins):
                return self._at(int(begins[i - before]))
            before += len(begins)
        raise AssertionError("the header counted them")

    def read(self) -> list[str]:
        """All of them. A vocabulary has 100,000 and more: they are made one text, which is cut where lengths stood."""
        raw = self._data.copy()
        begins = np.concatenate([*_string_begins(raw, self._count), np.empty(0, np.int64)])
        # of a length below 256 all bytes but one are 0 already
        short = self._count and np.diff(begins, append=len(raw)).max() < 8 + 256
        raw[begins if short else begins[:, None] + np.arange(8)] = 0
        if np.count_nonzero(raw) != len(raw) - 8 * self._count:  # a string holds what they are to be cut at
            return [self._at(begin) for begin in begins.tolist()]
        return _text(raw.tobytes(), self._where).split("\0" * 8)[1:]

    def _at(self, begin: int) -> str:
        end = begin + 8 + READ[10].unpack_from(self._data.data, begin)[0]
        return _text(self._data[begin + 8 : end].tobytes(), self._where)


class GGUF:
    """One file. ``metadata`` by key; ``tensors`` by name, without their data until ``get``."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        if not self.path.is_file():
            raise BadInput(f"{self.path} is not a file: give a .gguf file")
        if self.path.stat().st_size < 24:
            raise CheckpointError(f"{self.path.name} has {self.path.stat().st_size} bytes: too few for a GGUF header")
        try:
            # A plain view: slicing a memmap itself costs microseconds each time. Private and never written to, but
            # writable: torch takes no other memory without a copy.
            mapped: Any = np.memmap(self.path, dtype=np.uint8, mode="c")
        except (OSError, ValueError) as e:
            raise CheckpointError(f"{self.path.name} cannot be mapped: {e}") from e
        self._data, self._map = np.asarray(mapped), mapped._mmap
        self._address = self._data.ctypes.data
        self.metadata: dict[str, Any] = {}
        self.tensors: dict[str, StoredTensor] = {}
        _Header(self._data, self.path.name).read_into(self.metadata, self.tensors)

    def get(self, name: str, dtype: torch.dtype = torch.float32) -> Tensor:
        """The tensor's numbers, dequantised a slice at a time into ``dtype``."""
        stored = self.tensors[name]
        block, width = GGML_QUANT_SIZES[stored.kind]
        raw = self._data[stored.start : stored.start + stored.nbytes]
        out = torch.empty(stored.shape, dtype=dtype)
        flat, step = out.view(-1), CHUNK_NUMBERS // block  # blocks at a time
        with np.errstate(all="ignore"):  # a NaN scale makes NaN weights, which are refused by name where they are used
            for a in range(0, stored.nbytes // width, step):
                # One long row: rows of their own would be done sixteen at a time. A copy, because torch
                # wants memory that could be written to.
                piece = raw[None, a * width : (a + step) * width].copy()
                flat[a * block : (a + step) * block] = torch.from_numpy(dequantize(piece, stored.kind)[0])
        return out

    def rows(self, name: str) -> Tensor:
        """The bytes of a tensor of two dimensions, row by row, as they are stored: mapped, not read."""
        stored = self.tensors[name]
        raw = self._data[stored.start : stored.start + stored.nbytes]
        return torch.from_numpy(raw).view(stored.shape[0], -1)

    def row_addresses(self, name: str) -> Tensor:
        """Where these rows lie, in mapped memory that lives as long as this."""
        stored = self.tensors[name]
        first, row = self._address + stored.start, stored.nbytes // stored.shape[0]
        return torch.arange(first, first + stored.shape[0] * row, row)

    def release(self) -> None:
        """Give all pages back; they come from the file again."""
        if hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED)

    def pages(self, name: str) -> tuple[int, int]:
        """The address and the length of a tensor's whole pages: who gives them back gets them from the file again.

        They may be given back while the file is there: nothing is written to them.
        """
        stored = self.tensors[name]
        begin = -(-stored.start // mmap.PAGESIZE) * mmap.PAGESIZE
        end = (stored.start + stored.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
        return self._address + begin, max(0, end - begin)


class _Header:
    """Reads from the front, never past the end."""

    def __init__(self, data: np.ndarray, file: str):
        self._data, self._bytes, self._size = data, data.data, len(data)
        self._file, self._at = file, 0

    def read_into(self, metadata: dict[str, Any], tensors: dict[str, StoredTensor]) -> None:
        if bytes(self._take(4, "the magic number")) != MAGIC:
            raise self._wrong("does not begin with 'GGUF'")
        version = self._number(4, "the version")
        if version not in VERSIONS:
            swapped = int.from_bytes(version.to_bytes(4, "little"), "big") in VERSIONS
            why = "is big-endian" if swapped else f"has version {version}"
            raise self._wrong(f"{why}; versions {VERSIONS[0]} and {VERSIONS[1]}, little-endian, are read")
        count, keys = self._number(10, "the number of tensors"), self._number(10, "the number of keys")
        self._plausible(keys, SMALLEST_KEY, MOST_KEYS, "metadata keys")
        self._plausible(count, SMALLEST_TENSOR, MOST_TENSORS, "tensors")
        for _ in range(keys):
            key = self._string(LONGEST_KEY, "a metadata key")
            if key in metadata:
                raise self._wrong(f"has the key {key!r} twice")
            metadata[key] = self._value(self._number(4, f"the type of {key!r}"), f"{key!r}", 0)
        entries: dict[str, tuple[GGMLQuantizationType, tuple[int, ...], int]] = {}
        for _ in range(count):
            name = self._string(LONGEST_NAME, "a tensor's name")
            if name in entries:
                raise self._wrong(f"has the tensor {name!r} twice")
            entries[name] = self._entry(name)
        self._place(entries, self._alignment(metadata), tensors)

    def _entry(self, name: str) -> tuple[GGMLQuantizationType, tuple[int, ...], int]:
        dims = self._number(4, f"the dimensions of {name!r}")
        if not 1 <= dims <= MOST_DIMS:
            raise self._wrong(f"gives {name!r} {dims} dimensions; 1 to {MOST_DIMS} are possible")
        shape = tuple(self._number(10, f"the shape of {name!r}") for _ in range(dims))[::-1]
        code = self._number(4, f"the type of {name!r}")
        try:
            kind = GGMLQuantizationType(code)
        except ValueError:
            raise self._wrong(f"stores {name!r} as type {code}, which is unknown") from None
        if kind not in KINDS:
            known = ", ".join(sorted(k.name for k in KINDS))
            raise self._wrong(f"stores {name!r} as {kind.name}, which is not read; there are {known}")
        return kind, shape, self._number(10, f"the offset of {name!r}")

    def _place(
        self,
        entries: dict[str, tuple[GGMLQuantizationType, tuple[int, ...], int]],
        alignment: int,
        tensors: dict[str, StoredTensor],
    ) -> None:
        """Every tensor aligned, inside the file, and on its own."""
        base = -(-self._at // alignment) * alignment
        for name, (kind, shape, offset) in entries.items():
            block, width = GGML_QUANT_SIZES[kind]
            if min(shape) < 1 or shape[-1] % block:
                raise self._wrong(f"gives {name!r} the shape {shape}; {kind.name} needs rows in blocks of {block}")
            nbytes = math.prod(shape) // block * width
            if offset % alignment:
                raise self._wrong(f"puts {name!r} at {offset}, which is not aligned to {alignment}")
            if base + offset + nbytes > len(self._data):
                raise self._wrong(
                    f"is cut short: {name!r} needs {nbytes:,} bytes from {base + offset:,}, of {len(self._data):,}"
                )
            tensors[name] = StoredTensor(kind, shape, base + offset, nbytes)
        end, before = 0, ""
        for name, stored in sorted(tensors.items(), key=lambda item: item[1].start):
            if stored.start < end:
                raise self._wrong(f"has {name!r} overlap {before!r}")
            end, before = stored.start + stored.nbytes, name

    def _alignment(self, metadata: dict[str, Any]) -> int:
        alignment = metadata.get("general.alignment", 32)
        whole = isinstance(alignment, int) and not isinstance(alignment, bool)
        if not whole or not 8 <= alignment <= 2**20 or alignment & (alignment - 1):
            raise self._wrong(f"has the alignment {alignment!r}; a power of two from 8 is needed")
        return alignment

    # ---- values

    def _value(self, kind: int, where: str, depth: int) -> Any:
        if kind in NUMBERS:
            return self._number(kind, where)
        if kind == BOOL:
            return self._bools(1, where)[0].item()
        if kind == STRING:
            return self._string(len(self._data), where)
        if kind == ARRAY:
            return self._array(where, depth + 1)
        raise self._wrong(f"has a value of type {kind} at {where}, which is unknown")

    def _array(self, where: str, depth: int) -> Any:
        """Numbers as a view, strings as ``Strings``. What is nested deeper is checked and left: nobody reads it."""
        if depth > DEEPEST:
            raise self._wrong(f"nests arrays deeper than {DEEPEST} at {where}")
        kind, count = self._number(4, where), self._number(10, where)
        if kind in NUMBERS:
            self._plausible(count, WIDTHS[kind], len(self._data), where)
            return self._take(count * WIDTHS[kind], where).view(NUMBERS[kind])
        if kind == BOOL:
            return self._bools(count, where)
        if kind == STRING:
            self._plausible(count, 8, len(self._data), where)
            return self._strings(count, where)
        if kind == ARRAY:
            self._plausible(count, 12, len(self._data), where)
            for _ in range(count):
                self._array(where, depth + 1)
            return None
        raise self._wrong(f"has an array of type {kind} at {where}, which is unknown")

    def _strings(self, count: int, where: str) -> Strings:
        """So many, each with its length in front."""
        rest, end = self._data[self._at :], 0
        for begins in _string_begins(rest, count):
            last = int(begins[-1]) if len(begins) else len(rest)
            end = last + 8 + (READ[10].unpack_from(rest.data, last)[0] if len(begins) else 0)
        if end > len(rest):
            raise self._wrong(f"is cut short: {where} needs more bytes than the {len(rest)} that are left")
        return Strings(self._take(end, where), count, f"{self._file}: {where}")

    def _bools(self, count: int, where: str) -> np.ndarray:
        values = self._take(count, where)
        if len(values) and values.max() > 1:
            raise self._wrong(f"has a truth value of {values.max()} at {where}")
        return values.view(np.bool_)

    def _number(self, kind: int, where: str) -> Any:
        at = self._at
        self._skip(WIDTHS[kind], where)
        return READ[kind].unpack_from(self._bytes, at)[0]

    def _string(self, longest: int, where: str) -> str:
        length = self._number(10, f"the length of {where}")
        if length > longest:
            raise self._wrong(f"gives {where} a length of {length}; {longest} is the most")
        return _text(self._take(length, where).tobytes(), f"{self._file}: {where}")

    def _take(self, count: int, where: str) -> np.ndarray:
        self._skip(count, where)
        return self._data[self._at - count : self._at]

    def _skip(self, count: int, where: str) -> None:
        if count > self._size - self._at:
            raise self._wrong(f"is cut short: {where} needs {count} bytes and {self._size - self._at} are left")
        self._at += count

    def _plausible(self, count: int, each: int, most: int, what: str) -> None:
        left = len(self._data) - self._at
        if count > most or count * each > left:
            raise self._wrong(f"promises {count} entries ({what}), and the {left} bytes that are left cannot hold them")

    def _wrong(self, what: str) -> CheckpointError:
        return CheckpointError(f"{self._file} {what}")


def _string_begins(data: np.ndarray, count: int) -> Iterator[np.ndarray]:
    """Where the length of each string begins, some at a time. The last time none: the bytes end before."""
    at = 0
    while count:
        begins = _short_strings(data[at : at + SEARCHED])[:count]
        if len(begins) < 2:
            begins = _one_by_one(data[at:], min(count, STEPS))
        yield begins + at
        if not len(begins):
            return
        at += int(begins[-1])
        at += 8 + READ[10].unpack_from(data.data, at)[0]
        count -= len(begins)


def _short_strings(data: np.ndarray) -> np.ndarray:
    """The first of them, found all at once: lengths from 1 to 255, as those of a vocabulary are, are a byte and seven
    zeros. Each must follow from the one before."""
    places = max(0, len(data) - 7)
    empty = data == 0
    is_length = ~empty[:places]
    for i in range(1, 8):
        is_length &= empty[i : places + i]
    (begins,) = is_length.nonzero()
    if not len(begins) or begins[0]:
        return begins[:0]
    (wrong,) = (begins[1:] - begins[:-1] != 8 + data[begins[:-1]].astype(np.int64)).nonzero()
    return begins[: wrong[0] + 1] if len(wrong) else begins


def _one_by_one(data: np.ndarray, count: int) -> np.ndarray:
    """The same for any strings; none where the bytes end before."""
    at, begins, length_at = 0, [], READ[10].unpack_from
    for _ in range(count):
        if at > len(data) - 8:
            return np.empty(0, np.int64)
        begins.append(at)
        at += 8 + length_at(data.data, at)[0]
    return np.array(begins, np.int64)


def _text(data: bytes, where: str) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as e:
        raise CheckpointError(f"{where} is not UTF-8: {e}") from e
