"""Memory that a training step frees, kept for the next one.

glibc gives large blocks back to the system as soon as they are free, and the system hands them out again page by page,
each filled with zeros. A small model's training spends a tenth of its time on that. No other allocator needs it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator

import torch

TRIM, MMAP = -1, -3  # mallopt's numbers: M_TRIM_THRESHOLD, M_MMAP_THRESHOLD
EVERYTHING, LARGEST = 2**31 - 1, 32 << 20  # bytes: the most that every glibc takes
TRIM_THRESHOLD = 2 * LARGEST  # what glibc itself would have come to
MALLOC_VARIABLES = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")

_inside = 0


@contextlib.contextmanager
def keep_freed_memory(device: torch.device) -> Iterator[None]:
    """While this lasts, the process keeps what it frees; at the end it gives back what it can.

    For a CPU under glibc, unless the caller's environment has chosen otherwise.
    """
    global _inside
    library = ctypes.CDLL(None) if os.name == "posix" else None
    is_glibc = hasattr(library, "gnu_get_libc_version") and not any(name in os.environ for name in MALLOC_VARIABLES)
    if device.type != "cpu" or library is None or not is_glibc:
        yield
        return
    _inside += 1
    library.mallopt(MMAP, LARGEST)
    library.mallopt(TRIM, EVERYTHING)
    try:
        yield
    finally:
        _inside -= 1
        if not _inside:
            library.mallopt(TRIM, TRIM_THRESHOLD)
            library.malloc_trim(0)
