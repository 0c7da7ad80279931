"""Callbacks: when they are called and with what, how one ends a run, and what is kept when one fails."""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

import vantage as vt
from tests.training.runs import go, losses, same, tiny
from vantage.errors import BadInput
from vantage.training import Run, ScoreRecord, StepRecord, read_log
from vantage.training.checkpoint import steps
from vantage.training.progress import ProgressBar


class Everything:
    """Keeps all that it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, Any]] = []

    def on_begin(self, run: Any) -> None:
        self.told.append(("begin", run))

    def on_step(self, record: Any) -> None:
        self.told.append(("step", record))

    def on_eval(self, records: Any) -> None:
        self.told.append(("eval", records))
        run = self.told[0][1]
        assert not run.model.training  # what was evaluated, as it was evaluated

    def on_save(self, where: Any) -> None:
        self.told.append(("save", where))

    def on_end(self, trained: Any) -> None:
        self.told.append(("end", trained))

    def on_error(self, error: Any) -> None:
        self.told.append(("error", error))


def test_every_event_comes_in_its_place(tmp_path: Path) -> None:
    seen, plain = Everything(), []
    said = tiny(loop={"steps": 4}, evaluate={"every": 2}, save={"every": 2}, model={"dropout": 0.2})
    trained = vt.train(said, out=tmp_path / "run", callbacks=[seen, plain.append], device="cpu")
    assert [event for event, _ in seen.told] == ["begin", *["step", "step", "eval", "save"] * 2, "end"]
    records = [value for event, value in seen.told if event == "step"]
    assert records == plain == read_log(tmp_path / "run")[0]
    assert isinstance(seen.told[0][1], Run)
    assert isinstance(records[0], StepRecord)
    assert isinstance(seen.told[3][1][0], ScoreRecord)
    assert seen.told[4][1] == tmp_path / "run" / "checkpoints" / "step-00000002"
    assert seen.told[-1][1] is trained
    go(tmp_path / "plain", said)
    same(tmp_path / "run", tmp_path / "plain")  # that somebody looks on changes nothing


@pytest.mark.parametrize("event", ["on_step", "on_eval", "on_save"])
def test_one_that_returns_true_ends_the_training_with_a_model(tmp_path: Path, event: str) -> None:
    class Ends:
        pass

    setattr(Ends, event, lambda self, value: True)
    said = tiny(loop={"steps": 9}, evaluate={"every": 2}, save={"every": 3})
    trained = vt.train(said, out=tmp_path / "run", callbacks=Ends(), device="cpu")
    assert trained.finished
    assert trained.step == {"on_step": 1, "on_eval": 2, "on_save": 4}[event]
    assert trained.kept is not None
    assert steps(tmp_path / "run" / "checkpoints")[-1] == trained.step
    assert trained.scores[0].step == trained.step
    # it can go on from there, as if nobody had said anything
    assert vt.train(said, out=tmp_path / "run", resume=True, device="cpu").step == 9
    go(tmp_path / "whole", said)
    assert losses(tmp_path / "run") == losses(tmp_path / "whole")


def test_other_answers_end_nothing(tmp_path: Path) -> None:
    assert vt.train(tiny(), out=tmp_path / "run", callbacks=lambda record: 1, device="cpu").step == 6


def test_one_that_fails_leaves_a_checkpoint_and_the_others_hear_of_it(tmp_path: Path) -> None:
    def fails(record: Any) -> None:
        if record.step == 3:
            raise ZeroDivisionError("mine")

    seen = Everything()
    with pytest.raises(ZeroDivisionError, match="mine"):
        vt.train(tiny(), out=tmp_path / "run", callbacks=[seen, fails], device="cpu")
    assert seen.told[-1][0] == "error"
    assert isinstance(seen.told[-1][1], ZeroDivisionError)
    assert steps(tmp_path / "run" / "checkpoints") == [3]
    go(tmp_path / "run", tiny(), resume=True)
    go(tmp_path / "whole", tiny())
    same(tmp_path / "run", tmp_path / "whole")


def test_what_a_callback_draws_changes_nothing(tmp_path: Path) -> None:
    said = tiny(model={"dropout": 0.3})
    vt.train(said, out=tmp_path / "run", callbacks=lambda record: torch.rand(7), device="cpu")
    go(tmp_path / "plain", said)
    assert losses(tmp_path / "run") == losses(tmp_path / "plain")


class Misspelt:
    def on_steps(self, record: Any) -> None: ...


@pytest.mark.parametrize(
    ("callback", "says"),
    [
        (Misspelt(), "has a method on_steps, which nothing calls. Did you mean 'on_step'?"),
        (Everything, "Everything is a class: give an object of it, Everything()"),
        (5, "5 is no function and has none of the methods on_begin"),
        ("on_step", "is no function"),
    ],
)
def test_what_is_no_callback_is_refused(tmp_path: Path, callback: Any, says: str) -> None:
    with pytest.raises(BadInput, match=re.escape(says)):
        vt.train(tiny(), out=tmp_path / "run", callbacks=callback)
    assert not (tmp_path / "run").exists()


# ---- what is seen while it trains


def test_a_terminal_sees_a_bar_and_a_file_sees_nothing() -> None:
    for terminal in (True, False):
        console = Console(file=io.StringIO(), force_terminal=terminal, width=100)
        with ProgressBar(console) as bar:
            bar.begun(0, 3, "12 parameters")
            bar.stepped(StepRecord(1, 2.5, 1e-3, 1.0, 8, 0.1))
            bar.scored([ScoreRecord(1, "eval", 1.25, 0.0, 0.0, 4)])
            bar.stepped(StepRecord(3, 1.5, 1e-3, 1.0, 8, 0.1))
            bar.note("stopped early")
        assert isinstance(console.file, io.StringIO)
        shown = console.file.getvalue()
        assert [word in shown for word in ("3/3", "loss 1.5000, eval 1.2500", "stopped early")] == [terminal] * 3


@pytest.mark.sampled
@pytest.mark.skipif(os.name == "nt", reason="there is no pty")
def test_vt_train_on_a_terminal_shows_it(tmp_path: Path) -> None:
    import pty

    reader, writer = pty.openpty()
    call = f"[[1, 2, 3]], steps=3, batch_size=1, out={str(tmp_path / 'run')!r}, device='cpu'"
    code = f"import vantage as vt; vt.train(vt.decoder(vocab=8, width=8, layers=1, heads=1), {call})"
    env = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2]), "TERM": "xterm", "COLUMNS": "100"}
    done = subprocess.run([sys.executable, "-c", code], stderr=writer, env=env, timeout=300, check=False)
    os.close(writer)
    shown = b""
    with contextlib.suppress(OSError):  # what a closed terminal ends with
        while piece := os.read(reader, 4096):
            shown += piece
    os.close(reader)
    assert done.returncode == 0, shown
    assert b"3/3" in shown
    assert b"loss " in shown
