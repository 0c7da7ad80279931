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
AT_ONCE = 2**18  # numbers dequantised at a time: what a core's cache holds

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
        raw, length_at, end = self._data.tobytes(), READ[10].unpack_from, 0  # a vocabulary has 100,000 and more
        for _ in range(self._count):
            begin = end + 8
            end = begin + length_at(raw, end)[0]
            yield _text(raw[begin:end], self._where)


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
            mapped = np.memmap(self.path, dtype=np.uint8, mode="c")
        except (OSError, ValueError) as e:
            raise CheckpointError(f"{self.path.name} cannot be mapped: {e}") from e
        self._data, self._map = np.asarray(mapped), mapped.base
        self.metadata: dict[str, Any] = {}
        self.tensors: dict[str, StoredTensor] = {}
        _Header(self._data, self.path.name).read_into(self.metadata, self.tensors)

    def get(self, name: str, dtype: torch.dtype = torch.float32) -> Tensor:
        """The tensor's numbers, dequantised a slice at a time into ``dtype``."""
        stored = self.tensors[name]
        block, width = GGML_QUANT_SIZES[stored.kind]
        raw = self._data[stored.start : stored.start + stored.nbytes]
        out = torch.empty(stored.shape, dtype=dtype)
        flat, step = out.view(-1), AT_ONCE // block  # blocks at a time
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

    def forget(self, name: str) -> None:
        """Give the memory of a tensor's bytes back; who asks for them again gets them from the file."""
        stored = self.tensors[name]
        begin = -(-stored.start // mmap.PAGESIZE) * mmap.PAGESIZE
        length = stored.start + stored.nbytes - begin
        if isinstance(self._map, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED") and length > 0:
            self._map.madvise(mmap.MADV_DONTNEED, begin, length)


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
            return Strings(self._strings(count, where), count, f"{self._file}: {where}")
        if kind == ARRAY:
            self._plausible(count, 12, len(self._data), where)
            for _ in range(count):
                self._array(where, depth + 1)
            return None
        raise self._wrong(f"has an array of type {kind} at {where}, which is unknown")

    def _strings(self, count: int, where: str) -> np.ndarray:
        """The bytes of so many, each with its length in front."""
        start = at = self._at
        length_at, last = READ[10].unpack_from, self._size - 8
        for _ in range(count):
            if at > last:
                break
            at += 8 + length_at(self._bytes, at)[0]
        else:
            if at <= self._size:
                return self._take(at - start, where)
        raise self._wrong(f"is cut short: {where} needs more bytes than the {self._size - start} that are left")

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


def _text(data: bytes, where: str) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as e:
        raise CheckpointError(f"{where} is not UTF-8: {e}") from e
