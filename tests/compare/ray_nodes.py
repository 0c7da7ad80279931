"""A Ray cluster of two nodes, in a process of its own, as the tests that use one see it."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[2]


def environment(**more: str) -> dict[str, str]:
    return os.environ | {"OMP_NUM_THREADS": "1", "RAY_AUTH_MODE": "disabled"} | more


class Nodes:
    """Two machines with so many cores each, as far as Ray knows."""

    def __init__(self, cores: int = 1) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = str(probe.getsockname()[1])
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.compare.nodes", port, str(cores)],
            cwd=ROOT,
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        said = json.loads(self.told())
        self.address, self.client, self.logs = said["address"], said["client"], Path(said["logs"])

    def told(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        while line and not line.startswith(("{", "done")):  # Ray has words of its own
            line = self.process.stdout.readline()
        assert line, "the cluster has ended"
        return line

    def tell(self, what: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{what}\n")
        self.process.stdin.flush()
        assert self.told().strip() == "done"

    def workers(self, title: str = "ray::Actor") -> list[psutil.Process]:
        """The processes of this title, on either node: those that train."""
        found = []
        for process in psutil.Process(self.process.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                found += [process] if title in " ".join(process.cmdline()) else []
        return found

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(60)
        self.process.stdout.close()
