"""Memory that requests have freed, given back to the system.

Requests of every length come and go in several threads. What they free lies in pieces between what stays, and glibc
keeps it: with as many Python objects as ever, the process grew on. Objects that refer to each other wait for Python's
full collection besides, which comes the more seldom the more objects there are. What the imports made is frozen
(``run.py``), so a collection takes a few milliseconds. The tokenizer's cache has a bound: 10,000 words.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
from collections.abc import Callable

EVERY_S = 20.0


def give_back_freed() -> None:
    """Collect what nobody refers to; under glibc, whole pages that are free go back to the system."""
    gc.collect()
    library = ctypes.CDLL(None) if os.name == "posix" else None
    if library is not None and hasattr(library, "malloc_trim"):
        library.malloc_trim(0)


async def give_back_regularly(requests: Callable[[], float], every_s: float = EVERY_S) -> None:
    """Until it is cancelled, in a thread of its own, after every while in which there were requests."""
    seen = requests()
    while True:
        await asyncio.sleep(every_s)
        if requests() != seen:
            seen = requests()
            await asyncio.to_thread(give_back_freed)
