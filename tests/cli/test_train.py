"""``vantage train`` as a user meets it."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path

import pytest
import torch

from vantage.cli.main import main
from vantage.training import read_log, recipes

SETTINGS = """\
[model]
is = "decoder"
width = 16
layers = 1
heads = 2
[data]
is = "task"
task = "copy"
lengths = [1, 5]
test_examples = 4
[loop]
steps = 3
batch = 4
threads = 1
"""


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    Path("mine.toml").write_text(SETTINGS)
    return "mine.toml"


def test_a_run_goes_into_a_folder_of_its_name(settings: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", settings, "loop.steps=4"]) == 0
    shown = capsys.readouterr()
    done, ask = shown.out.splitlines()
    assert done == "done: 4 steps; the model is in runs/mine/model, the log in runs/mine"
    assert ask.startswith("try it: vantage generate runs/mine ")
    assert "parameters; the run is in runs/mine" in shown.err
    assert "step 4: length 5: loss " in shown.err
    assert len(read_log("runs/mine")[0]) == 4
    assert json.loads(Path("runs/mine/settings.json").read_text())["loop"]["steps"] == 4


def test_changes_may_follow_the_options(settings: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", settings, "--out", "here", "loop.steps=2", "--json", "model.position=alibi"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["finished"], said["step"], said["model"]) == (True, 2, "here/model")
    assert said["scores"][0]["set"] == "length 5"


def test_check_trains_nothing(settings: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", settings, "--check", "optimiser=muon"]) == 0
    assert "Muon(" in capsys.readouterr().out
    assert not Path("runs").exists()


def test_list_names_the_recipes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--list"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in recipes())


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["loop.stesp=4"], "mean 'steps'"),
        (["loop.steps"], "KEY=VALUE"),
        (["model.width=15"], "15"),
        (["--resume"], "there is no run to continue in runs/mine"),
        (["--device", "abacus"], "abacus"),
        *([] if torch.cuda.is_available() else [(["--device", "cuda"], "no GPU")]),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    settings: str, args: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", settings, *args]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert len(shown.err.splitlines()) == 1
    assert shown.err.startswith("vantage: ")
    assert says in shown.err
    assert not Path("runs").exists()


def test_settings_must_be_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train"]) == 2
    assert "vantage train --list" in capsys.readouterr().err
    assert main(["train", "copi"]) == 2
    assert "mean 'copy'" in capsys.readouterr().err


def test_a_run_is_not_overwritten(settings: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", settings]) == 0
    capsys.readouterr()
    assert main(["train", settings]) == 2
    assert "already holds a run: continue it (--resume)" in capsys.readouterr().err
    assert main(["train", settings, "--resume", "seed=1"]) == 2
    assert "other settings" in capsys.readouterr().err
    assert main(["train", settings, "--resume", "loop.steps=5"]) == 0
    shown = capsys.readouterr()
    assert "continuing from step 3" in shown.err
    assert [r.step for r in read_log("runs/mine")[0]] == [1, 2, 3, 4, 5]


def test_the_help_names_what_reads_a_model_that_load_does_not(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    said = " ".join(capsys.readouterr().out.split())
    named = re.findall(r"(vantage[\w.]+)\.(load_\w+)", said)
    assert {name for _, name in named} == {"load_recurrent", "load_classifier"}
    assert all(callable(getattr(importlib.import_module(module), name)) for module, name in named)
    assert "--adapter runs/tuned" in said
