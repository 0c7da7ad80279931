"""Code outside the package: installed beside it, with an entry point, and run in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.processes import ROOT


def install(folder: Path, name: str, module: str) -> None:
    """What an installer leaves in ``folder`` of a package whose ``module`` registers parts or families."""
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[vantage.parts]\n{name} = {module}\n")


def run(where: Path, *command: str, path: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    """Python in the folder ``where``, with what is installed in ``path``."""
    paths = [str(ROOT), *([] if path is None else [str(path)])]
    own = {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    words = [sys.executable, *command]
    return subprocess.run(words, cwd=where, env={**os.environ, **own, **env}, capture_output=True, text=True)


def good(ended: subprocess.CompletedProcess[str]) -> str:
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout
