"""What only POSIX systems have is not needed to import, build, load, generate, train and study."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.processes import ROOT
from vantage.spec.devices import best_device, generation_device

# Modules and functions that Windows has not. Those of `os` and `signal` are taken away once Python's own library and
# torch are imported, which look at the system they run on.
HIDE = """
import sys
HIDDEN = {"fcntl", "resource", "termios", "pwd", "grp", "pty", "tty", "syslog", "readline", "curses", "crypt", "spwd"}
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in HIDDEN:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
for name in HIDDEN & sys.modules.keys():
    del sys.modules[name]
sys.meta_path.insert(0, Hidden())
import concurrent.futures, multiprocessing, os, signal, subprocess, tempfile, torch, torch.utils.data
import torch.distributed.checkpoint
for name in ("fork", "forkpty", "killpg", "getuid", "geteuid", "getgid", "getpgid", "setsid", "sched_getaffinity",
             "getloadavg", "sysconf", "mkfifo", "chown", "posix_spawn", "wait3", "wait4"):
    if hasattr(os, name):
        delattr(os, name)
for name in ("SIGKILL", "SIGHUP", "SIGQUIT", "SIGXCPU", "SIGALRM", "SIGUSR1", "SIGUSR2", "SIGCHLD"):
    if hasattr(signal, name):
        delattr(signal, name)
"""
# The process in which answers to exercises run is one for POSIX systems, and elsewhere nothing imports its limits;
# the other one is imported by Ray, in its own processes.
IMPORT = """
import importlib, pkgutil, vantage
NOT_ELSEWHERE = ("vantage.studies.sandbox.restrictions", "vantage.serve.ray_router")
for module in pkgutil.walk_packages(vantage.__path__, "vantage."):
    if module.name in NOT_ELSEWHERE or module.name.endswith("__main__"):
        continue
    try:
        importlib.import_module(module.name)
    except ModuleNotFoundError as error:
        if error.name not in ("triton", "cudnn"):  # which only kernels for GPUs need
            raise
"""
WORK = """
import pathlib
import vantage as vt
from vantage.cli.main import main
spec = vt.decoder(vocab=64, width=32, layers=2, heads=4)
model = vt.build(spec, seed=0)
rows = [[i % 64 for i in range(start, start + 16)] for start in range(32)]
vt.train(spec, rows, steps=3, device="cpu", out="run")
vt.save(model, "saved")
loaded = vt.load("saved")
tokens = torch.arange(8)[None]
torch.testing.assert_close(loaded(tokens), model(tokens))
assert len(vt.generate(loaded, [1, 2, 3], max_tokens=4).tokens) == 4
assert main(["study", "run", "A2"]) == 0
assert main(["study", "list"]) == 0
"""


def run(code: str, folder: Path) -> str:
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(folder), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-6000:]
    return done.stdout


@pytest.mark.sampled
def test_every_module_imports_without_them(tmp_path: Path) -> None:
    run(HIDE + IMPORT, tmp_path)


@pytest.mark.sampled
def test_building_loading_generating_training_and_studying_need_none_of_them(tmp_path: Path) -> None:
    run(HIDE + WORK, tmp_path)


@pytest.mark.sampled
def test_what_is_hidden_is_hidden(tmp_path: Path) -> None:
    code = "try:\n    import fcntl\nexcept ImportError:\n    print(hasattr(os, 'fork'))"
    assert run(HIDE + code, tmp_path).strip() == "False"


@pytest.mark.parametrize(("cuda", "mps", "chosen"), [(True, True, "cuda"), (False, True, "mps"), (False, False, "cpu")])
def test_a_gpu_is_taken_where_torch_has_one(cuda: bool, mps: bool, chosen: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)
    monkeypatch.delenv("VANTAGE_DEVICE")
    assert best_device() == chosen
    monkeypatch.setenv("VANTAGE_DEVICE", "meta")
    assert best_device() == generation_device().type == "meta"
    assert generation_device("cpu").type == "cpu"
