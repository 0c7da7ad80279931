"""A process that prepares itself once, then forks a child for each request.

What is asked and answered goes through a socket of its own for each request, whose other end is handed to the child. So
threads can ask at once, and still only a process of one thread forks (libraries that watch forks refuse two at once).
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from typing import Any, NamedTuple

TEMPORARY = "PYTEST_DEBUG_TEMPROOT"  # where pytest makes folders for tests
HANGS = 900  # seconds on the clock without a word: asleep for ever

Request = dict[str, Any]
Tell = Callable[[str], None]  # a child says which test it begins
Handle = Callable[[Request, Tell], dict[str, Any]]  # in a child: what is asked, and the answer
Serve = Callable[[Handle], None]


class OutOfTime(Exception):
    """The time limit of the whole run has passed."""


class Answer(NamedTuple):
    """What a child answered; nothing if it died. ``last`` is the last thing it told before."""

    content: dict[str, Any] | None
    last: str | None


class ForkServer:
    """``prepare`` runs in a process of its own, and calls the function it is given with what a child is to do."""

    def __init__(self, prepare: Callable[[Serve], None], deadline: float | None = None):
        self._deadline = deadline
        self._control, theirs = socket.socketpair()
        if (child := os.fork()) == 0:
            self._control.close()
            _be_server(prepare, theirs)
        self._process = child
        theirs.close()
        try:
            self._control.settimeout(self._left())
            ready = self._control.recv(1)
        except TimeoutError:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            raise OutOfTime from None
        if not ready:
            os.waitpid(child, 0)
            raise RuntimeError("the process that should run tests died before the first one; its message is above")
        self._control.settimeout(None)

    def __enter__(self) -> ForkServer:
        return self

    def __exit__(self, *_: object) -> None:
        self._control.shutdown(socket.SHUT_RDWR)  # which ends the process, whoever else has inherited this socket
        self._control.close()
        os.waitpid(self._process, 0)

    def ask(self, request: Request, seconds: int) -> Answer:
        """Of a child with so much processor time."""
        self._left()
        ours, theirs = socket.socketpair()
        with ours:
            with theirs:
                socket.send_fds(self._control, [b"?"], [theirs.fileno()])
            ours.sendall(json.dumps(request | {"seconds": seconds}).encode() + b"\n")
            return self._listen(ours)

    def _left(self) -> float:
        """How long a word may be waited for, in seconds."""
        left = HANGS if self._deadline is None else min(HANGS, self._deadline - time.monotonic())
        if left <= 0:
            raise OutOfTime
        return left

    def _listen(self, ours: socket.socket) -> Answer:
        child, last = None, None
        with ours.makefile("rb") as lines:
            try:
                while True:
                    ours.settimeout(self._left())
                    kind, _, rest = lines.readline().decode().rstrip("\n").partition(" ")
                    if kind == "answer":
                        return Answer(json.loads(rest), last)
                    if kind == "child":
                        child = int(rest)
                    elif kind == "tell":
                        last = rest
                    else:
                        return Answer(None, last)  # the end of a child that died
            except (TimeoutError, ConnectionError, OutOfTime):
                if child is not None:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(child, signal.SIGKILL)
        self._left()
        return Answer(None, last)


def _be_server(prepare: Callable[[Serve], None], control: socket.socket) -> None:
    code = 1
    try:
        prepare(lambda handle: _serve(control, handle))
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _serve(control: socket.socket, handle: Handle) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the children
    control.sendall(b"!")
    while True:
        _, sockets, _, _ = socket.recv_fds(control, 1, 1)
        if not sockets:
            return
        if os.fork() == 0:
            control.close()
            _be_child(socket.socket(fileno=sockets[0]), handle)
        os.close(sockets[0])


def _be_child(parent: socket.socket, handle: Handle) -> None:
    """Says nothing but to its parent, and ends by itself."""
    folder = tempfile.mkdtemp(dir=os.environ.get(TEMPORARY))
    os.environ[TEMPORARY] = folder  # of its own: pytest numbers folders, and cannot beside hundreds of others
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        parent.set_inheritable(False)
        parent.sendall(f"child {os.getpid()}\n".encode())
        silence(0, 1, 2)
        with parent.makefile("rb") as lines:
            request = json.loads(lines.readline())
        seconds = request["seconds"]
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
        answer = handle(request, lambda told: parent.sendall(f"tell {told}\n".encode()))
        parent.sendall(f"answer {json.dumps(answer)}\n".encode())
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os._exit(0)


def silence(*streams: int) -> None:
    """Nothing is read from the terminal or printed there."""
    null = os.open(os.devnull, os.O_RDWR)
    for stream in streams:
        os.dup2(null, stream)
