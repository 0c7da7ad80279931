"""``vantage inspect`` and what it can look at: JSON, tables, pictures, and one line for bad input."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.running import exit_code
from tests.generation.folder import chat_folder, chat_model
from vantage.cli.inspect_attention import _cell
from vantage.cli.inspect_cost import parse_scaling
from vantage.cli.main import main
from vantage.errors import BadInput
from vantage.position import scaling

TEXT = "the cat sat on a mat and said: 12 dogs, 3 birds? no! "


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(chat_folder(tmp_path_factory.mktemp("inspect") / "model"))


@pytest.fixture(scope="module")
def book(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("book") / "book.txt"
    path.write_text(TEXT * 30)
    return str(path)


def as_json(capsys: pytest.CaptureFixture[str], *args: str) -> Any:
    assert main(["inspect", *args, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (1440.0, "1,440"),
        (16384.0, "16,384"),
        (0.0459, "0.0459"),
        (999.4, "999"),
        (2.5e7, "2.500e+07"),
        (12345, "12,345"),
    ],
)
def test_numbers_of_a_table_are_read_without_powers_of_ten_below_a_million(value: float, shown: str) -> None:
    assert _cell(value) == shown


def test_attention(folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = as_json(
        capsys, "attention", folder, "--text", "the cat sat", "--layer", "-1", "--head", "0,2", "--steps", "2"
    )
    (one,) = said["attention"]
    assert (one["layer"], one["heads"]) == (1, [0, 2])
    assert len(one["queries"]) == len(said["tokens"])
    assert len(one["weights"][0][0]) == 3
    for name, heads in (("one.png", "1"), ("all.html", "0-3")):
        args = ["attention", folder, "--text", "the cat sat", "--layer", "0", "--head", heads]
        assert main(["inspect", *args, "--out", str(tmp_path / name)]) == 0
        assert (tmp_path / name).stat().st_size > 1000
        shown = capsys.readouterr()
        assert "self attention, layer 0, head 1" in shown.out
        assert "0 'the'" in shown.out
        assert "wrote" in shown.err


@pytest.mark.sampled
@pytest.mark.parametrize("what", [["attention"], ["scores", "--queries", "4999"]])
def test_a_text_beyond_the_context_is_read_when_asked(
    what: list[str], folder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    args = [*what, folder, "--text", "the " * 5000, "--layer", "0"]
    assert main(["inspect", *args]) == 2
    assert "--beyond" in capsys.readouterr().err
    assert main(["inspect", *args, "--beyond"]) == 0


def test_atlas(folder: str, book: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = as_json(capsys, "atlas", folder, "--file", book, "--longest", "20", "--layers", "1")
    assert len(said["heads"]) == 4
    assert said["tokens"] == 40
    out = str(tmp_path / "a.svg")
    assert main(["inspect", "atlas", folder, "--file", book, "--longest", "20", "--all", "--once", "--out", out]) == 0
    shown = capsys.readouterr().out
    assert "8 heads on 20 tokens: " in shown
    assert "self 1.3" in shown
    assert "induction 0.3" in shown  # the thresholds are stated


def test_scores(folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = as_json(capsys, "scores", folder, "--text", "the cat sat", "--layer", "0", "--heads", "1", "--queries", "2")
    assert said["heads"] == [1]
    assert [part["name"] for part in said["parts"]] == ["content", "rotation"]
    assert said["error"] < 1e-5
    far = as_json(capsys, "scores", folder, "--text", "the cat sat", "--layer", "0", "--distances")
    assert far["trained"] == 4096
    out = str(tmp_path / "s.png")
    assert main(["inspect", "scores", folder, "--text", "the cat", "--layer", "0", "--out", out]) == 0
    assert "share of position" in capsys.readouterr().out


def test_cost(folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = as_json(
        capsys, "cost", folder, "--context", "100", "--batch", "2", "--machine", "h200", "--weights", "bfloat16"
    )
    assert said["total"] == sum(p.numel() for p in chat_model().parameters())
    assert said["passes"][0]["seconds"] > 0
    only = as_json(capsys, "cost", f"{folder}/config.json", "--context", "100", "--batch", "2")
    assert only["passes"][0]["operations"] == said["passes"][0]["operations"]
    out = str(tmp_path / "c.html")
    assert main(["inspect", "cost", folder, "--machine", "h100", "--out", out]) == 0
    shown = capsys.readouterr().out
    for part in ("feed-forward", "MQA", "visible", "on h100"):
        assert part in shown


def test_extend(folder: str, book: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = ["extend", folder, "--file", book, "--lengths", "300", "--tries", "1"]
    said = as_json(capsys, *args, "--scaling", "linear:2")
    assert [one["model"] for one in said["results"]] == ["before", "after"]
    assert len(said["results"][0]["over_position"]) == 8
    assert main(["inspect", *args, "--base", "50", "--window", "20", "--out", str(tmp_path / "e.png")]) == 0
    assert "with base 50.0, window 20" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["attention", "--layer", "0"], "--text TEXT or --file FILE"),
        (["attention", "MODEL", "--layer", "5", "--text", "the"], "no layer 5"),
        (["attention", "MODEL", "--layer", "0", "--head", "9", "--text", "the"], "no head 9"),
        (["attention", "MODEL", "--layer", "0", "--head", "x", "--text", "the"], "as in 0,3,5-8"),
        (["attention", "MODEL", "--layer", "0", "--text", "the", "--out", "a.gif"], "ends in .png"),
        (["attention", "MODEL", "--layer", "0", "--text", "the", "--most", "0"], "at least 1"),
        (["attention", "MODEL", "--layer", "0", "--text", "the", "--kind", "cross"], "no 'cross' attention"),
        (["attention", "MODEL", "--layer", "0", "--text", "the " * 5000], "context is 4,096"),
        (["attention", "MODEL", "--layer", "0", "--text", "the", "--queries", "0-99999999999"], "at most 1,048,576"),
        (["attention", "MODEL", "--layer", "0", "--text", "the", "--queries", "9" * 5000], "that large"),
        (["attention", "MODEL", "--layer", "0", "--text", "the", "--out", "FOLDER"], "no picture can be written"),
        (
            ["attention", "MODEL", "--layer", "0", "--text", "the", "--out", "/proc/a.png"],
            "no picture can be written",
        ),
        (["cost", "MODEL", "--out", f"{'a' * 300}.svg"], "no picture can be written"),
        (["scores", "MODEL", "--layer", "0", "--file", "/nowhere/at/all"], "/nowhere/at/all"),
        (["scores", "MODEL", "--layer", "0", "--text", "the", "--distances", "--heads", "99"], "leave out --heads"),
        (["scores", "MODEL", "--layer", "0", "--text", "the", "--distances", "--queries", "8"], "leave out --heads"),
        (["scores", "MODEL", "--layer", "0", "--text", "the", "--distances", "--kind", "cross"], "leave out --heads"),
        (["atlas", "MODEL", "--file", "BOOK", "--longest", "1"], "2 tokens or more"),
        (["cost", "MODEL", "--machine", "cray"], "--machine"),
        (["cost", "MODEL", "--context", "0"], "at least 1"),
        (["cost", "MODEL", "--kind", "heap"], "contiguous"),
        (["cost", "MODEL", "--source", "5"], "no encoder"),
        (["cost", "MODEL", "--machine", "measure", "--weights", "zz"], "--weights"),
        (["cost", "/nowhere/config.json"], "/nowhere/config.json"),
        (["extend", "MODEL", "--file", "BOOK"], "give what changes"),
        (["extend", "MODEL", "--file", "BOOK", "--scaling", "yarn"], "linear:FACTOR"),
        (["extend", "MODEL", "--file", "BOOK", "--scaling", "yarn:2:nan"], "linear:FACTOR"),
        (["extend", "MODEL", "--file", "BOOK", "--scaling", "yarn:2:64.5"], "whole"),
        (["extend", "MODEL", "--file", "BOOK", "--position", "t5"], "init=True"),
        (["extend", "MODEL", "--file", "BOOK", "--base", "9", "--lengths", "100000"], "longer text"),
        (["extend", "MODEL", "--file", "BOOK", "--base", "9", "--tries", "-1"], "at least 0"),
    ],
)
def test_bad_input_is_one_line(
    args: list[str], says: str, folder: str, book: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.png").mkdir()
    given = [{"MODEL": folder, "BOOK": book, "FOLDER": str(tmp_path / "a.png")}.get(arg, arg) for arg in args]
    assert exit_code(["inspect", *given]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.count("\n") == 1
    assert says in shown.err


def test_more_keys_than_a_query_has(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    args = ["--text", "the cat sat", "--steps", "10", "--queries", "0", "--most", "10", "--layer", "0"]
    assert main(["inspect", "attention", folder, *args]) == 0
    assert "0 'the' 1.00" in capsys.readouterr().out


def test_this_machine_is_measured_in_the_dtype_of_the_cost(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = as_json(capsys, "cost", f"{folder}/config.json", "--context", "8", "--machine", "measure")
    assert list(said["machine"]["flops"]) == [said["dtype"]] == ["float32"]
    assert said["passes"][0]["seconds"] > 0


def test_scalings_as_they_are_written() -> None:
    assert parse_scaling("none") is None
    assert parse_scaling("linear:2") == scaling.Linear(2.0)
    assert parse_scaling("ntk:2:64") == scaling.DynamicNTK(2.0, 64)
    assert parse_scaling("yarn:4:2048") == scaling.YaRN(4.0, 2048)
    assert parse_scaling("llama3:8:1:4:8192") == scaling.Llama3(8.0, 1.0, 4.0, 8192)
    for wrong in ("linear", "linear:x", "yarn:2", "wide:3"):
        with pytest.raises(BadInput, match="linear:FACTOR"):
            parse_scaling(wrong)


@pytest.mark.parametrize("what", ["attention", "atlas", "scores", "cost", "extend", "cache"])
def test_help_shows_an_example(what: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["inspect", what, "--help"])
    assert stop.value.code == 0
    assert f"vantage inspect {what} " in capsys.readouterr().out
