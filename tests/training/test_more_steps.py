"""More steps for a run that is finished, which settings differ, and early stopping."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import vantage as vt
from tests.training.runs import Notes, go, losses, same, tiny
from vantage.cli.main import main
from vantage.errors import BadInput
from vantage.training import ScoreRecord, read_log
from vantage.training.checkpoint import folder_name
from vantage.training.evaluate import evaluate
from vantage.training.settings import Evaluate, settings_of

# ---- more steps


@pytest.mark.parametrize(
    "more", [{}, {"evaluate": {"every": 2, "best": True}, "average": {"decay": 0.9}}], ids=["", "best"]
)
def test_a_finished_run_with_more_steps_is_the_longer_run(tmp_path: Path, more: dict[str, Any]) -> None:
    notes = Notes()
    go(tmp_path / "run", tiny(loop={"steps": 4}, **more))
    vt.train(resume=tmp_path / "run", steps=8, report=notes, device="cpu")
    go(tmp_path / "whole", tiny(loop={"steps": 8}, **more))
    assert losses(tmp_path / "run") == losses(tmp_path / "whole")
    if more:
        same(tmp_path / "run", tmp_path / "whole")
    assert notes.notes == []
    assert json.loads((tmp_path / "run" / "settings.json").read_text())["loop"]["steps"] == 8


def test_a_schedule_that_lasts_as_long_as_the_run_is_stretched_and_said(tmp_path: Path) -> None:
    said = tiny(loop={"steps": 4}, schedule={"is": "cosine", "floor": 0.1})
    go(tmp_path / "run", said)
    notes = Notes()
    vt.train(resume=tmp_path / "run", steps=8, report=notes, device="cpu")
    [note] = notes.notes
    assert "the schedule (cosine) now lasts 8 steps instead of 4" in note
    assert "from 3.00e-04 to 1.65e-03 here" in note
    rates = [record.lr for record in read_log(tmp_path / "run")[0]]
    go(tmp_path / "long", tiny(loop={"steps": 8}, schedule={"is": "cosine", "floor": 0.1}))
    go(tmp_path / "short", said)
    assert rates[:4] == [record.lr for record in read_log(tmp_path / "short")[0]]
    assert rates[4:] == [record.lr for record in read_log(tmp_path / "long")[0]][4:]


def test_a_schedule_that_has_not_begun_to_fall_goes_on_exactly(tmp_path: Path) -> None:
    wsd = {"is": "wsd", "decay": 0.25}
    go(tmp_path / "run", tiny(loop={"steps": 8}, schedule=wsd), stop=4)
    notes = Notes()
    vt.train(resume=tmp_path / "run", steps=12, report=notes, device="cpu")
    go(tmp_path / "whole", tiny(loop={"steps": 12}, schedule=wsd))
    assert notes.notes == []
    assert losses(tmp_path / "run") == losses(tmp_path / "whole")


def test_a_schedule_of_its_own_length_stays_at_its_end_and_that_is_said(tmp_path: Path) -> None:
    schedule = {"is": "cosine", "total": 3}
    go(tmp_path / "run", tiny(loop={"steps": 4}, schedule=schedule))
    notes = Notes()
    go(tmp_path / "run", tiny(loop={"steps": 6}, schedule=schedule), resume=True, report=notes)
    assert "ends at step 3: from there on the learning rate stays at 0.00e+00" in notes.notes[0]


def test_fewer_steps_than_were_done_are_refused(tmp_path: Path) -> None:
    go(tmp_path / "run", tiny(loop={"steps": 4}))
    with pytest.raises(BadInput, match="has done 4 steps already: give more"):
        vt.train(resume=tmp_path / "run", steps=3, device="cpu")


def test_the_command_line_gives_a_run_more_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    short = [
        "loop.batch=4",
        "loop.threads=1",
        "schedule={}",
        "data.test_examples=2",
        "model.width=16",
        "--device",
        "cpu",
    ]
    assert main(["train", "copy", *short, "--steps", "2", "--out", "runs/a"]) == 0
    assert main(["train", "--resume", "runs/a", "--steps", "4", "--device", "cpu"]) == 0
    assert capsys.readouterr().out.splitlines()[-2] == "done: 4 steps; the model is in runs/a/model, the log in runs/a"
    assert [record.step for record in read_log("runs/a")[0]] == [1, 2, 3, 4]
    assert main(["train", "--resume", "runs/b", "--steps", "4"]) == 2
    assert main(["train", "runs/a"]) == 2
    assert "already holds a run" in capsys.readouterr().err


# ---- other settings


def test_other_settings_are_named(tmp_path: Path) -> None:
    go(tmp_path / "run", tiny(), stop=3)
    other = tiny(seed=1, model={"width": 32, "position": {"is": "rope", "base": 500.0}}, loop={"batch": 4})
    with pytest.raises(BadInput) as caught:
        go(tmp_path / "run", other, resume=True)
    said = str(caught.value)
    assert "seed 0 -> 1" in said
    assert "model.width 16 -> 32" in said
    assert "loop.batch 8 -> 4" in said
    assert "optimiser" not in said
    assert "steps" not in said


def test_runs_of_an_earlier_version_go_on_and_their_settings_are_compared_as_well(tmp_path: Path) -> None:
    said = tiny(schedule={"is": "cosine"})
    go(tmp_path / "run", said, stop=3)
    state = tmp_path / "run" / "checkpoints" / folder_name(3) / "state.json"
    content = json.loads(state.read_text())
    for name in ("settings", "rows"):
        del content["facts"][name]
    state.write_text(json.dumps(content))
    with pytest.raises(BadInput, match=re.escape("other settings: seed 0 -> 1.")):
        go(tmp_path / "run", {**said, "seed": 1}, resume=True)
    (tmp_path / "run" / "settings.json").rename(tmp_path / "elsewhere")
    with pytest.raises(BadInput, match=re.escape("other settings. Give the same ones")):
        go(tmp_path / "run", {**said, "seed": 1}, resume=True)
    go(tmp_path / "run", said, resume=True)
    go(tmp_path / "whole", said)
    same(tmp_path / "run", tmp_path / "whole")


def test_the_fingerprint_of_a_run_is_what_earlier_versions_wrote() -> None:
    assert settings_of(tiny()).fingerprint() == "9ae59f5cbd153eaf"
    assert settings_of(tiny(evaluate={"every": 2, "best": True}, schedule="cosine")).fingerprint() == "2052da5d70baf325"


# ---- early stopping


def score(loss: float, exact: float = 0.0) -> list[ScoreRecord]:
    return [ScoreRecord(1, "eval", loss, 0.0, exact, 1)]


def test_patience_waits_for_a_change_that_counts() -> None:
    section = Evaluate(every=1, patience=2, min_delta=0.1)
    best, reasons = None, []
    for loss in (1.0, 0.95, 0.85, 0.80, 0.77):
        best = section.improved(best, score(loss))
        reasons.append(section.why_enough(best, score(loss)))
    assert best is not None
    assert (best.value, best.waited, best.reference) == (0.77, 2, 0.85)  # the best is the best, whatever counts
    assert reasons == [None, None, None, None, "no better loss by more than 0.1 in 2 evaluations"]


def test_a_share_gets_better_by_growing() -> None:
    section = Evaluate(every=1, patience=1, metric="exact")
    best = section.improved(section.improved(None, score(1.0, 0.2)), score(2.0, 0.4))
    assert best == (0.4, 0, 0.4)
    worse = section.improved(best, score(0.1, 0.3))
    assert section.why_enough(worse, score(0.1, 0.3)) == "no better share of exact rows in 1 evaluations"


def test_patience_alone_keeps_the_best_model(tmp_path: Path) -> None:
    rows = [[1, 2, 3, 4, 5], [5, 4, 3, 2, 1]]
    trained = vt.train(
        vt.decoder(vocab=8, width=16, layers=1, heads=2),
        rows[:1],
        eval_data=rows[1:],  # what is learned makes this worse
        steps=200,
        batch_size=1,
        lr=0.03,
        eval_steps=1,
        patience=3,
        out=tmp_path / "run",
        device="cpu",
        settings={"loop": {"threads": 1}, "guard": {"spike": 0.0}},
    )
    curve = [record.loss for record in read_log(tmp_path / "run")[1]]
    best = min(curve)
    assert trained.step == curve.index(best) + 1 + 3 < 200
    assert curve[-1] > best
    model = vt.load(trained.kept)
    with torch.no_grad():
        logits = model(torch.tensor(rows[1:]))[:, :-1]
    again = torch.nn.functional.cross_entropy(logits.flatten(0, 1), torch.tensor(rows[1][1:]))
    assert float(again) == pytest.approx(best, abs=1e-5)
    assert evaluate  # the figures come from the loop's own evaluation


def test_more_patience_lets_a_stopped_run_go_on(tmp_path: Path) -> None:
    said = tiny(loop={"steps": 40}, evaluate={"every": 2, "patience": 1}, optimiser={"lr": 0.5}, guard={"spike": 0.0})
    early = go(tmp_path / "run", said)
    assert early.step < 40
    assert go(tmp_path / "run", said, resume=True).step == early.step
    said["evaluate"]["patience"] = 1000
    assert go(tmp_path / "run", said, resume=True).step == 40


@pytest.mark.parametrize(
    ("section", "says"),
    [
        ({"every": 1, "min_delta": 0.1}, "min_delta needs patience"),
        ({"every": 1, "patience": 1, "min_delta": -0.1}, "give the least change that counts"),
        ({"every": 1, "patience": 1, "metric": "perplexity"}, "wanted 'loss' or 'tokens' or 'exact'"),
        ({"patience": 1}, "need evaluate.every"),
    ],
)
def test_what_makes_no_sense_is_refused(section: dict[str, Any], says: str) -> None:
    with pytest.raises(BadInput, match=says):
        settings_of(tiny(evaluate=section))
