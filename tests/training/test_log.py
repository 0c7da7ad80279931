"""The log of a run: what is in it comes back, and a line that is none is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from vantage.errors import CheckpointError
from vantage.training import ScoreRecord, StepRecord, read_log
from vantage.training.log import FILE, TrainLog

STEPS = [StepRecord(n, 1 / n, 1e-3, 0.1 * n, 8, 0.5) for n in (1, 2, 3)]
SCORE = ScoreRecord(3, "valid", 0.3, 0.5, 0.25, 4, {"even": 0.5})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    log = TrainLog(tmp_path, 0)
    for step in STEPS:
        log.stepped(step)
    log.scored([SCORE])
    log.close()
    return tmp_path


def test_what_is_written_is_read(folder: Path) -> None:
    assert read_log(folder) == (STEPS, [SCORE])


@pytest.mark.parametrize("cut", [b'{"kind": "st', b"\xc3", b"\0\0\0"])
def test_a_last_line_that_was_cut_is_passed_over(folder: Path, cut: bytes) -> None:
    with (folder / FILE).open("ab") as file:
        file.write(cut)
    assert read_log(folder) == (STEPS, [SCORE])
    TrainLog(folder, 2).close()
    assert read_log(folder) == (STEPS[:2], [])


@pytest.mark.parametrize(
    "line", [b"5", b"null", b'["step"]', b"\xff\xfe", b'{"step": 1', b"{}", b'{"kind": "step", "step": "1"}', b""]
)
def test_a_line_that_is_none_is_named(folder: Path, line: bytes) -> None:
    lines = (folder / FILE).read_bytes().splitlines(keepends=True)
    (folder / FILE).write_bytes(b"".join([*lines[:2], line + b"\n", *lines[2:]]))
    for read in (read_log, lambda where: TrainLog(where, 2)):
        with pytest.raises(CheckpointError, match=f"{folder / FILE}, line 3 is .*: remove that line"):
            read(folder)


@pytest.mark.parametrize("said", [{"step": 4}, {"kind": "step", "step": 4}, {"kind": "score", "step": 4, "more": 1}])
def test_a_line_that_lacks_something_is_named(folder: Path, said: dict[str, object]) -> None:
    with (folder / FILE).open("a") as file:
        file.write(json.dumps(said) + "\n")
    with pytest.raises(CheckpointError, match=f"{folder / FILE}, line 5 is no step and no evaluation"):
        read_log(folder)
