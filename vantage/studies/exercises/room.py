"""Where answers run: one process that has torch loaded, and a process of its own forked from it for every answer."""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from vantage.errors import Refused
from vantage.studies.exercises.inside import wire

START = 120.0  # seconds to load torch
OUTPUT = 64 * 1024  # bytes of what the code prints
BACK = 2000  # calls of the grader's functions within one call
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
GONE = "the process that answers are forked from is gone: nothing more can be graded in this room, open another"
PASSED_ON = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")  # where some systems have torch's libraries


class Ended(Exception):
    """The process is gone, or was stopped. ``how``: "time", "silence", or "gone"."""

    def __init__(self, how: str):
        super().__init__(how)
        self.how = how


class Failed(Exception):
    """The student's code raised. ``told`` is what the process says of it."""

    def __init__(self, told: dict[str, str]):
        super().__init__(told["text"])
        self.told = told


class Sitting:
    """One answer's process, talked to over a socket. Only time that is waited for it counts as its own."""

    def __init__(self, talk: socket.socket, output: int, seconds: float):
        self.talk, self.out, self.left = talk, output, seconds
        self.printed, self.dropped = bytearray(), 0
        self.changed: list[str] = []
        self.held: tuple[str, ...] = ()
        self.ended: str | None = None  # how it ended before it was asked everything
        self.status: int | None = None  # how the process ended, known after the sitting
        self.alive = False  # after it was "gone": it had hung up, but was still there
        self.cpu = 0.0  # seconds it has computed
        self._open = [talk, output]  # what there may still be something to read from
        self._got = bytearray()

    def prepare(self, seconds: float) -> None:
        """Wait until the process is bound, which does not count as its own time."""
        try:
            self.held = tuple(str(name) for name in self._wait()["held"])
        except (Ended, OSError, ValueError, KeyError) as error:
            self.drain()
            raise Refused(f"a process for an answer could not be made ({error}): {self.output[-2000:]}") from error
        self.left = seconds

    def read(self, source: str) -> tuple[list[str], list[str]]:
        """Run the file. The names it defines, and those that can be called."""
        with self._honest():
            got = self._ask({"source": source})
            return [str(n) for n in got["names"]], [str(n) for n in got["functions"]]

    def call(self, name: str, *args: Any) -> Any:
        backs = {str(i): arg for i, arg in enumerate(args) if callable(arg)}
        packed = [{"call": str(i)} if callable(arg) else wire.pack(arg) for i, arg in enumerate(args)]
        with self._honest():
            got = self._ask({"call": name, "args": packed}, backs)
            if got["changed"]:
                self.changed.append(name)
            return wire.unpack(got["value"])

    def value(self, name: str) -> Any:
        with self._honest():
            return wire.unpack(self._ask({"value": name})["value"])

    def _ask(self, message: Any, backs: dict[str, Callable[..., Any]] | None = None) -> dict[str, Any]:
        """Send, serve the calls that come back, and return the reply."""
        backs, served = backs or {}, 0
        self._send(message)
        while True:
            got = self._wait()
            if "back" in got:
                served += 1
                if served > BACK:
                    raise Ended("time")
                self._send(_serve(backs, got))
                continue
            if "error" in got:
                raise Failed({key: str(got["error"][key]) for key in ("kind", "type", "text", "where")})
            return got

    def _send(self, message: Any) -> None:
        self.talk.settimeout(max(0.01, self.left))
        began = time.monotonic()
        try:
            self.talk.sendall(wire.frame(message))
        except TimeoutError as error:
            raise Ended("time") from error
        finally:
            self.left -= time.monotonic() - began

    def _wait(self) -> dict[str, Any]:
        """The next message, while what is printed is read along: that too is time of the process."""
        while True:
            if len(self._got) >= 4:
                (length,) = struct.unpack(">I", self._got[:4])
                if length > wire.FRAME:
                    raise Ended("silence")
                if len(self._got) >= 4 + length:
                    raw = bytes(self._got[4 : 4 + length])
                    del self._got[: 4 + length]
                    got = json.loads(raw)
                    if not isinstance(got, dict):
                        raise Ended("silence")
                    return got
            if self.left <= 0:
                raise Ended("time")
            began = time.monotonic()
            ready = select.select(self._open, [], [], self.left)[0]
            if self.out in ready and not self._listen():
                self._open.remove(self.out)  # it has closed its output, which would be ready for ever
            if self.talk in ready:
                part = self.talk.recv(2**20)
                if not part:
                    raise Ended("gone")
                self._got += part
            self.left -= time.monotonic() - began

    def _listen(self) -> bool:
        part = os.read(self.out, 2**16)
        room = OUTPUT - len(self.printed)
        self.printed += part[:room]
        self.dropped += max(0, len(part) - room)
        return bool(part)

    def drain(self) -> None:
        """What was printed last. The process is dead by now; one that still holds the pipe is not waited for."""
        while select.select([self.out], [], [], 0)[0] and self._listen():
            pass

    @property
    def output(self) -> str:
        text = self.printed.decode(errors="replace")
        return text + (f"\n… and {self.dropped:,} bytes more, which were thrown away" if self.dropped else "")

    @contextlib.contextmanager
    def _honest(self) -> Iterator[None]:
        """Whatever is no proper reply ends the sitting: a student's code can write to the socket as well."""
        try:
            yield
        except Ended as error:
            self.ended = error.how
            raise
        except (ValueError, KeyError, TypeError, IndexError, RecursionError, RuntimeError) as error:
            self.ended = "silence"
            raise Ended(self.ended) from error
        except OSError as error:
            self.ended = "gone"
            raise Ended(self.ended) from error


def _serve(backs: dict[str, Callable[..., Any]], got: dict[str, Any]) -> dict[str, Any]:
    function = backs[got["back"]]
    args = [wire.unpack(arg) for arg in got["args"]]
    try:
        return {"value": wire.pack(function(*args))}
    except (ValueError, TypeError, RuntimeError, IndexError) as error:
        return {"raise": f"{type(error).__name__}: {str(error)[:500]}"}


class Room:
    """``with Room() as room``: room for any number of answers, one after the other."""

    def __enter__(self) -> Self:
        if sys.platform == "win32":
            raise Refused("answers are graded in a forked process with limits, which Windows has not: use WSL")
        ours, theirs = socket.socketpair()
        script = Path(wire.__file__).with_name("child.py")
        environment = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
        environment |= {"PATH": os.defpath, "LC_ALL": "C.UTF-8", **dict.fromkeys(THREADS, "1")}
        self._errors = tempfile.TemporaryFile()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-B", "-X", "utf8", str(script), str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=self._errors,
                stderr=self._errors,
                pass_fds=(theirs.fileno(),),
                env=environment,
                cwd="/",
                start_new_session=True,
            )
        self._control = ours
        ours.settimeout(START)
        try:
            if not ours.recv(64):
                raise ConnectionError("it ended")
        except OSError as error:
            self.__exit__(None, None, None)
            raise Refused(f"the process for answers did not start ({error}): {self._said}") from error
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._control.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.seek(0)
        self._said = self._errors.read(4000).decode(errors="replace").strip()
        self._errors.close()

    def _told(self) -> dict[str, Any]:
        raw = self._control.recv(4096)
        if not raw:
            raise Refused(GONE)
        return json.loads(raw)

    @contextlib.contextmanager
    def sit(self, name: str, *, seconds: float, memory: int, without: tuple[str, ...] = ()) -> Iterator[Sitting]:
        """A process for one answer. It is dead, with all it started, when this is left."""
        talk, theirs = socket.socketpair()
        out, into = os.pipe()
        with tempfile.TemporaryDirectory(prefix="vantage-answer-", ignore_cleanup_errors=True) as folder, talk:
            job = {"folder": os.path.realpath(folder), "name": name, "seconds": seconds, "memory": memory}
            sitting = Sitting(talk, out, START)
            try:
                with theirs:
                    words = json.dumps(job | {"without": without}).encode()
                    socket.send_fds(self._control, [words], [theirs.fileno(), into])
                os.close(into)
                into = -1
                try:
                    self._told()  # it has forked
                    sitting.prepare(seconds)
                    yield sitting
                finally:
                    self._control.sendall(b"gone" if sitting.ended == "gone" else b"end")
                    told = self._told()
                    sitting.status, sitting.alive, sitting.cpu = told["status"], told["alive"], told["cpu"]
                    sitting.drain()
            except (BrokenPipeError, ConnectionResetError) as error:
                raise Refused(GONE) from error
            finally:
                for fd in (out, into):
                    if fd >= 0:
                        os.close(fd)
