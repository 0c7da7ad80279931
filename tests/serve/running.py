"""A real server in a process of its own, and the small model that most tests ask."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from signal import Signals

import httpx
import openai
import pytest

import vantage as vt
from tests.generation.folder import chat_model
from tests.processes import PATIENCE, ROOT, start, until
from vantage.checkpoints.pull import PullError, place, pull

KEY = "a-key-for-tests"


class Server:
    """``vantage serve`` as a user starts it. ``log()`` gives its lines."""

    def __init__(
        self, args: Sequence[str], folder: Path, *, module: str, env: dict[str, str], ignoring: Collection[Signals] = ()
    ):
        self._clients: list[openai.OpenAI] = []
        self._err = folder / f"serve-{time.monotonic_ns()}.log"
        command = [sys.executable, "-m", module, "serve", *args, "--port", "0", "--json"]
        kept = [name for name in os.environ if not name.startswith("VANTAGE_") or name == "VANTAGE_HOME"]
        with self._err.open("w") as err:
            self.process = start(
                command,
                ignoring=ignoring,
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=err,
                text=True,
                env={**{name: os.environ[name] for name in kept}, "OMP_NUM_THREADS": "1", **env},
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self._err.read_text()
        self.url: str = json.loads(line)["url"]

    def client(self, key: str = KEY, **options) -> openai.OpenAI:
        made = openai.OpenAI(
            base_url=f"{self.url}/v1", api_key=key, **{"max_retries": 0, "timeout": PATIENCE, **options}
        )
        self._clients.append(made)
        return made

    def http(self, key: str | None = KEY, **options) -> httpx.Client:
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        return httpx.Client(base_url=self.url, headers=headers, timeout=PATIENCE, **options)

    def log(self) -> list[dict]:
        return [json.loads(line) for line in self._err.read_text().splitlines() if line.startswith("{")]

    def logged(self, field: str) -> dict:
        """The last line that has this field; a line may be written after its answer was read."""
        until(lambda: any(field in line for line in self.log()))
        return [line for line in self.log() if field in line][-1]

    def raw_log(self) -> str:
        return self._err.read_text()

    def metric(self, name: str, key: str | None = KEY, **labels: str) -> float:
        """One number of /metrics, read by Prometheus' own parser."""
        from prometheus_client.parser import text_string_to_metric_families

        with self.http(key) as http:
            page = http.get("/metrics").raise_for_status().text
        found = [s for family in text_string_to_metric_families(page) for s in family.samples if s.name == name]
        return sum(s.value for s in found if labels.items() <= s.labels.items())

    def memory(self) -> int:
        """Bytes that are resident."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def stop(self, wait: float = PATIENCE) -> int:
        for client in self._clients:
            client.close()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(wait)
        finally:
            self.process.kill()
            assert self.process.stdout is not None
            self.process.stdout.close()


@contextlib.contextmanager
def serving(folder: Path, *args: str, module: str = "vantage", env: dict[str, str] | None = None) -> Iterator[Server]:
    server = Server(args, folder, module=module, env=env or {})
    try:
        yield server
    finally:
        server.stop()


def tiny(folder: Path) -> Path:
    """A model of a few thousand weights that chats, as a folder."""
    path = folder / "tiny"
    if not path.exists():
        vt.save(chat_model(), path)
    return path


def pulled(name: str) -> str:
    """A model by name, or a skip."""
    if not place(name).is_dir():
        try:
            pull(name)
        except PullError as e:
            pytest.skip(f"{name} is not here and cannot be pulled: {e}")
    return name
