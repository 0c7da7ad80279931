"""Memory that requests have freed, given back to the system.

Requests of every length come and go in several threads. What they free lies in pieces between what stays, and glibc
keeps it: with as many Python objects as ever, the process grew by a mebibyte a minute at 16 requests a second. No other
allocator needs this.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
from collections.abc import Callable

EVERY_S = 20.0


def give_back_freed() -> bool:
    """Whole pages that are free go back to the system. False: this is not glibc, and nothing was done."""
    library = ctypes.CDLL(None) if os.name == "posix" else None
    if library is None or not hasattr(library, "malloc_trim"):
        return False
    library.malloc_trim(0)
    return True


async def give_back_regularly(requests: Callable[[], float], every_s: float = EVERY_S) -> None:
    """Until it is cancelled, in a thread of its own, after every while in which there were requests."""
    seen = requests()
    while True:
        await asyncio.sleep(every_s)
        if requests() != seen:
            seen = requests()
            await asyncio.to_thread(give_back_freed)
