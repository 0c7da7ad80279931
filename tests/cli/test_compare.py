"""``vantage compare`` as it is typed: a paper's set-up, a text, a loaded model; and what it refuses."""

from __future__ import annotations

import argparse
import csv
import json
import os
import signal
import sys

import pytest

import vantage as vt
from tests.processes import start, until
from vantage.cli import compare
from vantage.cli.main import main
from vantage.compare.entries import all_positions, attentions
from vantage.compare.experiment import experiment_of
from vantage.compare.results import FILE, read_results
from vantage.training.tasks import TASKS
from vantage.training.text import Bytes


@pytest.fixture(scope="module")
def book(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "book.txt"
    path.write_text(" ".join(f"word{i * i % 97}" for i in range(3000)))
    return str(path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model with a context of 320 bytes, saved."""
    model = vt.build(vt.decoder(vocab=256, width=32, layers=1, heads=2, max_length=320), seed=0)
    model.tokenizer = Bytes().build()
    where = tmp_path_factory.mktemp("models") / "tiny"
    vt.save(model, where)
    return str(where)


def test_the_names_are_listed(capsys):
    """As our sources declare them, and they are those that an experiment knows."""
    assert main(["compare", "--list", "--json"]) == 0
    names = json.loads(capsys.readouterr().out)
    assert names["positions"] == list(all_positions())
    assert names["attentions"] == list(attentions())
    assert set(TASKS) < set(names["tasks"])
    assert main(["compare", "--list"]) == 0
    assert "positions: none, sinusoidal, learned, rope," in capsys.readouterr().out


def run_compare(*args: str) -> int | str | None:
    """The exit code, whoever refuses: argparse leaves by itself."""
    try:
        return main(["compare", *args])
    except SystemExit as stop:
        return stop.code


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--published", "alibbi"], "'alibi'"),
        (["--published", "alibi"], "--text"),
        (["--published", "randomized", "--scale", "tinny"], "'tiny'"),
        (["--published", "randomized", "length-generalisaton"], "'length-generalization'"),
        (["--published", "context-extension"], "--extend"),
        (["--published", "randomized", "--text", "BOOK"], "leave --text out"),
        (["--scale", "tiny"], "--published"),
        (["--equal", "params"], "parameters"),
        (["--tasks", "text"], "--text"),
        (["--tasks", "txt"], "'text'"),
        (["--tasks", "multi-needel"], "'multi-needle'"),
        (["--tasks", "passkey", "--train-length", "5"], "shortest is 7"),
        (["--text", "BOOK"], "add the task text"),
        (["--tasks", "text", "--text", "nowhere.txt"], "no file"),
        (["--tasks", "text", "--text", "BOOK", "--vocabulary", "byte"], "bytes"),
        (["--tasks", "text", "--text", "BOOK", "--test-lengths", "90000"], "lengths up to"),
        (["--rates", "3"], "learning rates"),
        (["--score", "token"], "tokens"),
        (["--first-seed", "-1"], "--first-seed: -1: give at least 0"),
        (["--rates", "3"], "between 0 and 1"),
        (["--train-length", "0"], "--train-length: 0: give at least 1"),
        (["--device", "gpu"], "cpu"),
        (["--workers", "0"], "at least 1"),
        (["--times", "2"], "--extend"),
        (["--lora-steps", "5"], "--extend"),
        (["--extend", "MODEL"], "--text"),
        (["--extend", "MODEL", "--text", "BOOK", "--scalings", "yran"], "'yarn'"),
        (["--extend", "MODEL", "--text", "BOOK", "--positions", "rope"], "leave it out"),
        (["--extend", "MODEL", "--text", "BOOK", "--budget", "5m"], "leave it out"),
        (["--extend", "MODEL", "--text", "BOOK", "--times", "0"], "multiples"),
        (["--extend", "MODEL", "--text", "BOOK", "--times", "nan"], "multiples"),
        (["--extend", "MODEL", "--text", "BOOK", "--times", "2", "--factor", "inf"], "by 1 or more"),
        (["--extend", "MODEL", "--text", "BOOK", "--pieces", "90"], "longer text"),
        (["--extend", "smollm", "--text", "BOOK"], "smollm2"),
    ],
)
def test_bad_input_is_refused_before_any_training(flags, said, book, folder, tmp_path, capsys):
    out = tmp_path / "out"
    named = [{"BOOK": book, "MODEL": folder}.get(word, word) for word in flags]
    assert run_compare("--out", str(out), *named) == 2
    assert said in capsys.readouterr().err.strip().splitlines()[-1]
    assert not out.exists()


def test_help_has_an_example_of_each(capsys):
    with pytest.raises(SystemExit):
        main(["compare", "--help"])
    said = capsys.readouterr().out
    for words in ("--published alibi --scale tiny", "--extend smollm2", "--tasks text --text", "--equal parameters"):
        assert words in said


SMALL = ["--steps", "6", "--seeds", "2", "--batch", "4", "--width", "16", "--layers", "1", "--heads", "2"]
SMALL += ["--test-examples", "8", "--rates", "0.001", "--workers", "1"]


@pytest.mark.sampled
def test_resuming_with_other_flags_is_refused(tmp_path, capsys):
    out = tmp_path / "out"
    flags = ["--positions", "none", "rope", "--train-length", "8", "--test-lengths", "8", "16"]
    assert main(["compare", *flags, *SMALL, "--out", str(out)]) == 0
    page = (out / "index.html").read_bytes()
    for more, said in (
        (["--seeds", "7"], "seeds is 2, not 7"),
        (["--tasks", "reverse", "--width", "8"], "tasks is copy sort, not reverse; shape is"),
        (["--published", "randomized"], "published is"),
        (["--positions", "ropee"], "'rope'"),
        (["nofile.toml"], "nofile.toml"),
    ):
        assert main(["compare", "--resume", *more, "--out", str(out)]) == 2
        assert said in capsys.readouterr().err.strip().splitlines()[-1]
    for fine in ([], ["--seeds", "2"], [*flags, *SMALL], ["--train-length", "8"]):
        assert main(["compare", "--resume", *fine, "--out", str(out)]) == 0
    assert (out / "index.html").read_bytes() == page


def test_a_folder_that_is_taken_is_refused_before_anything_is_timed(tmp_path, capsys, monkeypatch):
    (tmp_path / "study.json").write_text("{}")
    monkeypatch.setattr("vantage.compare.run._fit", lambda *args: pytest.fail("it was timed"))
    assert main(["compare", "--out", str(tmp_path)]) == 2
    assert "already holds an experiment" in capsys.readouterr().err


def test_an_experiment_that_is_damaged_is_named(tmp_path, capsys):
    (tmp_path / "study.json").write_text('{"study"')
    assert main(["compare", "--resume", "--out", str(tmp_path)]) == 2
    assert "there is no experiment to continue in" in capsys.readouterr().err


def test_a_folder_that_cannot_be_is_one_line(capsys):
    assert main(["compare", *SMALL, "--positions", "rope", "--out", "/dev/null/here"]) == 2
    assert capsys.readouterr().err.strip().splitlines()[-1] == "vantage: Not a directory: /dev/null/here"


def test_an_interrupt_says_how_to_go_on(tmp_path, capsys, monkeypatch):
    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr("vantage.compare.run.run_experiment", interrupted)
    assert main(["compare", *SMALL, "--out", str(tmp_path / "an experiment")]) == 130
    assert f"vantage compare --resume --out '{tmp_path}/an experiment'" in capsys.readouterr().err


@pytest.mark.sampled
def test_a_papers_set_up_with_its_numbers_beside(book, tmp_path, capsys):
    out = tmp_path / "out"
    flags = ["--published", "alibi", "--text", book, "--train-length", "16", "--positions", "sinusoidal", "alibi"]
    assert main(["compare", *flags, *SMALL, "--test-lengths", "16", "32", "110", "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert "Beside Press, Smith and Lewis, ICLR 2022" in said
    assert "trained at 512, read at 3512 (ours: text, length 110) [T]:" in said
    assert "alibi: published 18.40, ours " in said
    assert "theirs: 247M" in said  # what is reduced, in words
    lines = list(csv.DictReader((out / "verdicts.csv").read_text().splitlines()))
    (one,) = [
        row for row in lines if row["what"].startswith("trained at 512, read at 3512") and row["entry"] == "sinusoidal"
    ]
    assert one["published"] == "178.97"
    assert one["mark"] == "T"
    assert float(one["low"]) < float(one["ours"]) < float(one["high"])
    report = json.loads((out / "report.json").read_text())
    assert set(report["tasks"]) == {"text", "text, sliding", "text, over position"}
    page = (out / "index.html").read_text()
    assert "Beside the published numbers" in page
    assert "this is another size" in page
    again = report["study"]["command"].split()
    assert again[:2] == ["vantage", "compare"]
    parser = argparse.ArgumentParser()
    compare.add(parser.add_subparsers())
    assert compare._experiment(parser.parse_args(again[1:])) == experiment_of(report["study"]["settings"], "report")


@pytest.mark.sampled
def test_extend_killed_and_resumed_gives_the_same_report(book, folder, tmp_path):
    out, plain = tmp_path / "killed", tmp_path / "plain"
    flags = ["--extend", folder, "--text", book, "--times", "1", "2", "--pieces", "2", "--tries", "1", "--needles", "2"]
    flags += ["--scalings", "none", "yarn", "longrope", "--lora-steps", "2", "--lora-length", "32", "--device", "cpu"]
    command = [sys.executable, "-m", "vantage", "compare", *flags, "--out", str(out)]
    with start(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, start_new_session=True) as process:
        until(lambda: read_results(out / FILE))
        os.killpg(process.pid, signal.SIGKILL)
    kept = len(read_results(out / FILE))
    assert 1 <= kept < 3 * 2 * 2 * 4
    assert main(["compare", "--out", str(out), "--resume", "--device", "cpu"]) == 0
    assert main(["compare", *flags, "--out", str(plain)]) == 0
    for name in ("index.html", "scores.csv", "report.json", "verdicts.csv"):
        assert (out / name).read_bytes() == (plain / name).read_bytes()
    said = json.loads((out / "report.json").read_text())["study"]
    assert said["train_length"] == 320
    assert said["command"].startswith(f"vantage compare --extend {folder} --text {book} --times 1 2 --scalings none")
    assert main(["compare", "--out", str(out), "--resume", "--seeds", "3"]) == 2
