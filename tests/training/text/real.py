"""Where the real texts lie, for the tests that want them."""

import os
from pathlib import Path

import pytest

FOLDER = Path(os.environ.get("VANTAGE_DATA") or Path(__file__).parents[3] / ".." / "shared" / "data")


def real(name: str) -> Path:
    """A file of real text; the test is skipped where there is none."""
    path = FOLDER / name
    if not path.exists():
        pytest.skip(f"{name} is not there: set VANTAGE_DATA to a folder that holds it")
    return path
