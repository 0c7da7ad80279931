"""``vantage study``: what it prints, writes and answers, and one clear line for what it does not take."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_cli import Terminal
from tests.studies.synthetic import breaks, refuses, study
from vantage.cli.main import main
from vantage.studies import registry
from vantage.studies.exercises import exercises


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five studies: one runs, one refuses, one breaks, one trains, one more runs."""
    every = [
        study("A90"),
        study("A91", run=refuses),
        study("A92", run=breaks),
        study("A93", trains=True, seconds=600.0),
        study("K90"),
    ]
    monkeypatch.setattr(registry, "studies", lambda: {one.tag: one for one in every})
    monkeypatch.setattr(registry, "find", lambda tag: next(one for one in every if one.tag == tag))
    monkeypatch.setattr(registry, "check_tag", str)


def refused(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    """The one line that it says."""
    try:
        code = main(["study", *args])
    except SystemExit as stop:
        code = stop.code
    shown = capsys.readouterr()
    assert code == 2
    assert shown.out == ""
    assert len(shown.err.splitlines()) == 1
    assert shown.err.startswith("vantage: ")
    return shown.err


def as_json(capsys: pytest.CaptureFixture[str], *args: str, code: int = 0) -> Any:
    assert main(["study", *args, "--json"]) == code
    return json.loads(capsys.readouterr().out)


def test_the_list(capsys) -> None:
    assert main(["study", "list"]) == 0
    shown = capsys.readouterr().out
    assert [line.split()[0] for line in shown.splitlines() if line and line[0] in "APTKI"] == list(registry.tags())
    assert "\nS4   Attention exploration" in shown  # what the sources are
    assert "\nS13  H2O" in shown
    assert "trains" in shown
    assert "needs smollm2" in shown
    told = as_json(capsys, "list")
    assert [one["tag"] for one in told] == list(registry.tags())
    assert {"tag", "title", "statement", "parameters", "trains", "needs", "seconds"} <= told[0].keys()


def test_one_is_run_and_shown(capsys) -> None:
    assert main(["study", "run", "k3"]) == 0
    shown = capsys.readouterr().out
    for part in ("K3 Three tokens", "Claim", "Result", "k2, number 2", "10", "agrees", "first = 5"):
        assert part in shown


def test_parameters_are_set_and_tags_may_follow_options(capsys) -> None:
    told = as_json(capsys, "run", "K3", "--set", "first=0.1", "--set", "second=0.2")
    (one,) = told["studies"]
    assert one["values"] == {"first": 0.1, "second": 0.2}
    assert told["command"] == "vantage study run K3 --set first=0.1 --set second=0.2"
    told = as_json(capsys, "run", "K3", "--set", "T4.tokens=3", "t4")
    assert [(one["tag"], one["values"].get("tokens")) for one in told["studies"]] == [("K3", None), ("T4", 3)]


def test_figures_and_a_report_are_written(tmp_path: Path, capsys) -> None:
    args = ["run", "T4", "--figures", str(tmp_path / "f"), "--report", str(tmp_path / "r")]
    assert main(["study", *args]) == 0
    names = {path.name for path in (tmp_path / "f").iterdir()}
    assert names == {f"T4-{name}.{kind}" for name in ("weights", "difference") for kind in ("png", "svg", "csv")}
    assert "query \\ key" in (tmp_path / "f" / "T4-weights.csv").read_text()
    assert 'id="T4"' in (tmp_path / "r" / "index.html").read_text()
    assert "the report is" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["run", "A77"], "no study 'A77'"),
        (["run"], "TAG"),
        (["run", "K3", "--set", "first=11"], "between"),
        (["run", "K3", "--set", "nonsense=1"], "nonsense"),
        (["run", "K3", "--set", "first"], "NAME=VALUE"),
        (["run", "K3", "T4", "--set", "tokens=3"], "K3.tokens=3"),
        (["run", "K3", "--set", "T4.tokens=3"], "T4 is not among"),
        (["run", "K3", "--report", "/dev/null/there"], "no report can be written"),
        (["exercise", "A77"], "no exercise is called 'A77'"),
        (["exercise", "--answer"], "name an exercise"),
        (["grade", "/nowhere/a2.py"], "is not a file"),
        (["grade", "pyproject.toml", "--seconds", "0"], "above 0"),
        (["nonsense"], "nonsense"),
        ([], "WHAT"),
    ],
)
def test_bad_input_is_one_clear_line(capsys, args: list[str], says: str) -> None:
    assert says in refused(capsys, *args)


def test_a_model_that_was_not_pulled_is_said(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setenv("VANTAGE_HOME", str(tmp_path))
    assert "vantage pull smollm2" in refused(capsys, "run", "K6")


@pytest.mark.usefixtures("made_up")
def test_all_goes_on_when_one_cannot_run(tmp_path: Path, capsys) -> None:
    assert main(["study", "all", "--report", str(tmp_path)]) == 1
    shown = capsys.readouterr()
    assert "2 studies in" in shown.out
    assert "2 could not run" in shown.out
    assert "this cannot run here: do something about it" in shown.out
    assert "left out, since they train models: A93" in shown.out
    assert "A90  Made <up>: agrees" in shown.err
    assert "A92 broke: ZeroDivisionError: a fault" in shown.err
    page = (tmp_path / "index.html").read_text()
    assert all(f'id="{tag}"' in page for tag in ("A90", "A91", "A92", "K90"))
    assert 'id="A93"' not in page


@pytest.mark.usefixtures("made_up")
def test_all_as_json_and_with_those_that_train(capsys) -> None:
    told = as_json(capsys, "all", "--train", code=1)
    assert [one["tag"] for one in told["studies"]] == ["A90", "A93", "K90"]
    assert [one["tag"] for one in told["failed"]] == ["A91", "A92"]
    assert told["command"] == "vantage study all --train"


def test_all_is_well_when_all_run(monkeypatch, capsys) -> None:
    monkeypatch.setattr(registry, "studies", lambda: {"A90": study("A90")})
    assert main(["study", "all"]) == 0
    assert "1 agree, 0 errata" in capsys.readouterr().out


def test_one_that_breaks_by_its_tag_is_a_fault_of_ours(monkeypatch) -> None:
    """No line for the user would help: the trace shows where."""
    monkeypatch.setattr(registry, "find", lambda tag: study("A92", run=breaks))
    monkeypatch.setattr(registry, "check_tag", str)
    monkeypatch.setattr(registry, "check_values", lambda tag, values: None)
    with pytest.raises(ZeroDivisionError):
        main(["study", "run", "A92"])


# ---- exercises


def test_exercises_are_listed_and_handed_out(tmp_path: Path, capsys) -> None:
    assert main(["study", "exercise"]) == 0
    listed = capsys.readouterr().out
    assert [line.split()[0] for line in listed.splitlines()] == list(exercises())
    assert [one["tag"] for one in as_json(capsys, "exercise")] == list(exercises())
    assert main(["study", "exercise", "k3"]) == 0
    shown = capsys.readouterr()
    assert shown.out.strip() == exercises()["K3"].starter.strip()
    assert exercises()["K3"].task.strip() in shown.err
    assert main(["study", "exercise", "K3", "--answer"]) == 0
    assert capsys.readouterr().out.strip() == exercises()["K3"].answer.strip()
    told = as_json(capsys, "exercise", "K3")
    assert told["starter"] == exercises()["K3"].starter
    assert "answer" not in told
    assert as_json(capsys, "exercise", "K3", "--answer")["answer"] == exercises()["K3"].answer


def test_work_is_never_written_over(tmp_path: Path, capsys) -> None:
    mine = tmp_path / "k3.py"
    assert main(["study", "exercise", "K3", "--out", str(mine)]) == 0
    assert f"vantage study grade {mine}" in capsys.readouterr().out
    mine.write_text("my work")
    assert "already exists" in refused(capsys, "exercise", "K3", "--out", str(mine))
    assert mine.read_text() == "my work"
    assert "cannot be written" in refused(capsys, "exercise", "K3", "--out", str(tmp_path / "no" / "k3.py"))


@pytest.mark.sampled
def test_an_answer_is_graded(tmp_path: Path, capsys) -> None:
    for name, code in (("right", exercises()["K3"].answer), ("blank", exercises()["K3"].starter)):
        (tmp_path / f"{name}.py").write_text(code)
    assert main(["study", "grade", str(tmp_path / "right.py")]) == 0
    assert "passed: " in capsys.readouterr().out
    told = as_json(capsys, "grade", str(tmp_path / "blank.py"), "--seconds", "30", code=1)
    assert told["passed"] is False
    assert any(not check["passed"] and check["words"] for check in told["checks"])


# ---- a terminal


@pytest.mark.usefixtures("made_up")
def test_a_bar_goes_over_all_studies_and_failures_stay_on_the_screen(monkeypatch, capsys) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setattr("vantage.cli.study_show.BAR_DELAY_S", 0.0)
    monkeypatch.setenv("TERM", "xterm")
    assert main(["study", "all"]) == 1
    assert "K90: half of it" in terminal.drawn
    assert "A91  Made <up>: could not run: this cannot run here" in terminal.drawn
    assert "A90  Made <up>: agrees" not in terminal.drawn  # the table will say so
    assert "2 studies in" in capsys.readouterr().out
