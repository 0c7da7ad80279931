"""A process of a mesh dies while it trains: the others end and say so, and fewer go on from the last checkpoint."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.parallel.test_command_line import SETTINGS, vantage
from tests.processes import ROOT, start
from tests.training.runs import losses
from vantage.training.checkpoint import steps

ARRANGED = ["--tensor-parallel", "2", "--context-parallel", "2"]


def four(settings: Path, folder: Path) -> list[subprocess.Popen[str]]:
    """Without torchrun, which would end the others by itself."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-W", "ignore", "-m", "vantage", "train", str(settings), "--out", str(folder)]
    options: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "cwd": ROOT}
    started = []
    for rank in range(4):
        place = {"RANK": str(rank), "WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        environment = {**os.environ, **place, "OMP_NUM_THREADS": "1"}
        started.append(start([*command, "--device", "cpu", "--steps", "5000", *ARRANGED], env=environment, **options))
    return started


@pytest.mark.slow
def test_two_go_on_from_the_last_checkpoint_of_four_when_one_was_killed(tmp_path: Path) -> None:
    settings, folder = tmp_path / "run.toml", tmp_path / "run"
    settings.write_text(SETTINGS)
    processes = four(settings, folder)
    try:
        until = time.monotonic() + 180
        while not steps(folder / "checkpoints") and time.monotonic() < until:
            time.sleep(0.2)
        assert steps(folder / "checkpoints"), processes[0].communicate(timeout=60)[0][-3000:]
        processes[2].kill()
        processes[2].wait(30)
        begun = time.monotonic()
        reports = [p.communicate(timeout=90)[0] for p in processes if p is not processes[2]]
        assert time.monotonic() - begun < 30
        assert all(p.returncode for p in processes)
        assert any("process 2 of 4 ended without a word" in report for report in reports), reports
    finally:
        for process in processes:
            process.kill()
            if process.stdout is not None and not process.stdout.closed:
                process.communicate()
    last = steps(folder / "checkpoints")[-1]
    more = ["--device", "cpu", "--steps", str(last + 3)]
    refused = vantage(2, "train", str(settings), "--out", str(folder), *more, *ARRANGED, "--resume")
    assert "needs 4 processes, or a multiple of that, and there are 2" in refused.stderr
    done = vantage(2, "train", str(settings), "--out", str(folder), *more, "--context-parallel", "2", "--resume")
    assert done.returncode == 0, done.stderr[-3000:]
    alone = vantage(1, "train", str(settings), "--out", str(tmp_path / "one"), *more)
    assert alone.returncode == 0, alone.stderr[-3000:]
    assert len(losses(folder)) == last + 3
    assert losses(folder) == pytest.approx(losses(tmp_path / "one"), abs=1e-4, rel=1e-4)
