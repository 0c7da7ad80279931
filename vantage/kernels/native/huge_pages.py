"""Pages of 2 MiB, with which weights and keys are read faster (docs/performance.md). Linux alone.

To ask for them when memory is first written to can take longer than all the writing: the system may have to move
others' pages out of the way for each. So weights and caches are written into small pages, and a thread of its own
exchanges those when they have been there for a while.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress

from torch import Tensor

HUGE_PAGE = 2**21
COLLAPSE = 25  # MADV_COLLAPSE, of Linux 6.1 and later; Python has no name for it
GAP = 2 * mmap.PAGESIZE  # at most between two tensors that an allocator has put side by side
IDLE_S = 1.0  # seconds without new memory
NICE = 10


def use_huge_pages_later(*memory: Tensor) -> None:
    """Some time after it has been filled. Whether it is still there then makes no difference: an address that is no
    longer ours is refused, and one that is ours again has other pages exchanged.

    Tensors that lie side by side count as one: a layer's keys of 3 MB alone hold one whole page or none.
    """
    for begin, end in _joined(memory):
        first, last = -(-begin // HUGE_PAGE) * HUGE_PAGE, end // HUGE_PAGE * HUGE_PAGE
        if first < last:
            _exchange.add(first, last - first)


def wait_for_huge_pages() -> None:
    """Until all pages so far are exchanged: before a measurement, which that work would disturb."""
    if (thread := _exchange.thread) is not None:
        thread.join()


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


def _joined(memory: Sequence[Tensor]) -> list[tuple[int, int]]:
    """Where they begin and end, those that lie side by side together; nothing where there is nothing to ask."""
    joined = list[tuple[int, int]]()
    for begin, nbytes in sorted((tensor.data_ptr(), tensor.nbytes) for tensor in memory):
        if joined and begin - joined[-1][1] <= GAP:
            joined[-1] = joined[-1][0], begin + nbytes
        else:
            joined.append((begin, begin + nbytes))
    return joined if sys.platform == "linux" else []


def _advise(begin: int, length: int, advice: int) -> bool:
    return _libc().madvise(ctypes.c_void_p(begin), ctypes.c_size_t(length), advice) == 0


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)
