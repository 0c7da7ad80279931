"""``vantage chat`` as a user meets it: a process on a terminal, with a real interrupt."""

from __future__ import annotations

import io
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import vantage as vt
from tests.generation.folder import CHATML, chat_folder, chat_model
from tests.processes import PATIENCE, terminal
from vantage.checkpoints.pull import place
from vantage.cli.chat import HELP, printable
from vantage.cli.main import main
from vantage.generation.conversation import Conversation


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return chat_folder(tmp_path / "model")


def endless() -> str:
    """Words after which the tiny model talks without end."""
    for words in ("the cat", "no!", "hello world", "12 dogs", "birds"):
        if Conversation(chat_model()).ask(words, max_tokens=400).finish_reason == "length":
            return words
    raise AssertionError("this model is too terse for the test")


@pytest.mark.sampled
def test_a_session_on_a_terminal(folder: Path, tmp_path: Path) -> None:
    saved = tmp_path / "talk.vantage"
    with terminal(["chat", str(folder), "--max-tokens", "1000000", "--stats"], tmp_path) as t:
        t.until(r"/help lists the commands\.\n> ")
        t.type(endless() + "\n")
        t.until(r"\n(?s:.{200})")  # it is talking
        t.type("\x03")
        t.until(r"\[stopped after \d+ tokens\]\n\[\d+ tokens read, 0 from the cache.*\]\n> ")
        t.type("half a line")
        t.until("half a line")
        t.interrupt(r"Ctrl-D or /quit exits\)\n> ")  # while typing: only the line is given up
        t.type("/stats\n")
        stats = t.until(r"answer .*\n> ")
        held = int(re.search(r"cache +([\d,]+) tokens", stats)[1].replace(",", ""))  # type: ignore[index]
        assert held > 20
        assert "messages  2" in stats
        t.type(f"/save {saved}\n")
        t.until(rf"saved 2 messages and {held} tokens")
        t.type("/reset\n")
        t.until("started over\n> ")
        t.type(f"/load {tmp_path}/nothing\n")
        t.until(r"vantage: cannot read .*nothing.*\n> ")  # and the session goes on
        t.type(f"/load {saved}\n")
        t.until(rf"loaded 2 messages and {held} tokens\n> ")
        t.type("\x1b[A\x1b[A\n")  # the line before the last one, by the arrow keys
        t.until("cannot read")
        t.until("> ")
        t.type("/nonsense\n/help\n")
        t.until("unknown command /nonsense")
        t.until(re.escape("/quit "))
        t.until("\n> ")
        t.type("and now\n")
        t.until("now\n")
        t.until(r"(?s:.{60})")
        t.type("\x03")
        read, reused = map(
            int, re.search(r"\[(\d+) tokens read, (\d+) from the cache", t.until(r"the cache.*\]\n> ")).groups()
        )  # type: ignore[union-attr]
        assert reused == held
        assert read - reused < 45
        t.type("\x04")
        t.until("\n")
        assert t.process.wait(PATIENCE) == 0
    remembered = (tmp_path / "chat_history").read_text()
    assert "/reset" in remembered
    assert (tmp_path / "chat_history").stat().st_mode & 0o077 == 0


@pytest.mark.sampled
def test_on_a_terminal_it_listens_to_an_interrupt_that_its_parent_ignored(folder: Path, tmp_path: Path) -> None:
    """As a test runner in the background of a script ignores it: on a terminal Ctrl-C is typed for the chat."""
    with terminal(["chat", str(folder), "--max-tokens", "1000000"], tmp_path, ignoring={signal.SIGINT}) as t:
        t.until(r"/help lists the commands\.\n> ")
        t.interrupt(r"Ctrl-D or /quit exits\)\n> ")  # before any answer
        t.type(endless() + "\n")
        t.until(r"\n(?s:.{200})")
        t.type("\x03")
        t.until(r"\[stopped after \d+ tokens\]\n> ")
        t.interrupt(r"Ctrl-D or /quit exits\)\n> ")  # and after one
        t.type("\x04")
        t.until("\n")
        assert t.process.wait(PATIENCE) == 0


def test_standard_input_may_be_closed(folder: Path) -> None:
    chat = ["sh", "-c", 'exec "$@" <&-', "sh", sys.executable, "-m", "vantage", "chat", str(folder)]
    done = subprocess.run(chat, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.sampled
def test_lines_from_a_pipe_are_answered_one_by_one(folder: Path, tmp_path: Path) -> None:
    talk = Conversation(chat_model(), system="a system", max_tokens=7)
    wanted = [talk.ask(words).text for words in ("the cat", "no!")]
    talk.save(tmp_path / "talk")
    done = subprocess.run(
        [sys.executable, "-m", "vantage", "chat", str(folder), "--max-tokens", "7", "--lookup", "--system", "a system"],
        input=f"the cat\n\nno!\n/load {tmp_path}/talk\nhello\n/quit\nunheard\n",
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    cut = "\n[cut off after 7 tokens]\n"
    assert done.stdout.startswith("".join(printable(text) + cut for text in wanted) + "loaded 5 messages")
    assert done.stdout.endswith(printable(talk.ask("hello").text) + cut)


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--temperature", "-1"], "temperature=-1"),
        (["--load", "nowhere"], "nowhere"),
        (["--cache", "ring"], "no layer of this model has one"),
    ],
)
def test_bad_input_is_one_line(folder: Path, args: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chat", str(folder), *args]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert len(shown.err.splitlines()) == 1
    assert says in shown.err


def test_a_model_cannot_steer_the_terminal() -> None:
    assert printable("a\x1b[2Jb\n\tc\x07\x9bé世\x7f") == "a\ufffd[2Jb\n\tc\ufffd\ufffdé世\ufffd"


def test_help_names_every_verb() -> None:
    for verb in ("/reset", "/save", "/load", "/stats", "/help", "/quit"):
        assert verb in HELP


def test_a_model_without_a_template_is_refused_before_anybody_types(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    vt.save(chat_model(template=None), tmp_path / "base")
    typed = io.StringIO("hello\n")
    monkeypatch.setattr("sys.stdin", typed)
    assert main(["chat", str(tmp_path / "base")]) == 2
    assert typed.tell() == 0  # nothing was read
    shown = capsys.readouterr()
    assert shown.out == ""
    assert len(shown.err.splitlines()) == 1
    for words in ("has no chat template", "vantage generate", "vantage chat smollm2"):
        assert words in shown.err


def test_a_template_that_refuses_the_system_message_says_so_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    strict = "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}" + CHATML
    vt.save(chat_model(template=strict), tmp_path / "model")
    typed = io.StringIO("hello\n")
    monkeypatch.setattr("sys.stdin", typed)
    assert main(["chat", str(tmp_path / "model"), "--system", "Be brief."]) == 2
    assert "no system role" in capsys.readouterr().err
    assert typed.tell() == 0
    assert main(["chat", str(tmp_path / "model"), "--max-tokens", "2"]) == 0


def test_a_line_of_a_pipe_that_is_refused_shows_in_the_exit_code(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("/load nowhere\nthe cat\n"))
    assert main(["chat", str(folder), "--max-tokens", "2"]) == 2
    shown = capsys.readouterr()
    assert "nowhere" in shown.err
    assert "cut off after 2 tokens" in shown.out  # the others are answered


@pytest.mark.slow
def test_smollm2_on_a_terminal(tmp_path: Path) -> None:
    if not place("smollm2").is_dir():
        pytest.skip("smollm2 was not pulled")
    with terminal(["chat", str(place("smollm2") / "SmolLM2-135M-Instruct.Q4_1.gguf"), "--stats"], tmp_path) as t:
        t.until("> ")
        t.type("Tell me a very long story about a cat.\n")
        t.until(r"\n(?s:.{80})")
        t.type("\x03")
        t.until(r"\[stopped after \d+ tokens\]")
        t.until("> ")
        t.type("What is the capital of France? Answer in one word.\n")
        assert "Paris" in t.until(r"from the cache.*\]\n> ")
        t.type("\x04")
        assert t.process.wait(PATIENCE) == 0
