"""Processes that tests start, as a user would, and send signals to."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PATIENCE = 300.0  # seconds; only what will never happen takes as long
QUIET = {"TERM": "dumb", "VANTAGE_NATIVE": "0", "PYTHONWARNINGS": "ignore"}  # nothing but the verb's own words is shown
VANTAGE = (sys.executable, "-m", "vantage")


def start(command: Sequence[str], *, ignoring: Collection[signal.Signals] = (), **options: Any) -> subprocess.Popen:
    """``subprocess.Popen``, whose process listens to SIGINT, SIGQUIT and SIGTERM and ignores those in ``ignoring``.

    However the tests themselves were started: in the background of a script they ignore SIGINT, and a child would
    inherit that. SIGHUP is inherited unless it is named: under nohup a hang-up must not end what a test has started.
    """
    with _inherited(ignoring):
        return subprocess.Popen(command, **options)


@contextlib.contextmanager
def _inherited(ignoring: Collection[signal.Signals]) -> Iterator[None]:
    """What has a handler in this process is at its default in a new one, and this one is as good as ignored by it."""
    before: dict[signal.Signals, Any] = {}
    try:
        for number in {signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, *ignoring}:
            handler = signal.getsignal(number)
            if number in ignoring:
                before[number] = signal.signal(number, signal.SIG_IGN)
            elif handler is signal.SIG_IGN:
                before[number] = signal.signal(number, lambda number, frame: None)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def until(true: Callable[[], object], seconds: float = PATIENCE) -> None:
    """Wait for something that happens elsewhere."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


class Terminal:
    """A process that has a terminal of its own."""

    def __init__(self, args: Sequence[str], home: Path, *, ignoring: Collection[signal.Signals] = ()):
        self.fd, inner = pty.openpty()
        self.process = start(
            [*VANTAGE, *args],
            ignoring=ignoring,
            cwd=ROOT,
            stdin=inner,
            stdout=inner,
            stderr=inner,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # so that Ctrl-C reaches it as a signal
            env={**os.environ, **QUIET, "VANTAGE_HOME": str(home)},
        )
        os.close(inner)
        self.seen = ""

    def type(self, text: str) -> None:
        os.write(self.fd, text.encode())

    def interrupt(self, wanted: str) -> str:
        """Ctrl-C at the prompt, again if need be: Python misses one that comes while readline handles a key."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            self.type("\x03")
            with contextlib.suppress(TimeoutError):
                return self.until(wanted, 1.0)
        raise AssertionError(f"{wanted!r} did not come; there was {self.seen[-2000:]!r}")

    def until(self, wanted: str, patience: float = PATIENCE) -> str:
        """Read until this pattern appears; what came since the last time."""
        until = time.monotonic() + patience
        while not (found := re.search(wanted, self.seen)):
            if time.monotonic() > until:
                raise TimeoutError(f"{wanted!r} did not come; there was {self.seen[-2000:]!r}")
            if select.select([self.fd], [], [], 1.0)[0]:
                with contextlib.suppress(OSError):  # a terminal whose process has gone
                    self.seen += os.read(self.fd, 65536).decode(errors="replace").replace("\r\n", "\n")
            elif self.process.poll() is not None:
                raise AssertionError(f"it has ended, and {wanted!r} did not come: {self.seen[-2000:]!r}")
        before, self.seen = self.seen[: found.end()], self.seen[found.end() :]
        return before

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.fd)


@contextlib.contextmanager
def terminal(args: Sequence[str], home: Path, *, ignoring: Collection[signal.Signals] = ()) -> Iterator[Terminal]:
    opened = Terminal(args, home, ignoring=ignoring)
    try:
        yield opened
    finally:
        opened.close()
