"""The notebooks, which are kept as text: each is made of cells and runs from the first to the last."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import ROOT
from tests.serve.running import pulled

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.py"))
PATIENCE = 900.0  # seconds; only a hang takes as long


def test_there_is_one_for_each_subject() -> None:
    names = {path.stem for path in NOTEBOOKS}
    assert names == {"attention", "position", "cache", "extrapolation", "inside_smollm2", "interventions"}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_cells_of_words_and_code(path: Path) -> None:
    """Jupytext's percent format: words are comments."""
    text = path.read_text(encoding="utf-8")
    assert text.startswith("# %% [markdown]\n# # ")
    cells = re.split(r"^# %%", text, flags=re.MULTILINE)[1:]
    words = [cell for cell in cells if cell.startswith(" [markdown]")]
    assert len(words) >= 2
    assert len(cells) > len(words)
    for cell in words:
        assert all(line.startswith("#") or not line for line in cell.split("\n")[1:])
    compile(text, path.name, "exec")


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, tmp_path: Path) -> None:
    """In a folder of its own; a warning is an error, pictures are drawn and not shown."""
    text = path.read_text(encoding="utf-8")
    if "smollm2" in text:
        pulled("smollm2")
    shown = ("error", "ignore:FigureCanvasAgg is non-interactive:UserWarning")
    warnings = [word for rule in shown for word in ("-W", rule)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "MPLBACKEND": "Agg", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *warnings, str(path)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
