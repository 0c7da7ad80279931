"""The process that has torch loaded, and from which one is forked for every file."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from vantage.errors import Refused
from vantage.studies.sandbox.process import SandboxProcess

START_SECONDS = 120.0  # to load torch
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
GONE = "the process that answers are forked from is gone: nothing more can be graded in this sandbox, open another"
PASSED_ON = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")  # where some systems have torch's libraries


class CodeSandbox:
    """For any number of files, one after the other."""

    def __enter__(self) -> Self:
        if sys.platform == "win32":
            raise Refused("answers are graded in a forked process with limits, which Windows has not: use WSL")
        our_end, their_end = socket.socketpair()
        script = Path(__file__).with_name("worker.py")
        environment = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
        environment |= {"PATH": os.defpath, "LC_ALL": "C.UTF-8", **dict.fromkeys(THREADS, "1")}
        self._errors = tempfile.TemporaryFile()
        with their_end:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-B", "-X", "utf8", str(script), str(their_end.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=self._errors,
                stderr=self._errors,
                pass_fds=(their_end.fileno(),),
                env=environment,
                cwd="/",
                start_new_session=True,
            )
        self._control = our_end
        our_end.settimeout(START_SECONDS)
        try:
            if not our_end.recv(64):
                raise ConnectionError("it ended")
        except OSError as error:
            self.__exit__(None, None, None)
            raise Refused(f"the process for answers did not start ({error}): {self._errors_text}") from error
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._control.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.seek(0)
        self._errors_text = self._errors.read(4000).decode(errors="replace").strip()
        self._errors.close()

    def _reply(self) -> dict[str, Any]:
        raw = self._control.recv(4096)
        if not raw:
            raise Refused(GONE)
        return json.loads(raw)

    @contextlib.contextmanager
    def process(
        self, name: str, *, seconds: float, memory: int, without: tuple[str, ...] = ()
    ) -> Iterator[SandboxProcess]:
        """A process for one file. It is dead, with all it started, when this is left."""
        channel, their_end = socket.socketpair()
        output_reader, output_writer = os.pipe()
        with tempfile.TemporaryDirectory(prefix="vantage-answer-", ignore_cleanup_errors=True) as folder, channel:
            job = {"folder": os.path.realpath(folder), "name": name, "seconds": seconds, "memory": memory}
            process = SandboxProcess(channel, output_reader, START_SECONDS)
            try:
                with their_end:
                    message = json.dumps(job | {"without": without}).encode()
                    socket.send_fds(self._control, [message], [their_end.fileno(), output_writer])
                os.close(output_writer)
                output_writer = -1
                try:
                    self._reply()  # it has forked
                    process.prepare(seconds)
                    yield process
                finally:
                    self._control.sendall(b"disconnected" if process.ended == "disconnected" else b"end")
                    ended = self._reply()
                    process.status, process.alive, process.cpu_seconds = ended["status"], ended["alive"], ended["cpu"]
                    process.drain()
            except (BrokenPipeError, ConnectionResetError) as error:
                raise Refused(GONE) from error
            finally:
                for fd in (output_reader, output_writer):
                    if fd >= 0:
                        os.close(fd)
