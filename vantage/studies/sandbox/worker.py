"""The process that runs answers. It loads torch once and forks for every answer.

The forked one runs the functions of the answer on what the grader sends and returns what they return. It judges
nothing: the grader does that on its own side. Started as a script, so that it imports nothing of the library.
"""

from __future__ import annotations

import array
import contextlib
import importlib.abc
import importlib.util
import json
import linecache
import os
import signal
import socket
import sys
import time
import traceback
from pathlib import Path
from typing import Any, NoReturn

MOST_FRAMES = 8  # of a traceback
MOST_CHARACTERS = 2000  # of an error's text
BROKEN, CLOSED_CONNECTION = 70, 71  # exit codes of an answer's process: it failed, it closed the socket itself
GRACE = 1.0  # seconds in which a process that has hung up may turn out to have ended


class LibraryRefused(importlib.abc.MetaPathFinder):
    """Refuses to import the library: an answer is the student's own."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        if fullname.partition(".")[0] == "vantage":
            raise ModuleNotFoundError(f"{fullname} cannot be imported in an answer: write it with torch", name=fullname)


def load(name: str) -> Any:
    """A file beside this one, as a module."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def main() -> None:
    control = socket.socket(fileno=int(sys.argv[1]))
    sys.dont_write_bytecode = True
    root = Path(__file__).parents[3]  # where the library lies; in a checkout that is not where torch lies
    import torch

    torch.set_num_threads(1)
    if Path(torch.__file__).parents[1] != root:
        sys.path[:] = [entry for entry in sys.path if Path(entry) != root]
    messages, restrictions = load("messages"), load("restrictions")
    sys.meta_path.insert(0, LibraryRefused())
    control.send(b'{"ready": true}')
    while True:
        job, fds = _job(control)
        if job is None:
            return
        process = os.fork()
        if process == 0:
            control.close()
            _run_worker(job, fds, messages, restrictions)
        for fd in fds:
            os.close(fd)
        with contextlib.suppress(OSError):  # the fork does the same: whoever comes first
            os.setpgid(process, process)
        control.send(b'{"forked": 1}')
        order = control.recv(64)  # the answer is done; nothing: the grader is gone
        ended = _end_process(process, GRACE if order == b"disconnected" else 0.0)
        if not order:
            return
        control.send(json.dumps(ended).encode())


def _end_process(process: int, grace: float) -> dict[str, Any]:
    """End an answer's process with all it started. Was it still alive, how did it end, how long did it compute?"""
    until = time.monotonic() + grace
    ended_process, status, used = os.wait4(process, os.WNOHANG)
    while not ended_process and time.monotonic() < until:
        time.sleep(0.01)
        ended_process, status, used = os.wait4(process, os.WNOHANG)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process, signal.SIGKILL)
    if not ended_process:
        _, status, used = os.wait4(process, 0)
    cpu = used.ru_utime + used.ru_stime
    return {"status": os.waitstatus_to_exitcode(status), "alive": not ended_process, "cpu": cpu}


def _job(control: socket.socket) -> tuple[Any, list[int]]:
    fds = array.array("i")
    data, extra, _, _ = control.recvmsg(65536, socket.CMSG_LEN(4 * fds.itemsize))
    for level, kind, raw in extra:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(raw[: len(raw) - len(raw) % fds.itemsize])
    return (json.loads(data), list(fds)) if data else (None, [])


def _run_worker(job: dict[str, Any], fds: list[int], messages: Any, restrictions: Any) -> NoReturn:
    """One answer, in a process of its own. It never returns into the loop above."""
    code = BROKEN
    try:
        with contextlib.suppress(OSError):
            os.setpgid(0, 0)
        channel = _set_up_files(job["folder"], fds)
        without = tuple(job["without"])
        in_force = restrictions.install(job["folder"], job["seconds"], job["memory"], without)
        worker = AnswerWorker(channel, messages, restrictions, job["name"])
        worker.send({"restrictions": in_force})
        worker.serve()
    except BaseException as error:
        code = CLOSED_CONNECTION if isinstance(error, OSError) else BROKEN
        with contextlib.suppress(BaseException):
            traceback.print_exception(error)
    os._exit(code)


def _set_up_files(folder: str, fds: list[int]) -> socket.socket:
    """Standard input empty, output to the grader, a folder of its own, and no other file open."""
    channel, output = fds
    empty = os.open(os.devnull, os.O_RDONLY)
    for fd, wanted in ((empty, 0), (output, 1), (output, 2)):
        os.dup2(fd, wanted)
    kept = os.dup2(channel, 3, inheritable=False) if channel != 3 else 3
    os.closerange(4, 4096)
    os.chdir(folder)
    os.environ.update(HOME=folder, TMPDIR=folder)
    return socket.socket(fileno=kept)


class AnswerWorker:
    """Runs what is asked for in the process of one answer, and replies with what came of it."""

    def __init__(self, channel: socket.socket, messages: Any, restrictions: Any, name: str):
        self.channel, self.messages, self.restrictions, self.name = channel, messages, restrictions, name
        self.scope: dict[str, Any] = {"__name__": "answer", "__builtins__": __builtins__}

    def send(self, message: Any) -> None:
        self.channel.sendall(self.messages.frame(message))

    def serve(self) -> None:
        while (request := self.messages.receive(self.channel)) is not None:
            try:
                reply = self.reply(request)
                raw = self.messages.frame(reply)
            except BaseException as error:
                raw = self.messages.frame({"error": self.describe(error)})
            self.channel.sendall(raw)
        os._exit(0)

    def reply(self, request: dict[str, Any]) -> Any:
        if "source" in request:
            return self.run_file(request["source"])
        try:
            if "value" in request:
                return {"value": self.messages.pack(self.scope[request["value"]]), "changed": []}
            args = [self.messages.unpack(arg, self.remote) for arg in request["args"]]
            value = self.scope[request["call"]](*args)
            return {"value": self.messages.pack(value), "changed": self.changed(request["args"], args)}
        finally:
            for stream in (sys.stdout, sys.stderr):
                stream.flush()

    def run_file(self, source: str) -> Any:
        linecache.cache[self.name] = (len(source), None, source.splitlines(keepends=True), self.name)
        exec(compile(source, self.name, "exec"), self.scope)
        sys.stdout.flush()
        names = [name for name in self.scope if not name.startswith("__")]
        return {"names": names[:1000], "functions": [name for name in names if callable(self.scope[name])][:1000]}

    def changed(self, before: list[Any], args: list[Any]) -> list[int]:
        """Which of the arguments are not what they were. Functions of the grader's are left out."""
        return [i for i, (was, arg) in enumerate(zip(before, args, strict=True))
                if not callable(arg) and self.messages.pack(arg) != was]  # fmt: skip

    def remote(self, key: Any) -> Any:
        """A function that runs on the grader's side."""

        def function(*args: Any) -> Any:
            self.send({"callback": key, "args": [self.messages.pack(arg) for arg in args]})
            reply = self.messages.receive(self.channel)
            if reply is None:
                os._exit(0)
            if "raise" in reply:
                raise ValueError(reply["raise"])
            return self.messages.unpack(reply["value"])

        return function

    def describe(self, error: BaseException) -> dict[str, Any]:
        """An error as words: its kind, its message and where in the student's file it came from."""
        lines = []
        for frame in traceback.extract_tb(error.__traceback__):
            if frame.filename == self.name:
                lines.append(f"  line {frame.lineno}, in {frame.name}: {frame.line}"[:300])
        if isinstance(error, SyntaxError) and error.filename == self.name:
            lines.append(f"  line {error.lineno}: {(error.text or '').rstrip()}"[:300])
        if len(lines) > MOST_FRAMES:
            lines = [lines[0], f"  … {len(lines) - MOST_FRAMES} more …", *lines[1 - MOST_FRAMES :]]
        try:
            text = str(error.msg if isinstance(error, SyntaxError) else error)[:MOST_CHARACTERS]
        except BaseException:
            text = "(its message cannot be shown)"
        return {"kind": self.kind(error, text), "type": type(error).__name__, "text": text, "where": "\n".join(lines)}

    def kind(self, error: BaseException, text: str) -> str:
        if isinstance(error, MemoryError) or "can't allocate memory" in text or "not enough memory" in text:
            return "memory"
        table = (
            (self.messages.Unsendable, "value"),
            (self.restrictions.NotPermitted, "refused"),
            (SyntaxError, "syntax"),
            (SystemExit, "exit"),
            (NotImplementedError, "unwritten"),
            (EOFError, "input"),
            (RecursionError, "recursion"),
        )
        return next((name for kind, name in table if isinstance(error, kind)), "error")


if __name__ == "__main__":
    main()
