"""What stands in the documents works as it stands: Python runs as it is pasted, commands are those that there are."""

from __future__ import annotations

import ast
import builtins
import contextlib
import functools
import json
import os
import re
import select
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from vantage.checkpoints.pull import PullError, place, pull
from vantage.cli.main import main, make_parser, parse
from vantage.cli.train import arrangement
from vantage.compare.names import check_names
from vantage.training.sections import check_table_optimiser
from vantage.training.tables import check_table, recipes, table_of

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
MODELS = ("smollm2", "minilm")
NEEDS_A_SERVER = "base_url="  # in a block: it is only compiled
PATIENCE = 300.0  # seconds that a page may take; only a hang takes as long
# Commands that take long, do not end, want a network or a GPU, or write gigabytes. All others are run.
NOT_RUN = re.compile(
    r"vantage (studio|serve|chat|compare|pull|convert|check$|study all|study run T|train (?!--list)|inspect extend)"
    r'|vantage generate "Once upon"$|.*--file book.txt|.*--machine measure|.*--device cuda|--help$'
    r"|.* (runs/|\./my-model)"  # what a reader has, or has trained
)
EXIT_CODES = {"study grade": 1}  # of a starter that nobody has filled in


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def with_blocks(language: str) -> list[Path]:
    return [page for page in PAGES if blocks(page, language)]


def lacking(text: str) -> list[str]:
    """The models that this text names and that are not on this machine, and cannot be brought to it."""
    return [name for name in MODELS if name in text and not can_be_had(name)]


@functools.cache
def can_be_had(name: str) -> bool:
    if not place(name).is_dir():
        try:
            pull(name)
        except PullError:
            return False
    return True


def skip_rest(page: Path, left_out: list[str]) -> None:
    """What was left out for want of a model is not passed over in silence."""
    if left_out:
        names = sorted({name for text in left_out for name in lacking(text)})
        pytest.skip(f"{len(left_out)} blocks or commands of {page.name} need {', '.join(names)}; the others passed")


# ---- Python


@pytest.fixture(scope="module")
def interpreter() -> Iterator[subprocess.Popen[str]]:
    runner = [sys.executable, str(ROOT / "tests" / "page_runner.py")]
    with subprocess.Popen(runner, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


@pytest.mark.sampled
@pytest.mark.parametrize("page", with_blocks("python"), ids=lambda page: page.name)
def test_the_python_of_a_page_runs_as_pasted(page: Path, interpreter: subprocess.Popen[str], tmp_path: Path) -> None:
    """All blocks of a page in order, in an interpreter that has imported nothing."""
    runnable = [code for code in blocks(page, "python") if NEEDS_A_SERVER not in code]
    pasted = [code for code in runnable if not lacking(code)]
    for code in blocks(page, "python"):
        compile(code, page.name, "exec")
    assert interpreter.stdin is not None
    assert interpreter.stdout is not None
    print(
        json.dumps({"name": page.name, "blocks": pasted, "folder": str(tmp_path)}), file=interpreter.stdin, flush=True
    )
    assert select.select([interpreter.stdout], [], [], PATIENCE)[0], f"{page.name} does not end"
    reply = json.loads(interpreter.stdout.readline())
    assert reply["code"] == 0, reply["output"]
    skip_rest(page, [code for code in runnable if code not in pasted])


def names_of(code: str) -> tuple[set[str], set[str]]:
    """What a block binds, imports apart, and what it reads that comes from elsewhere."""
    nodes = list(ast.walk(ast.parse(code)))
    imported = {
        (name.asname or name.name).partition(".")[0]
        for node in nodes
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for name in node.names
    }
    bound = {node.id for node in nodes if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)}
    bound |= {node.name for node in nodes if isinstance(node, (ast.ClassDef, ast.FunctionDef))}
    bound |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    read = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    return bound, read - imported - bound - set(dir(builtins))


@pytest.mark.parametrize("page", with_blocks("python"), ids=lambda page: page.name)
def test_a_block_that_stands_alone_has_its_imports(page: Path) -> None:
    """One that goes on from another (it reads a variable of it) may leave them to that one."""
    earlier: set[str] = set()
    for code in blocks(page, "python"):
        bound, free = names_of(code)
        goes_on = free & earlier
        assert goes_on or not free, f"this block of {page.name} lacks {', '.join(sorted(free))}:\n{code}"
        earlier |= bound


# ---- commands


def commands(text: str) -> list[str]:
    """The lines of a shell block, those that end in a backslash joined, without blank ones and comments."""
    lines = (line.strip() for line in text.replace("\\\n", " ").splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def arguments(command: str) -> list[str] | None:
    """What follows ``vantage`` in a command, up to a pipe or a redirection; None where another program is run."""
    words: list[str] = []
    for word in [*shlex.split(command, comments=True), ";"]:
        if word not in ("|", ">", "&&", ";"):
            words.append(word)
            continue
        program = [one for one in words if not re.match(r"[A-Z_]+=", one)]  # variables may be set before it
        if program[:1] == ["vantage"]:
            return program[1:]
        if program[:1] == ["torchrun"]:
            return program[program.index("vantage") + 1 :]
        words = []
    return None


def documented() -> list[str]:
    """Every command of the documents and of every ``--help``, once."""
    lines = [line for page in PAGES for block in blocks(page, "sh") for line in commands(block)]
    parsers = [make_parser()]
    for parser in parsers:
        lines += [line for line in commands(parser.epilog or "") if re.match(r"(vantage|echo|cat|torchrun)\b", line)]
        for action in parser._actions:
            parsers += action.choices.values() if isinstance(action.choices, dict) else []
    return list(dict.fromkeys(line for line in lines if arguments(line) is not None and "`" not in line.split("#")[0]))


@pytest.mark.parametrize("command", documented())
def test_a_command_is_one_that_there_is(command: str) -> None:
    """Its verb and its flags, the names of parts that it gives, and the keys of settings that it changes."""
    words = arguments(command)
    assert words is not None
    if "--help" in words:
        return
    args = parse(words)
    if args.verb == "train" and args.settings in recipes():
        table = table_of(args.settings, [*args.changes, *arrangement(args)])
        check_table(table)
        check_table_optimiser(table)
    if args.verb == "compare":
        check_names(args.tasks or (), args.positions or (), args.attention or ())


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files that commands of the documents read."""
    monkeypatch.chdir(tmp_path)
    prose = re.sub(r"[`|#*]", "", (ROOT / "docs" / "core.md").read_text(encoding="utf-8"))
    (tmp_path / "book.txt").write_text(prose)
    return tmp_path


@pytest.mark.sampled
@pytest.mark.parametrize("page", with_blocks("sh"), ids=lambda page: page.name)
def test_the_commands_of_a_page_run(page: Path, desk: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """In their order, in one folder; those that take seconds."""
    left_out: list[str] = []
    for line in (line for block in blocks(page, "sh") for line in commands(block)):
        words = arguments(line)
        command = line.partition("#")[0].strip()
        if words is None or not line.startswith("vantage") or NOT_RUN.match(command):
            continue
        needs = command + (" smollm2" if words[0] in ("generate", "inspect") else "")
        if lacking(needs):
            left_out.append(needs)
            continue
        with contextlib.suppress(SystemExit):
            code = main(words)
            wanted = next((code for start, code in EXIT_CODES.items() if " ".join(words).startswith(start)), 0)
            assert code == wanted, f"{command}\n{capfd.readouterr().err}"
    skip_rest(page, left_out)


# ---- Files that a page names

HISTORY = ("log.md",)  # says what was, under the names of the time
OF_A_USER = ("tracking.json", "preprocessor_config.json", "studies.json")  # written by a run, or part of a checkpoint
SOURCES = ("vantage", "tests", "bench", "tools", "web", "docs", "notebooks")


@pytest.fixture(scope="module")
def names() -> set[str]:
    """Every end of a path of the tree: `layer.py`, `cache/layer.py`, `vantage/cache/layer.py`."""
    every = [path.relative_to(ROOT) for path in ROOT.glob("*") if path.is_file()]
    for folder in SOURCES:
        for top, folders, files in os.walk(ROOT / folder):
            folders[:] = [one for one in folders if one != "node_modules" and not one.startswith(".")]
            every += [Path(top, file).relative_to(ROOT) for file in files]
    return {"/".join(path.parts[start:]) for path in every for start in range(len(path.parts))}


@pytest.mark.parametrize("page", [page for page in PAGES if page.name not in HISTORY], ids=lambda page: page.name)
def test_the_files_that_a_page_names_are_there(page: Path, names: set[str]) -> None:
    named = set(re.findall(r"`([\w./-]+\.(?:py|h|cpp|tsx?|toml|json))(?:::\w+)?`", page.read_text(encoding="utf-8")))
    assert not {name for name in named if name not in names and name not in OF_A_USER and "NAME" not in name}


def test_the_tests_that_docs_security_names_are_there() -> None:
    text = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    files = [*(ROOT / "tests").rglob("test_*.py")]
    defined = {match for file in files for match in re.findall(r"def (test_\w+)", file.read_text(encoding="utf-8"))}
    assert not set(re.findall(r"::(test_\w+)`", text)) - defined
