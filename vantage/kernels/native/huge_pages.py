"""Pages of 2 MiB, with which weights and keys are read faster (docs/performance.md). Linux alone.

To ask for them when memory is first written to can take longer than all the writing: the system may have to move
others' pages out of the way for each. So weights are written into small pages, and a thread of its own exchanges those
when the model has been there for a while.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import sys
import threading
import time
from contextlib import suppress

from torch import Tensor

HUGE_PAGE = 2**21
COLLAPSE = 25  # MADV_COLLAPSE, of Linux 6.1 and later; Python has no name for it
IDLE_S = 1.0  # seconds without new weights
NICE = 10


def use_huge_pages(memory: Tensor) -> None:
    """From its first use on. Not asked for what has no whole one."""
    begin, length = _whole(memory, mmap.PAGESIZE)
    if length >= HUGE_PAGE:
        _advise(begin, length, mmap.MADV_HUGEPAGE)


def use_huge_pages_later(memory: Tensor) -> None:
    """Some time after it has been filled. Whether it is still there then makes no difference: an address that is no
    longer ours is refused, and one that is ours again has other pages exchanged."""
    begin, length = _whole(memory, HUGE_PAGE)
    if length:
        _exchange.add(begin, length)


class PageExchange:
    """Exchanges the pages of what it was given, in one thread, which ends when all is done."""

    def __init__(self) -> None:
        self._lock, self._ranges, self._newest = threading.Lock(), list[tuple[int, int]](), 0.0
        self.thread: threading.Thread | None = None

    def add(self, begin: int, length: int) -> None:
        with self._lock:
            self._ranges.append((begin, length))
            self._newest = time.monotonic()
            if self.thread is None:
                self.thread = threading.Thread(target=self._run, name="vantage-huge-pages", daemon=True)
                self.thread.start()

    def _run(self) -> None:
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
        while (taken := self._taken()) is not None:
            begin, length = taken
            pages = range(begin, begin + length, HUGE_PAGE)
            exchanged = sum(_advise(at, HUGE_PAGE, COLLAPSE) for at in pages)  # one by one: nobody waits for more
            if not exchanged:
                _advise(begin, length, mmap.MADV_HUGEPAGE)  # an older Linux may do it when it finds the time

    def _taken(self) -> tuple[int, int] | None:
        while True:
            with self._lock:
                if not self._ranges:
                    self.thread = None
                    return None
                wait = self._newest + IDLE_S - time.monotonic()
                if wait <= 0:
                    return self._ranges.pop(0)
            time.sleep(wait)


_exchange = PageExchange()
if hasattr(os, "register_at_fork"):  # no thread goes over into a forked process
    os.register_at_fork(after_in_child=_exchange.__init__)


def _whole(memory: Tensor, page: int) -> tuple[int, int]:
    """Where its whole pages begin, and how long they are together; 0 where there is nothing to ask."""
    if sys.platform != "linux":
        return 0, 0
    begin = -(-memory.data_ptr() // page) * page
    return begin, max(0, (memory.data_ptr() + memory.nbytes - begin) // page * page)


def _advise(begin: int, length: int, advice: int) -> bool:
    return _libc().madvise(ctypes.c_void_p(begin), ctypes.c_size_t(length), advice) == 0


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)
