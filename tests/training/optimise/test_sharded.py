"""FSDP2: optimisers, clipping and averages on sharded parameters, in two real processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import PATIENCE


@pytest.mark.sampled
def test_two_processes_do_what_one_does(tmp_path):
    root = Path(__file__).parents[3]
    env = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.training.optimise.sharded"]
    running = [
        subprocess.Popen(
            [*command, str(rank), str(tmp_path / "store")], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        for rank in range(2)
    ]
    try:
        said = [process.communicate(timeout=PATIENCE)[0].decode() for process in running]
    finally:
        for process in running:
            process.kill()
            process.wait()
    assert [process.returncode for process in running] == [0, 0], "\n".join(said)
