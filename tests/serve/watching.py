"""/health, and the server's memory, while something else goes on."""

from __future__ import annotations

import contextlib
import statistics
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.processes import ROOT
from tests.serve.running import Server

BOUND_MS = 100.0


@dataclass
class Health:
    """Milliseconds of /health, and of a process beside the server that does nothing but answer (health.py)."""

    times: list[float] = field(default_factory=list)
    twin: list[float] = field(default_factory=list)

    def check(self) -> None:
        """Under 100 ms, beyond what the machine takes from everybody.

        Tests share their cores. Where a process that does nothing is kept waiting, so is the server: and in it an
        answer may wait for two threads, the loop's and the one that holds the interpreter, where the twin waits for
        one. On a machine with nothing else to do the twin takes a millisecond, and the bound is the bound.
        """
        assert len(self.times) >= 3, "too few answers to judge by"
        assert max(self.times) < BOUND_MS + 2 * max(self.twin), self
        assert high(self.times) < BOUND_MS + 2 * high(self.twin), self

    def __str__(self) -> str:
        both = (("health", self.times), ("a process that does nothing", self.twin))
        said = (f"{name}: {statistics.median(x):.1f}, {high(x):.1f}, {max(x):.1f}" for name, x in both)
        return f"{len(self.times)} answers, median, 99th of 100 and worst in ms: {'; '.join(said)}"


def high(values: list[float]) -> float:
    """The 99th of a hundred."""
    return statistics.quantiles(values, n=100, method="inclusive")[-1]


@contextlib.contextmanager
def polled(server: Server, pause: float = 0.1) -> Iterator[Health]:
    """What is yielded is filled in at the end."""
    host, port = server.url.removeprefix("http://").split(":")
    command = [sys.executable, str(ROOT / "tests/serve/health.py"), host, port, str(pause)]
    found = Health()
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield found
        finally:
            lines = process.communicate()[0].splitlines()
    for line in lines:
        time, twin = line.split()
        found.times.append(float(time))
        found.twin.append(float(twin))


@dataclass
class Memory:
    """Bytes that were resident, once a second."""

    seen: list[int] = field(default_factory=list)

    @property
    def slope(self) -> float:
        """Bytes a minute, over the last two thirds: the first pages of everything are touched before."""
        late = self.seen[len(self.seen) // 3 :]
        return 60 * statistics.linear_regression(range(len(late)), late).slope

    @property
    def grown(self) -> int:
        return max(self.seen) - self.seen[0]


@contextlib.contextmanager
def weighed(server: Server) -> Iterator[Memory]:
    found, over = Memory([server.memory()]), threading.Event()

    def look() -> None:
        while not over.wait(1.0):
            found.seen.append(server.memory())

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield found
    finally:
        over.set()
        thread.join()
