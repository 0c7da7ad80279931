"""Scalars in TensorBoard's event files.

The format is a list of records, each a length, a message and their checksums; a scalar needs five fields of one
protobuf message. That is small enough to write here: the package that reads it brings a web server and gRPC along.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Mapping
from pathlib import Path

_POLYNOMIAL = 0x82F63B78  # CRC-32C, reflected


def _table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = (byte >> 1) ^ (_POLYNOMIAL if byte & 1 else 0)
        table.append(byte)
    return table


_TABLE = _table()


def _checksum(data: bytes) -> bytes:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF)  # "masked", as the format asks


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def _field(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(data)) + data


class Events:
    """An event file. After a resume a new one says from which step on the older ones do not count."""

    def __init__(self, folder: Path, step: int):
        folder.mkdir(parents=True, exist_ok=True)
        stamp = time.time_ns()
        self._file = (folder / f"events.out.tfevents.{stamp // 10**9}.{stamp % 10**9}.{os.getpid()}").open("wb")
        self._write(_field(3, b"brain.Event:2"))
        # SessionLog START: what older files say of this step and later ones does not count
        self._write(_varint(2 << 3) + _varint(step + 1) + _field(7, _varint(1 << 3) + _varint(1)))
        self._file.flush()

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        summary = b"".join(
            _field(1, _field(1, name.encode()) + _varint(2 << 3 | 5) + struct.pack("<f", value))
            for name, value in values.items()
        )
        self._write(_varint(2 << 3) + _varint(step) + _field(5, summary))
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    def _write(self, message: bytes) -> None:
        message = _varint(1 << 3 | 1) + struct.pack("<d", time.time()) + message
        size = struct.pack("<Q", len(message))
        self._file.write(size + _checksum(size) + message + _checksum(message))
