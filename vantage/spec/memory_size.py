"""Sizes of memory as people write them."""

from __future__ import annotations

import re

from vantage.errors import BadInput

UNITS = {"": 1, "B": 1} | {
    f"{letter}{tail}": base**power
    for power, letter in enumerate("KMGT", 1)
    for tail, base in (("iB", 1024), ("B", 1000), ("", 1024))
}


def memory_size(value: int | str, name: str = "max_memory") -> int:
    """Bytes: a number of them, or a text as in "6GiB", "800MB" (millions) or "1.5 GiB"."""
    if isinstance(value, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?(?:iB|B)?)\s*", value, re.IGNORECASE)
        units = {unit.lower(): size for unit, size in UNITS.items()}
        if match is None:
            raise BadInput(f"{name}={value!r}: write a size as in 6GiB, 800MB or 12000000000")
        value = int(float(match[1]) * units[match[2].lower()])
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise BadInput(f"{name}={value!r}: write a size as in 6GiB, 800MB or 12000000000")
    return value


def readable(nbytes: int) -> str:
    """ "1.5 GiB"."""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if nbytes >= size:
            return f"{nbytes / size:,.4g} {unit}"
    return f"{nbytes} bytes"
