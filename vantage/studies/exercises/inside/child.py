"""The process that holds a student's code. It loads torch once and forks for every answer.

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

FRAMES = 8  # of a traceback
MESSAGE = 2000  # characters
BROKEN, HUNG_UP = 70, 71  # exit codes of an answer's process: it failed, it closed the socket itself
GRACE = 1.0  # seconds in which a process that has hung up may turn out to have ended


class NoLibrary(importlib.abc.MetaPathFinder):
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
    here = Path(__file__).parents[4]  # where the library lies; in a checkout that is not where torch lies
    import torch

    torch.set_num_threads(1)
    if Path(torch.__file__).parents[1] != here:
        sys.path[:] = [entry for entry in sys.path if Path(entry) != here]
    wire, guard = load("wire"), load("guard")
    sys.meta_path.insert(0, NoLibrary())
    control.send(b'{"ready": true}')
    while True:
        job, fds = _job(control)
        if job is None:
            return
        process = os.fork()
        if process == 0:
            control.close()
            _sit(job, fds, wire, guard)
        for fd in fds:
            os.close(fd)
        with contextlib.suppress(OSError):  # the fork does the same: whoever comes first
            os.setpgid(process, process)
        control.send(b'{"forked": 1}')
        told = control.recv(64)  # the answer is done, or the grader is gone
        ended = _end(process, GRACE if told == b"gone" else 0.0)
        if not told:
            return
        control.send(json.dumps(ended).encode())


def _end(process: int, grace: float) -> dict[str, Any]:
    """End an answer's process with all it started. Was it still alive, how did it end, how long did it compute?"""
    until = time.monotonic() + grace
    found, status, used = os.wait4(process, os.WNOHANG)
    while not found and time.monotonic() < until:
        time.sleep(0.01)
        found, status, used = os.wait4(process, os.WNOHANG)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process, signal.SIGKILL)
    if not found:
        _, status, used = os.wait4(process, 0)
    cpu = used.ru_utime + used.ru_stime
    return {"status": os.waitstatus_to_exitcode(status), "alive": not found, "cpu": cpu}


def _job(control: socket.socket) -> tuple[Any, list[int]]:
    fds = array.array("i")
    data, extra, _, _ = control.recvmsg(65536, socket.CMSG_LEN(4 * fds.itemsize))
    for level, kind, raw in extra:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(raw[: len(raw) - len(raw) % fds.itemsize])
    return (json.loads(data), list(fds)) if data else (None, [])


def _sit(job: dict[str, Any], fds: list[int], wire: Any, guard: Any) -> NoReturn:
    """One answer, in a process of its own. It never returns into the loop above."""
    code = BROKEN
    try:
        with contextlib.suppress(OSError):
            os.setpgid(0, 0)
        talk = _arrange(job["folder"], fds)
        without = tuple(job["without"])
        held = guard.install(job["folder"], job["seconds"], job["memory"], without)
        desk = Desk(talk, wire, guard, job["name"])
        desk.say({"held": held})
        desk.serve()
    except BaseException as error:
        code = HUNG_UP if isinstance(error, OSError) else BROKEN
        with contextlib.suppress(BaseException):
            traceback.print_exception(error)
    os._exit(code)


def _arrange(folder: str, fds: list[int]) -> socket.socket:
    """Standard input empty, output to the grader, a folder of its own, and no other file open."""
    talk, output = fds
    empty = os.open(os.devnull, os.O_RDONLY)
    for fd, wanted in ((empty, 0), (output, 1), (output, 2)):
        os.dup2(fd, wanted)
    kept = os.dup2(talk, 3, inheritable=False) if talk != 3 else 3
    os.closerange(4, 4096)
    os.chdir(folder)
    os.environ.update(HOME=folder, TMPDIR=folder)
    return socket.socket(fileno=kept)


class Desk:
    """Where the answer works: it runs what is asked and says what came of it."""

    def __init__(self, talk: socket.socket, wire: Any, guard: Any, name: str):
        self.talk, self.wire, self.guard, self.name = talk, wire, guard, name
        self.scope: dict[str, Any] = {"__name__": "answer", "__builtins__": __builtins__}

    def say(self, message: Any) -> None:
        self.talk.sendall(self.wire.frame(message))

    def serve(self) -> None:
        while (asked := self.wire.receive(self.talk)) is not None:
            try:
                reply = self.reply(asked)
                raw = self.wire.frame(reply)
            except BaseException as error:
                raw = self.wire.frame({"error": self.told(error)})
            self.talk.sendall(raw)
        os._exit(0)

    def reply(self, asked: dict[str, Any]) -> Any:
        if "source" in asked:
            return self.read(asked["source"])
        try:
            if "value" in asked:
                return {"value": self.wire.pack(self.scope[asked["value"]]), "changed": []}
            args = [self.wire.unpack(arg, self.remote) for arg in asked["args"]]
            value = self.scope[asked["call"]](*args)
            return {"value": self.wire.pack(value), "changed": self.changed(asked["args"], args)}
        finally:
            for stream in (sys.stdout, sys.stderr):
                stream.flush()

    def read(self, source: str) -> Any:
        linecache.cache[self.name] = (len(source), None, source.splitlines(keepends=True), self.name)
        exec(compile(source, self.name, "exec"), self.scope)
        sys.stdout.flush()
        names = [name for name in self.scope if not name.startswith("__")]
        return {"names": names[:1000], "functions": [name for name in names if callable(self.scope[name])][:1000]}

    def changed(self, before: list[Any], args: list[Any]) -> list[int]:
        """Which of the arguments are not what they were. Functions of the grader's are left out."""
        return [i for i, (was, arg) in enumerate(zip(before, args, strict=True))
                if not callable(arg) and self.wire.pack(arg) != was]  # fmt: skip

    def remote(self, key: Any) -> Any:
        """A function that runs on the grader's side."""

        def function(*args: Any) -> Any:
            self.say({"back": key, "args": [self.wire.pack(arg) for arg in args]})
            got = self.wire.receive(self.talk)
            if got is None:
                os._exit(0)
            if "raise" in got:
                raise ValueError(got["raise"])
            return self.wire.unpack(got["value"])

        return function

    def told(self, error: BaseException) -> dict[str, Any]:
        """An error as words: its kind, its message and where in the student's file it came from."""
        lines = []
        for frame in traceback.extract_tb(error.__traceback__):
            if frame.filename == self.name:
                lines.append(f"  line {frame.lineno}, in {frame.name}: {frame.line}"[:300])
        if isinstance(error, SyntaxError) and error.filename == self.name:
            lines.append(f"  line {error.lineno}: {(error.text or '').rstrip()}"[:300])
        if len(lines) > FRAMES:
            lines = [lines[0], f"  … {len(lines) - FRAMES} more …", *lines[1 - FRAMES :]]
        try:
            text = str(error.msg if isinstance(error, SyntaxError) else error)[:MESSAGE]
        except BaseException:
            text = "(its message cannot be shown)"
        return {"kind": self.kind(error, text), "type": type(error).__name__, "text": text, "where": "\n".join(lines)}

    def kind(self, error: BaseException, text: str) -> str:
        if isinstance(error, MemoryError) or "can't allocate memory" in text or "not enough memory" in text:
            return "memory"
        table = (
            (self.wire.Unsendable, "value"),
            (self.guard.NotHere, "refused"),
            (SyntaxError, "syntax"),
            (SystemExit, "exit"),
            (NotImplementedError, "unwritten"),
            (EOFError, "input"),
            (RecursionError, "recursion"),
        )
        return next((name for kind, name in table if isinstance(error, kind)), "error")


if __name__ == "__main__":
    main()
