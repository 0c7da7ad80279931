"""Environments of their own for clients that want other versions than ours."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


def python_with(request: pytest.FixtureRequest, requirements: Path, name: str) -> Path:
    """The interpreter of an environment that has them; made once, and kept where pytest keeps things."""
    home = Path(request.config.cache.mkdir(name))
    wanted, done = requirements.read_text(), home / "done.txt"
    python = home / "venv" / "bin" / "python"
    if not done.exists() or done.read_text() != wanted:
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(home / "venv")], check=True)
        install = [str(python), "-m", "pip", "install", "--quiet", "-r", str(requirements)]
        made = subprocess.run(install, capture_output=True, text=True, check=False)
        if made.returncode:
            pytest.skip(f"{requirements.name} cannot be installed here: {made.stderr[-300:]}")
        done.write_text(wanted)
    return python
