"""The command line as a user meets it: a process, its output and its exit code."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.processes import ROOT, until
from vantage import __version__
from vantage.cache import CACHES
from vantage.cli.compare_show import ExperimentDisplay
from vantage.cli.flags import CACHE_KINDS
from vantage.cli.main import VERBS, main, make_parser
from vantage.cli.progress import Bar
from vantage.compare.experiment import Experiment
from vantage.conformance import matrix
from vantage.spec.masks import Window


def vantage(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "vantage", *args], capture_output=True, text=True, check=False)


def verb_names() -> list[str]:
    return list(VERBS)


def test_help_lists_the_verbs_and_an_example() -> None:
    done = vantage("--help")
    assert done.returncode == 0
    assert done.stderr == ""
    assert "examples:" in done.stdout
    for name in verb_names():
        assert name in done.stdout


@pytest.mark.parametrize("name", verb_names())
def test_help_of_a_verb_shows_an_example(name: str) -> None:
    done = vantage(name, "--help")
    assert done.returncode == 0
    assert f"  vantage {name}" in done.stdout.partition("example")[2]


@pytest.mark.parametrize("args", [["--help"], ["--version"], ["check", "--help"], ["nonsense"]])
def test_nothing_heavy_is_imported_before_a_verb_runs(args: list[str]) -> None:
    """What makes `vantage --help` fast. The time itself depends on the machine; the imports do not."""
    script = (
        "import sys\n"
        "from vantage.cli.main import main\n"
        "try:\n"
        "    main(sys.argv[1:])\n"
        "except SystemExit:\n"
        "    pass\n"
        "print(*sorted({name.partition('.')[0] for name in sys.modules}), file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, *args], capture_output=True, text=True, check=True)
    loaded = set(done.stderr.splitlines()[-1].split())
    assert "vantage" in loaded
    assert not loaded & {"torch", "numpy", "rich", "transformers"}


def test_version_is_that_of_the_package() -> None:
    done = vantage("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"vantage {__version__}\n", "")
    assert version("vantage") == __version__


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["chekc"], "chekc"),
        ([], "COMMAND"),
        (["check", "--strength", "4"], "4"),
        (["check", "--strength"], "--strength"),
        (["check", "--unknown"], "--unknown"),
    ],
)
def test_bad_input_is_one_clear_line_and_exit_code_2(args: list[str], says: str) -> None:
    done = vantage(*args)
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("vantage: ")
    assert says in done.stderr
    assert "--help" in done.stderr


@pytest.mark.sampled
def test_check_prints_the_table_and_succeeds(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--filter", "rope/grouped"]) == 0
    shown = capsys.readouterr()
    assert "rope" in shown.out
    assert "only those with 'rope/grouped' in their name" in shown.out
    assert shown.err == ""


@pytest.mark.sampled
def test_check_fails_when_a_cell_fails_and_names_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Window, "reach", lambda self: self.n - 1)  # a ring one place too small
    assert main(["check", "--filter", "/window/ring/reference/r"]) == 1
    assert re.search("FAILED .*/window/ring/reference/.*: off by", capsys.readouterr().out)


@pytest.mark.sampled
def test_check_json_is_all_there_is_on_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--json", "--filter", "rope/grouped"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["ok"]
    cells = {(cell["encoding"], cell["attention"]) for cell in said["cells"]}
    assert ("rope", "grouped") in cells
    assert all(encoding.endswith("rope") and attention == "grouped" for encoding, attention in cells)


@pytest.mark.sampled
@pytest.mark.parametrize(("args", "says"), [(["--filter", "rpoe"], "'rpoe'"), (["--device", "abacus"], "'abacus'")])
def test_a_refusal_is_one_line_and_exit_code_2(args: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", *args]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert len(shown.err.splitlines()) == 1
    assert shown.err.startswith("vantage: ")
    assert says in shown.err


def test_a_fault_of_ours_is_not_dressed_up_as_bad_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matrix, "cover", lambda *args: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        main(["check"])


LEAVING = """
import atexit, os

class Kept:
    def __del__(self, mkdir=os.mkdir):  # a name of this file may be gone by then
        mkdir("taken apart")

kept = Kept()
atexit.register(os.mkdir, "at the end")
"""


@pytest.mark.sampled
def test_when_all_is_said_nothing_is_taken_apart(tmp_path: Path) -> None:
    """Python's own end goes through every object, and on a busy machine that took minutes after the table. Handlers for
    the end run all the same, and nothing that was printed is lost."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "my_parts.py").write_text(LEAVING)
    command = [sys.executable, "-m", "vantage", "check", "--parts", "mine/my_parts.py", "--filter", "rope/grouped"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "only those with 'rope/grouped' in their name." in done.stdout
    assert (tmp_path / "at the end").exists()
    assert not (tmp_path / "taken apart").exists()


def test_every_verb_can_run() -> None:
    needs = {"convert": ["model.gguf", "folder"], "pull": ["smollm2"]}
    needs |= {"generate": ["a prompt"], "inspect": ["cache"], "study": ["list"]}
    for name in verb_names():
        assert callable(make_parser().parse_args([name, *needs.get(name, [])]).run)


class Terminal:
    """Standard error as a terminal, keeping what is drawn on it."""

    encoding = "utf-8"

    def __init__(self) -> None:
        self.drawn = ""

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self.drawn += text
        return len(text)

    def flush(self) -> None: ...


@pytest.mark.parametrize(("patience", "drawn"), [(0.0, True), (1e9, False)])
def test_the_bar_appears_on_a_terminal_once_patience_runs_out(
    monkeypatch: pytest.MonkeyPatch, patience: float, drawn: bool
) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with Bar("cells", patience) as bar:
        bar(7, 8)
    assert ("cells" in terminal.drawn and "7/8" in terminal.drawn) == drawn
    assert bool(terminal.drawn) == drawn


def test_what_comes_before_anything_can_be_counted_has_a_spinner(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with Bar("cells", patience=0.0, first="choosing the cells") as bar:
        until(lambda: "choosing the cells" in terminal.drawn)  # a thread draws it
        bar(6, 8)
        terminal.drawn = ""
        bar(8, 8)
    assert "8/8" in terminal.drawn
    assert "choosing" not in terminal.drawn


def test_the_timing_of_a_comparison_has_a_spinner_that_its_table_replaces(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with ExperimentDisplay() as display:
        display.timed(3, 12)
        until(lambda: "timed 3 of 12" in terminal.drawn)
        display.began(Experiment(), 1000, 0)
        until(lambda: "comparing" in terminal.drawn)
    assert "runs of" in terminal.drawn


def test_no_bar_where_standard_error_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with Bar("cells", patience=0.0) as bar:
        bar(1, 2)
    assert capsys.readouterr().err == ""


def test_the_help_names_every_kind_of_cache() -> None:
    assert tuple(CACHES) == CACHE_KINDS
