"""Ctrl-C and its like, by how a verb was started: on a terminal, in the background of a script, under nohup."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes import PATIENCE, ROOT, VANTAGE, start, terminal, until
from tests.serve.running import Server, tiny
from vantage.cli.interrupts import stopping
from vantage.training import read_log
from vantage.training.checkpoint import steps

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's account of a process")
BACKGROUND = {signal.SIGINT, signal.SIGQUIT, signal.SIGHUP}  # what nohup and the background of a script ignore together


def ignored(process: subprocess.Popen[str]) -> set[signal.Signals]:
    """What this process ignores, in the kernel's words."""
    words = Path(f"/proc/{process.pid}/status").read_text().partition("SigIgn:")[2].split()[0]
    return {number for number in signal.Signals if int(words, 16) >> (number - 1) & 1}


# ---- on a terminal


@pytest.mark.sampled
def test_train_on_a_terminal_listens_to_what_its_parent_ignored(tmp_path: Path) -> None:
    out = tmp_path / "run"
    command = ["train", "copy", "loop.steps=1000000", "save.every=0", "evaluate.every=1000000", "--out", str(out)]
    with terminal(command, tmp_path, ignoring=BACKGROUND) as t:
        t.until("the run is in")
        until(lambda: (out / "log.jsonl").exists())
        t.type("\x03")
        t.until("stopping after this step")
        t.until("continue with: vantage train")
        assert t.process.wait(PATIENCE) == 130
    assert len(steps(out / "checkpoints")) == 1


@pytest.mark.slow
def test_compare_on_a_terminal_listens_to_what_its_parent_ignored(tmp_path: Path) -> None:
    small = ["--positions", "none", "rope", "--steps", "1000000", "--seeds", "1", "--workers", "1", "--device", "cpu"]
    with terminal(["compare", *small, "--out", str(tmp_path / "out")], tmp_path, ignoring=BACKGROUND) as t:
        t.until(r"runs of [\d,]+ steps")
        t.type("\x03")
        t.until("stopped; continue with: vantage compare --resume")
        assert t.process.wait(PATIENCE) == 130


@pytest.mark.slow
def test_the_studio_on_a_terminal_listens_to_what_its_parent_ignored(tmp_path: Path) -> None:
    command = ["studio", f"tiny={tiny(tmp_path)}", "--no-browser", "--port", "0"]
    with terminal(command, tmp_path, ignoring=BACKGROUND) as t:
        t.until(r"the studio is at http\S+ \(Ctrl-C to stop\)")
        t.type("\x03")
        assert t.process.wait(PATIENCE) == 0


# ---- without one


@pytest.mark.sampled
def test_train_in_the_background_goes_on_until_it_is_asked_to_end(tmp_path: Path) -> None:
    out = tmp_path / "run"
    command = [
        *VANTAGE,
        "train",
        "copy",
        "loop.steps=1000000",
        "save.every=0",
        "evaluate.every=1000000",
        "--out",
        str(out),
    ]
    options = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = start(command, ignoring=BACKGROUND, env={**os.environ, "PYTHONPATH": str(ROOT)}, **options)
    with _ended(process):
        until(lambda: _lines(out) > 2)
        for number in BACKGROUND:
            process.send_signal(number)
        before = _lines(out)
        until(lambda: _lines(out) > before + 3)  # steps that began after them
        process.send_signal(signal.SIGTERM)
        said, error = process.communicate(timeout=PATIENCE)
        assert process.returncode == 130, error
        assert error.count("stopping after this step") == 1
    (at,) = steps(out / "checkpoints")
    assert at == len(read_log(out)[0])
    assert f"saved after {at} steps" in said


@pytest.mark.sampled
@LINUX
def test_a_server_in_the_background_goes_on_until_it_is_asked_to_end(tmp_path: Path) -> None:
    server = Server([f"tiny={tiny(tmp_path)}"], tmp_path, module="vantage", env={}, ignoring=BACKGROUND)
    with _ended(server.process):
        assert ignored(server.process) >= BACKGROUND
        server.process.send_signal(signal.SIGINT)
        with server.http(None) as http:
            assert http.get("/health").json() == {"status": "ok"}
        assert server.stop() == 0
    assert not [line for line in server.log() if line["event"] == "stopped" and line["cut"]]


@LINUX
def test_what_tests_start_listens_however_the_tests_were_started() -> None:
    """A process that ignores SIGINT starts one by ``start``, which does not; the first goes on ignoring it."""
    code = (
        "import signal, sys\n"
        "from tests.processes import start\n"
        "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "child = start([sys.executable, '-c', \"import signal; print(signal.getsignal(signal.SIGINT))\"])\n"
        "assert child.wait() == 0\n"
        "print(signal.getsignal(signal.SIGINT) is signal.SIG_IGN)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    inner, outer = done.stdout.splitlines()
    assert "default_int_handler" in inner
    assert outer == "True"


def test_the_second_signal_does_not_wait() -> None:
    stopped: list[int] = []
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # the tests themselves may ignore it
    try:
        with stopping(lambda: stopped.append(1), signal.SIGINT):
            signal.raise_signal(signal.SIGINT)
            assert stopped == [1]
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


def _lines(out: Path) -> int:
    log = out / "log.jsonl"
    return log.read_bytes().count(b"\n") if log.exists() else 0


@contextlib.contextmanager
def _ended(process: subprocess.Popen[str]) -> Iterator[None]:
    try:
        yield
    finally:
        process.kill()
        process.wait()
