"""Who listens to Ctrl-C, and what a verb does when it comes.

A process that was started with a signal ignored goes on ignoring it: nohup does that with SIGHUP, the background of a
script with SIGINT, and both mean it. On a terminal Ctrl-C is typed for whoever reads there, however that was started.
"""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Callable, Iterator


def reads_a_terminal() -> bool:
    """Whether somebody types what this process reads."""
    return sys.stdin.isatty()


def listen_on_a_terminal() -> None:
    """Ctrl-C interrupts here again, if there is a terminal and it was ignored."""
    if reads_a_terminal() and signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@contextlib.contextmanager
def stopping(stop: Callable[[], None], *numbers: signal.Signals) -> Iterator[None]:
    """The first of these signals calls ``stop``; the second one ends at once, as if nobody had listened."""

    def once(number: int, frame: object) -> None:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        stop()

    listened = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, once) for number in listened}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
