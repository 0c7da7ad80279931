"""Freed memory goes back to the system while the server runs. The long run is tools/server_memory.py."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import weakref
from pathlib import Path

import pytest

from vantage.serve import memory

SIZE, COUNT, KEPT = 4096 - 16, 20_000, 50  # 80 MB of blocks, one of fifty stays


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="not glibc: no other allocator needs it")
def test_what_lies_between_things_that_stay_is_given_back():
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = (
        ctypes.c_void_p,
        [ctypes.c_size_t],
        [ctypes.c_void_p],
    )
    blocks = [libc.malloc(SIZE) for _ in range(COUNT)]
    for block in blocks:
        ctypes.memset(block, 1, SIZE)
    full = resident()
    for i, block in enumerate(blocks):
        if i % KEPT:
            libc.free(block)
    kept = resident()
    assert full - kept < 20 * 2**20  # nothing to speak of comes back by itself
    memory.give_back_freed()
    assert kept - resident() > 40 * 2**20
    for block in blocks[::KEPT]:
        libc.free(block)


class Knot:
    """An object that refers to itself, as a request's tasks and errors do."""

    def __init__(self):
        self.itself = self


@pytest.mark.sampled
def test_what_refers_to_itself_is_collected_though_it_has_lived_long():
    knot = Knot()
    gc.collect()  # now it is among those that only a full collection looks at
    seen = weakref.ref(knot)
    del knot
    gc.collect(1)
    assert seen() is not None
    memory.give_back_freed()
    assert seen() is None


def test_only_after_requests(monkeypatch):
    calls, counts = [], iter([0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2])
    monkeypatch.setattr(memory, "give_back_freed", lambda: calls.append(1))

    async def main():
        task = asyncio.create_task(memory.give_back_regularly(lambda: next(counts), every_s=0.0))
        while not task.done():
            await asyncio.sleep(0.01)
        with pytest.raises((StopIteration, RuntimeError)):
            task.result()

    asyncio.run(main())
    assert len(calls) == 2
