"""TensorBoard's files, read by TensorBoard's own reader."""

from __future__ import annotations

from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.training.runs import go, tiny
from vantage.training import read_log
from vantage.training.tensorboard import Events


def read(folder: Path) -> EventAccumulator:
    # purge_orphaned_data is on: what a resumed run does again must not be there twice
    return EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()


def test_every_number_of_the_log_is_there(tmp_path: Path) -> None:
    go(tmp_path / "run", tiny(evaluate={"every": 3}))
    events = read(tmp_path / "run" / "tensorboard")
    stepped, scored = read_log(tmp_path / "run")
    wanted = {name: [(r.step, getattr(r, name)) for r in stepped] for name in ("loss", "lr", "norm")}
    for name in ("loss", "tokens", "exact"):
        wanted[f"length 5/{name}"] = [(s.step, getattr(s, name)) for s in scored]
    assert set(events.Tags()["scalars"]) == set(wanted)
    for name, values in wanted.items():
        found = events.Scalars(name)
        assert [e.step for e in found] == [step for step, _ in values]
        assert [e.value for e in found] == pytest.approx([value for _, value in values], rel=1e-6)


@pytest.mark.parametrize("lost", [(4, 6), (2, 4, 6)])
def test_after_a_resume_no_step_is_there_twice(tmp_path: Path, lost: tuple[int, ...]) -> None:
    said = tiny(save={"every": 2, "keep": 9})
    go(tmp_path / "run", said)
    for step in lost:  # as if it had been killed before these were written
        folder = tmp_path / "run" / "checkpoints" / f"step-{step:08d}"
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()
    go(tmp_path / "run", said, resume=True)
    assert len(list((tmp_path / "run" / "tensorboard").iterdir())) == 2
    found = read(tmp_path / "run" / "tensorboard").Scalars("loss")
    assert [e.step for e in found] == [1, 2, 3, 4, 5, 6]
    assert [e.value for e in found] == pytest.approx([r.loss for r in read_log(tmp_path / "run")[0]], rel=1e-6)


def test_large_steps_and_odd_names_survive(tmp_path: Path) -> None:
    events = Events(tmp_path, 0)
    events.scalars(3_000_000_000, {"länge 5/loss": -1.5, "nan": float("nan")})
    events.close()
    found = read(tmp_path)
    assert [(e.step, e.value) for e in found.Scalars("länge 5/loss")] == [(3_000_000_000, -1.5)]
    assert found.Scalars("nan")[0].value != found.Scalars("nan")[0].value


def test_what_a_kill_cut_off_does_not_hide_the_rest(tmp_path: Path) -> None:
    events = Events(tmp_path, 0)
    for step in (1, 2):
        events.scalars(step, {"loss": float(step)})
    events.close()
    path = next(tmp_path.iterdir())
    path.write_bytes(path.read_bytes()[:-3])
    assert [e.step for e in read(tmp_path).Scalars("loss")] == [1]
