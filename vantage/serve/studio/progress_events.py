"""Work that says how far it is by calling a function, as events: a reader that leaves ends it at its next report."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator

from vantage.serve.studio.answers import WorkProgress
from vantage.serve.studio.state import Event

HEARTBEAT_S = 1.0  # a reader hears at least so often, and one that left is noticed
Report = Callable[[float, str], None]  # the share that is done, and what is being done


class ReaderLeft(Exception):
    """Nobody waits for the result any more."""


def progress_events(run: Callable[[Report], Event], name: str) -> Iterator[Event]:
    """``progress`` whenever the work reports, then what it returns. It runs in a thread of this ``name``."""
    news: queue.SimpleQueue[Event | BaseException] = queue.SimpleQueue()
    left = threading.Event()

    def report(share: float, doing: str) -> None:
        if left.is_set():
            raise ReaderLeft
        news.put(_progress(share, doing))

    def go() -> None:
        try:
            news.put(run(report))
        except BaseException as e:  # every end is told: the reader waits for one
            news.put(e)

    thread = threading.Thread(target=go, name=name, daemon=True)
    last = _progress(0.0, "starting")
    yield last
    thread.start()
    try:
        while True:
            try:
                new = news.get(timeout=HEARTBEAT_S)
            except queue.Empty:
                yield last
                continue
            if isinstance(new, BaseException):
                raise new
            last = new
            yield new
            if new[0] != "progress":
                return
    finally:
        left.set()
        thread.join()  # the place is free when it has ended


def _progress(share: float, doing: str) -> Event:
    return "progress", WorkProgress(share=min(1.0, max(0.0, float(share))), doing=doing)
