"""Several processes on one GPU at the same time, by NVIDIA's Multi-Process Service.

Without it a GPU goes from process to process in slices of time, and small kernels of one leave it idle. With it the
kernels of all run side by side: eight processes that train small models are more than twice as fast on an H200. The
service is a program that comes with the driver. Where it is not there, or does not work, experiments only take longer.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from typing import Self, final

CONTROL = "nvidia-cuda-mps-control"
PIPES, LOGS = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
PATIENCE_S = 60
PROBE = "import torch; torch.zeros(1, device='cuda').add_(1).item()"


@final
class GpuSharing:
    """A service of our own, from the beginning to the end of an experiment. ``environment`` is what its clients
    need."""

    def __init__(self) -> None:
        self.environment: Mapping[str, str] = {}

    def __enter__(self) -> Self:
        if shutil.which(CONTROL) is None or PIPES in os.environ:  # somebody has one running already
            return self
        folder = tempfile.mkdtemp(prefix="vantage-mps-")
        self.environment = {PIPES: folder, LOGS: folder}
        if not (self._run(CONTROL, "-d") and self._run(sys.executable, "-c", PROBE)):
            self._leave()
            warnings.warn(f"{CONTROL} fails here; processes take turns on the GPU, which is slower", stacklevel=2)
        return self

    def __exit__(self, *why: object) -> None:
        self._leave()

    def _leave(self) -> None:
        stop(self.environment)
        self.environment = {}

    def _run(self, *command: str) -> bool:
        return _run(command, self.environment)


def stop(environment: Mapping[str, str]) -> None:
    """End the service that has these clients, if there is one."""
    if environment:
        _run((CONTROL,), environment, "quit\n")
        shutil.rmtree(environment[PIPES], ignore_errors=True)


def _run(command: Sequence[str], environment: Mapping[str, str], stdin: str = "") -> bool:
    """Whether it went well. What it prints is of no interest."""
    env = {**os.environ, **environment}
    try:
        finished = subprocess.run(
            command, env=env, input=stdin, text=True, capture_output=True, timeout=PATIENCE_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return finished.returncode == 0
