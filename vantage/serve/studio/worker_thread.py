"""A worker thread: one piece of work at a time, a short queue, and a way to stop what nobody waits for."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncGenerator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar, final

from vantage.serve.errors import ApiError

T = TypeVar("T")
MAX_AHEAD = 64  # items thin the thread may be ahead of its reader
LOOK_S = 0.1  # how often a thread that waits for its reader looks whether there is one


@final
class WorkerThread:
    """Blocking generators, one after another. All methods but those below the line are for the event loop."""

    def __init__(self, name: str, waiting: int):
        self._name, self._most = name, waiting + 1
        self._here = 0  # those that run or wait; a thread that is being stopped counts until it has stopped
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"studio-{name}")
        self._tasks: set[_Task] = set()

    @property
    def busy(self) -> int:
        return self._here

    async def run(self, make: Callable[[], Iterator[T]]) -> AsyncGenerator[T]:
        """What the generator yields. Closing this, or leaving its loop, stops the generator at its next yield."""
        if self._here >= self._most:
            raise ApiError(
                429,
                "queue_full",
                f"{self._here} others are at work or wait here already: wait until one has ended, or stop one",
                retry=5,
            )
        task = _Task(make)
        self._here += 1
        self._tasks.add(task)
        try:
            future = self._thread.submit(task.run)
        except BaseException:
            self._done(task)
            raise
        loop = asyncio.get_running_loop()
        future.add_done_callback(lambda _: _soon(loop, lambda: self._done(task)))
        try:
            while (item := await task.items.get()) is not END:
                task.read.release()
                yield item
            if task.error is not None:
                raise task.error
        finally:
            task.stop.set()
            future.cancel()  # if it has not begun

    def _done(self, task: _Task) -> None:
        if task in self._tasks:
            self._tasks.discard(task)
            self._here -= 1

    def close(self) -> None:
        for task in self._tasks:
            task.stop.set()
        self._thread.shutdown(wait=False, cancel_futures=True)


END: Any = object()


def _soon(loop: asyncio.AbstractEventLoop, call: Callable[[], object]) -> None:
    with contextlib.suppress(RuntimeError):  # the loop has closed: nobody is left to tell
        loop.call_soon_threadsafe(call)


@final
class _Task:
    """One generator on its way. Made in the event loop, run in the thread."""

    def __init__(self, make: Callable[[], Iterator[Any]]):
        self._make, self._loop = make, asyncio.get_running_loop()
        self.items: asyncio.Queue[Any] = asyncio.Queue()
        self.read = threading.Semaphore(MAX_AHEAD)
        self.stop = threading.Event()
        self.error: BaseException | None = None

    # ---------------------------------------------------------------- in the thread

    def run(self) -> None:
        try:
            if not self.stop.is_set():
                self._through()
        except BaseException as e:
            self.error = e
        _soon(self._loop, lambda: self.items.put_nowait(END))

    def _through(self) -> None:
        items = self._make()
        try:
            for item in items:
                while not self.read.acquire(timeout=LOOK_S):
                    if self.stop.is_set():
                        return
                if self.stop.is_set():
                    return
                _soon(self._loop, lambda item=item: self.items.put_nowait(item))
        finally:
            close = getattr(items, "close", None)  # a list's iterator has none
            if close is not None:
                close()
