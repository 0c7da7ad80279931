"""Weights & Biases, MLflow and datasets themselves, where they are installed; and what is said where they are not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest

import vantage as vt
from tests.training.runs import tiny
from vantage.cli.main import main
from vantage.errors import BadInput
from vantage.training import read_log

HERE, ROOT = Path(__file__).parent, Path(__file__).parents[2]


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_one_that_is_not_installed_is_refused_before_anything_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(BadInput, match=f"{name} is not installed. pip install 'vantage\\[{name}\\]'"):
        vt.train(tiny(), out=tmp_path / "run", track=name)
    assert main(["train", "copy", "--track", name, "--out", str(tmp_path / "run")]) == 2
    assert f"{name} is not installed" in capsys.readouterr().err
    assert main(["train", "copy", "--track", "wnadb", "--out", str(tmp_path / "run")]) == 2
    assert "Did you mean 'wandb'?" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


# ---- the libraries themselves


@pytest.fixture(scope="module")
def python(request: pytest.FixtureRequest) -> Path:
    """The interpreter of an environment that has them and sees ours; made once, and kept where pytest keeps things."""
    cache: Any = request.config.cache
    home = Path(cache.mkdir("libraries"))
    wanted, done = (HERE / "libraries.txt").read_text(), home / "done.txt"
    python = home / "venv" / "bin" / "python"
    if not done.exists() or done.read_text() != wanted:
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(home / "venv")], check=True)
        install = [str(python), "-m", "pip", "install", "--quiet", "-r", str(HERE / "libraries.txt")]
        made = subprocess.run(install, capture_output=True, text=True, check=False)
        if made.returncode:
            pytest.skip(f"the libraries cannot be installed here: {made.stderr[-300:]}")
        [site] = (home / "venv" / "lib").glob("python*/site-packages")
        (site / "ours.pth").write_text(sysconfig.get_path("purelib") + "\n")  # torch need not be there twice
        done.write_text(wanted)
    return python


def run(python: Path, which: str, folder: Path) -> dict[str, Any]:
    env = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "WANDB_SILENT": "true"}
    command = [str(python), "-m", "tests.training.libraries", which, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env, cwd=folder.parent, timeout=600)
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_a_run_is_tracked_as_one_run_however_often_it_goes_on(tmp_path: Path, python: Path, name: str) -> None:
    held = run(python, name, tmp_path / "run")
    steps, scores = read_log(tmp_path / "run")
    assert held["runs"] == 1
    assert held["loss"] == pytest.approx({str(record.step): record.loss for record in steps})
    assert held["eval"] == pytest.approx({str(score.step): score.loss for score in scores})
    assert held["width"] == 16
    assert held.get("status", "FINISHED") == "FINISHED"


@pytest.mark.slow
def test_the_command_line_tracks(tmp_path: Path, python: Path) -> None:
    held = run(python, "cli", tmp_path / "run")
    assert held["code"] == 0
    assert set(held["tracked"]) == {"wandb"}


@pytest.mark.slow
def test_datasets_themselves_are_data(tmp_path: Path, python: Path) -> None:
    held = run(python, "datasets", tmp_path / "run")
    lists, dataset, tensors = held["losses"]
    assert lists == dataset == tensors
    assert held["stream"] == 4
    assert "as in data['train']" in held["refused"]
    assert held["targets"] == [4 + 4]
