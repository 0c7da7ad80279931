"""``vantage inspect lens | attribute | ablate | patch``: JSON, tables, pictures, and one line for bad input."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.running import exit_code
from tests.generation.folder import chat_folder
from vantage.cli.main import main
from vantage.families import load
from vantage.interventions import ablate, attribute, logit_lens, patch, patch_path

CLEAN = "the cat sat on a mat"
TARGET = ["--target", " sat", "--against", " on"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(chat_folder(tmp_path_factory.mktemp("interventions") / "model"))


@pytest.fixture(scope="module")
def book(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("book") / "book.txt"
    path.write_text("the cat sat on a mat and said: 12 dogs, 3 birds? no! " * 60)
    return str(path)


def as_json(capsys: pytest.CaptureFixture[str], *args: str) -> Any:
    assert main(["inspect", *args, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def corrupted(of: Any) -> str:
    """A text of as many tokens as the clean one."""
    words = [word for word in ("said", "on", "no", "mat", "and") if _length(of, word) == _length(of, "cat")]
    return CLEAN.replace("cat", words[0])


def _length(of: Any, word: str) -> int:
    return len(of.tokenizer.encode(CLEAN.replace("cat", word)))


def test_lens(folder: str, book: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lens = logit_lens(load(folder), CLEAN, target=" sat")
    assert as_json(capsys, "lens", folder, "--text", CLEAN, "--target", " sat") == lens.to_dict()
    assert main(["inspect", "lens", folder, "--text", CLEAN, "--target", " sat", "--out", str(tmp_path / "a.png")]) == 0
    shown = capsys.readouterr()
    assert "after" in shown.out
    assert "rank" in shown.out
    assert (tmp_path / "a.png").stat().st_size > 1000
    fitted = str(tmp_path / "lens.safetensors")
    first = as_json(capsys, "lens", folder, "--text", CLEAN, "--fit", book, "--tuned", fitted)
    assert first["tuned"]
    assert as_json(capsys, "lens", folder, "--text", CLEAN, "--tuned", fitted) == first


def test_attribute(folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = as_json(capsys, "attribute", folder, "--text", CLEAN, *TARGET, "--groups", "2")
    assert said == attribute(load(folder), CLEAN, target=" sat", against=" on", groups=2).to_dict()
    assert said["error"] < 1e-3
    assert main(["inspect", "attribute", folder, "--text", CLEAN, "--out", str(tmp_path / "a.html")]) == 0
    assert "less the mean of all" in capsys.readouterr().out


def test_ablate(folder: str, book: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = as_json(capsys, "ablate", folder, "--text", CLEAN, *TARGET, "--how", "mean", "--reference", book)
    reference = [Path(book).read_text()]
    ours = ablate(load(folder), CLEAN, target=" sat", against=" on", how="mean", reference=reference)
    assert said == ours.to_dict()
    args = ["ablate", folder, "--text", CLEAN, "--activation", "feed_forward", "--layers", "1", "--positions", "0-2"]
    assert main(["inspect", *args, "--out", str(tmp_path / "a.svg")]) == 0
    shown = capsys.readouterr()
    assert "zero ablation of feed_forward by positions" in shown.out
    assert shown.out.count("\n") == 5  # a title, a header and three positions


def test_patch(folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    of = load(folder)
    other = corrupted(of)
    args = ["patch", folder, "--text", CLEAN, "--corrupted", other, *TARGET]
    assert as_json(capsys, *args) == patch(of, CLEAN, other, target=" sat", against=" on").to_dict()
    paths = patch_path(of, CLEAN, other, receiver=(1, 2), through="k", target=" sat", against=" on")
    assert as_json(capsys, *args, "--receiver", "1.2", "--through", "k") == paths.to_dict()
    assert main(["inspect", *args, "--activation", "heads", "--out", str(tmp_path / "a.png")]) == 0
    assert "patching heads by heads" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["lens", "FOLDER"], "give something to read"),
        (["lens", "FOLDER", "--text", CLEAN, "--tuned", "none.safetensors"], "there is no file"),
        (["lens", "FOLDER", "--text", CLEAN, "--target", "the cat"], "2 tokens"),
        (["patch", "FOLDER", "--text", CLEAN, "--corrupted", "the cat"], "tokens and the corrupted one"),
        (["patch", "FOLDER", "--text", CLEAN, "--corrupted", CLEAN, "--receiver", "1"], "--receiver 1"),
        (["ablate", "FOLDER", "--text", CLEAN, "--activation", "nothing"], "no layer has"),
    ],
)
def test_bad_input_is_one_line(args: list[str], words: str, folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(["inspect", *(folder if arg == "FOLDER" else arg for arg in args)]) == 2
    error = capsys.readouterr().err.strip()
    assert words in error
    assert "\n" not in error
