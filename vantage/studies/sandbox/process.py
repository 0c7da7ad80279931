"""One process of the sandbox, as seen from outside: its code is run, called and watched over a socket."""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import struct
import time
from collections.abc import Callable, Iterator
from typing import Any

from vantage.errors import Refused
from vantage.studies.sandbox import messages

MOST_OUTPUT = 64 * 1024  # bytes of what the code prints
MOST_CALLBACKS = 2000  # calls of the grader's functions within one call


class ProcessEnded(Exception):
    """The process is gone, or was stopped. ``reason``: "timeout", "protocol", or "disconnected"."""

    def __init__(self, reason: str):
        super().__init__(reason)
        self.reason = reason


class CodeFailed(Exception):
    """The code raised. ``details``: its kind, type, text, and where in the file."""

    def __init__(self, details: dict[str, str]):
        super().__init__(details["text"])
        self.details = details


class SandboxProcess:
    """One file's process. Only time that is waited for it counts as its own."""

    def __init__(self, channel: socket.socket, output: int, seconds: float):
        self.channel, self.output_fd, self.seconds_left = channel, output, seconds
        self.printed, self.dropped_bytes = bytearray(), 0
        self.changed: list[str] = []
        self.restrictions: tuple[str, ...] = ()
        self.ended: str | None = None  # why it ended before it was asked everything
        self.status: int | None = None  # its exit code, known after it is over
        self.alive = False  # after it was "disconnected": it had closed the connection, but was still there
        self.cpu_seconds = 0.0  # seconds it has computed
        self._readable = [channel, output]  # what there may still be something to read from
        self._received = bytearray()

    def prepare(self, seconds: float) -> None:
        """Wait until its restrictions are in force, which does not count as its own time."""
        try:
            self.restrictions = tuple(str(name) for name in self._wait()["restrictions"])
        except (ProcessEnded, OSError, ValueError, KeyError) as error:
            self.drain()
            raise Refused(f"a process for an answer could not be made ({error}): {self.output[-2000:]}") from error
        self.seconds_left = seconds

    def run_file(self, source: str) -> tuple[list[str], list[str]]:
        """Run the file. The names it defines, and those that can be called."""
        with self._proper_replies():
            reply = self._ask({"source": source})
            return [str(n) for n in reply["names"]], [str(n) for n in reply["functions"]]

    def call(self, name: str, *args: Any) -> Any:
        """What a function of the file returns. A callable among the arguments runs on this side."""
        callbacks = {str(i): arg for i, arg in enumerate(args) if callable(arg)}
        packed = [{"call": str(i)} if callable(arg) else messages.pack(arg) for i, arg in enumerate(args)]
        with self._proper_replies():
            reply = self._ask({"call": name, "args": packed}, callbacks)
            if reply["changed"]:
                self.changed.append(name)
            return messages.unpack(reply["value"])

    def value(self, name: str) -> Any:
        """What stands under a name of the file."""
        with self._proper_replies():
            return messages.unpack(self._ask({"value": name})["value"])

    def _ask(self, message: Any, callbacks: dict[str, Callable[..., Any]] | None = None) -> dict[str, Any]:
        """Send, serve the calls that come back, and return the reply."""
        callbacks, callback_count = callbacks or {}, 0
        self._send(message)
        while True:
            reply = self._wait()
            if "callback" in reply:
                callback_count += 1
                if callback_count > MOST_CALLBACKS:
                    raise ProcessEnded("timeout")
                self._send(_serve(callbacks, reply))
                continue
            if "error" in reply:
                raise CodeFailed({key: str(reply["error"][key]) for key in ("kind", "type", "text", "where")})
            return reply

    def _send(self, message: Any) -> None:
        self.channel.settimeout(max(0.01, self.seconds_left))
        began = time.monotonic()
        try:
            self.channel.sendall(messages.frame(message))
        except TimeoutError as error:
            raise ProcessEnded("timeout") from error
        finally:
            self.seconds_left -= time.monotonic() - began

    def _wait(self) -> dict[str, Any]:
        """The next message, while what is printed is read along: that too is time of the process."""
        while True:
            if len(self._received) >= 4:
                (length,) = struct.unpack(">I", self._received[:4])
                if length > messages.MOST_FRAME_BYTES:
                    raise ProcessEnded("protocol")
                if len(self._received) >= 4 + length:
                    raw = bytes(self._received[4 : 4 + length])
                    del self._received[: 4 + length]
                    reply = json.loads(raw)
                    if not isinstance(reply, dict):
                        raise ProcessEnded("protocol")
                    return reply
            if self.seconds_left <= 0:
                raise ProcessEnded("timeout")
            began = time.monotonic()
            ready = select.select(self._readable, [], [], self.seconds_left)[0]
            if self.output_fd in ready and not self._read_output():
                self._readable.remove(self.output_fd)  # it has closed its output, which would be ready for ever
            if self.channel in ready:
                part = self.channel.recv(2**20)
                if not part:
                    raise ProcessEnded("disconnected")
                self._received += part
            self.seconds_left -= time.monotonic() - began

    def _read_output(self) -> bool:
        part = os.read(self.output_fd, 2**16)
        left = MOST_OUTPUT - len(self.printed)
        self.printed += part[:left]
        self.dropped_bytes += max(0, len(part) - left)
        return bool(part)

    def drain(self) -> None:
        """What was printed last. The process is dead by now; one that still holds the pipe is not waited for."""
        while select.select([self.output_fd], [], [], 0)[0] and self._read_output():
            pass

    @property
    def output(self) -> str:
        text = self.printed.decode(errors="replace")
        return text + (
            f"\n… and {self.dropped_bytes:,} bytes more, which were thrown away" if self.dropped_bytes else ""
        )

    @contextlib.contextmanager
    def _proper_replies(self) -> Iterator[None]:
        """Whatever is no proper reply ends it: the code inside can write to the socket as well."""
        try:
            yield
        except ProcessEnded as error:
            self.ended = error.reason
            raise
        except (ValueError, KeyError, TypeError, IndexError, RecursionError, RuntimeError) as error:
            self.ended = "protocol"
            raise ProcessEnded(self.ended) from error
        except OSError as error:
            self.ended = "disconnected"
            raise ProcessEnded(self.ended) from error


def _serve(callbacks: dict[str, Callable[..., Any]], reply: dict[str, Any]) -> dict[str, Any]:
    function = callbacks[reply["callback"]]
    args = [messages.unpack(arg) for arg in reply["args"]]
    try:
        return {"value": messages.pack(function(*args))}
    except (ValueError, TypeError, RuntimeError, IndexError) as error:
        return {"raise": f"{type(error).__name__}: {str(error)[:500]}"}
