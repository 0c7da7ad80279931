"""Several processes on one GPU: with the service if it works, without it if not."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
import torch

from vantage.compare.gpu_sharing import CONTROL, PIPES, GpuSharing

needs_service = pytest.mark.skipif(
    not torch.cuda.is_available() or shutil.which(CONTROL) is None, reason="needs a GPU and its driver's programs"
)


@needs_service
def test_a_service_from_beginning_to_end():
    with GpuSharing() as sharing:
        pipes = Path(sharing.environment[PIPES])
        assert (pipes / "control").exists()
    assert not sharing.environment
    assert not pipes.exists()


def test_a_service_that_does_not_start_is_done_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    program = tmp_path / CONTROL
    program.write_text("#!/bin/sh\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.delenv(PIPES, raising=False)
    with pytest.warns(UserWarning, match="take turns on the GPU"), GpuSharing() as sharing:
        assert sharing.environment == {}
    assert list(tmp_path.glob("vantage-mps-*")) == []


def test_one_that_runs_already_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    program = tmp_path / CONTROL
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/called\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv(PIPES, str(tmp_path))
    with GpuSharing() as sharing:
        assert sharing.environment == {}
    assert not (tmp_path / "called").exists()
