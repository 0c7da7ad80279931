"""Importing torch takes seconds: until then every command has drawn a spinner or printed a line."""

from __future__ import annotations

import io
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from vantage.cli.models import busy

# Runs every command up to its import of torch, and says what its user sees then.
SCRIPT = """
import contextlib, io, json, sys
from importlib.abc import MetaPathFinder

from vantage.cli import models

labels = []

@contextlib.contextmanager
def busy(label):
    labels.append(label)
    yield
    labels.pop()

models.busy = busy

class Terminal(io.StringIO):
    def isatty(self):
        return True

class TorchWanted(BaseException):
    pass

class Stop(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            raise TorchWanted

sys.meta_path.insert(0, Stop())
from vantage.cli.main import main

results = []
for args in json.load(sys.stdin):
    labels.clear()
    errors, seen = Terminal(), None
    with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(errors):
        try:
            main(args)
        except SystemExit:
            pass
        except TorchWanted:
            seen = " ".join(labels) + errors.getvalue()
    results.append([seen, errors.getvalue()])
print(json.dumps(results))
"""

COMMANDS = (
    "check",
    "check --kernels sdpa",
    "compare",
    "compare --extend tiny --text book.txt",
    "convert tiny out",
    "convert tiny out.gguf --type Q4_K_M",
    "chat tiny",
    "generate tiny hello",
    "inspect attention tiny --text hello --layer 0",
    "inspect ablate tiny --text hello --target x",
    "inspect atlas tiny --text hello",
    "inspect attribute tiny --text hello --target x",
    "inspect cache --model tiny --prompt hello",
    "inspect cost tiny",
    "inspect extend tiny --file book.txt --scaling linear:2",
    "inspect kernels tiny",
    "inspect lens tiny --text hello",
    "inspect patch tiny --text hello --corrupted there --target x",
    "inspect scores tiny --text hello --layer 0",
    "serve tiny",
    "studio tiny",
    "study all",
    "study run A2",
    "train copy",
)


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str | None, str]]:
    folder = tmp_path_factory.mktemp("work")
    (folder / "book.txt").write_text("some text")
    (folder / "tiny").mkdir()
    (folder / "tiny" / "config.json").write_text("{}")
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        input=json.dumps([shlex.split(command) for command in COMMANDS]),
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert done.returncode == 0, done.stderr
    return dict(zip(COMMANDS, map(tuple, json.loads(done.stdout)), strict=True))


@pytest.mark.parametrize("command", COMMANDS)
def test_the_wait_is_not_silent(command: str, seen: dict[str, tuple[str | None, str]]) -> None:
    shown, printed = seen[command]
    assert shown is not None, f"it never came to torch:\n{printed}"
    assert shown, "nothing was drawn or printed before torch was imported"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("rank", "draws"), [(None, True), ("0", True), ("1", False)])
def test_of_several_processes_the_first_on_a_machine_draws(
    rank: str | None, draws: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    if rank is not None:
        monkeypatch.setenv("LOCAL_RANK", rank)
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with busy("starting"):
        pass
    assert ("starting" in terminal.getvalue()) == draws
