"""A run that was stopped and goes on computes what it would have computed, to the bit."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import vantage as vt
from tests.training.runs import Notes, curve, go, losses, same, tensors, tiny
from vantage.errors import BadInput, CheckpointError
from vantage.training import read_log
from vantage.training.text import Bytes

HARD: dict[str, Any] = {
    "model": {"position": {"is": "randomised", "inner": {"is": "rope"}, "high": 64}, "dropout": 0.2},
    "loop": {"steps": 10, "accumulate": 2},
    "schedule": {"is": "cosine", "warmup": 3},
    "evaluate": {"every": 3, "best": True},
    "average": {"decay": 0.9},
    "optimiser": {"is": "muon", "lr": 0.02},
    "save": {"every": 4},
}
RECURRENT = {"model": {"is": "recurrent", "width": 16, "layers": 2, "dropout": 0.2, "attention": "additive"}}
PAIRS = {"model": {"is": "encoder_decoder", "width": 16, "layers": 1, "heads": 2, "position": "t5", "dropout": 0.1}}


@pytest.mark.sampled
@pytest.mark.parametrize(
    "changed", [HARD, RECURRENT, PAIRS, {"loop": {"recompute": True}}], ids=["hard", "recurrent", "pairs", "recompute"]
)
def test_stopped_anywhere_it_goes_on_to_the_bit(tmp_path: Path, changed: dict[str, Any]) -> None:
    said = tiny(**changed)
    steps = said["loop"]["steps"]
    go(tmp_path / "whole", said)
    at = [2, 3, steps - 2]
    stopped = go(tmp_path / "parts", said, stop=at[0])
    assert (stopped.step, stopped.finished, stopped.kept) == (at[0], False, None)
    for step in at[1:]:
        assert go(tmp_path / "parts", said, resume=True, stop=step).step == step
    done = go(tmp_path / "parts", said, resume=True)
    assert (done.step, done.finished) == (steps, True)
    same(tmp_path / "whole", tmp_path / "parts")
    assert [r.step for r in read_log(tmp_path / "parts")[0]] == list(range(1, steps + 1))  # none twice


def test_what_was_done_after_the_last_checkpoint_is_done_again(tmp_path: Path) -> None:
    said = tiny(save={"every": 2, "keep": 5}, evaluate={"every": 1})
    go(tmp_path / "whole", said)
    go(tmp_path / "run", said)
    for step in (4, 6):
        _remove(tmp_path / "run" / "checkpoints" / f"step-{step:08d}")
    with (tmp_path / "run" / "log.jsonl").open("a") as log:
        log.write('{"kind": "step", "step": 9, "lo')  # cut short by a kill
    done = go(tmp_path / "run", said, resume=True)
    assert done.step == 6
    same(tmp_path / "whole", tmp_path / "run")


def _remove(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()


def test_going_on_with_a_finished_run_changes_nothing(tmp_path: Path) -> None:
    said = tiny()
    first = go(tmp_path / "run", said)
    before = curve(tmp_path / "run"), {name: t.clone() for name, t in tensors(tmp_path / "run").items()}
    again = go(tmp_path / "run", said, resume=True)
    assert (again.finished, again.step, again.scores) == (True, first.step, first.scores)
    assert curve(tmp_path / "run") == before[0]
    assert all(t.equal(before[1][name]) for name, t in tensors(tmp_path / "run").items())


def test_a_run_can_go_on_for_longer(tmp_path: Path) -> None:
    go(tmp_path / "run", tiny(loop={"steps": 3}))
    go(tmp_path / "run", tiny(loop={"steps": 6}), resume=True)
    go(tmp_path / "whole", tiny(loop={"steps": 6}))
    assert losses(tmp_path / "run") == losses(tmp_path / "whole")
    assert json.loads((tmp_path / "run" / "settings.json").read_text())["loop"]["steps"] == 6


def test_other_settings_are_refused_and_leave_the_run_as_it_was(tmp_path: Path) -> None:
    go(tmp_path / "run", tiny(), stop=3)
    before = {p: p.read_bytes() for p in sorted((tmp_path / "run").rglob("*")) if p.is_file()}
    for other in ({"seed": 1}, {"model": {"width": 32}}, {"loop": {"batch": 4}}, {"optimiser": {"lr": 1.0}}):
        with pytest.raises(BadInput, match="other settings"):
            go(tmp_path / "run", tiny(**other), resume=True)
    assert {p: p.read_bytes() for p in sorted((tmp_path / "run").rglob("*")) if p.is_file()} == before


def test_data_that_have_changed_are_refused_and_moved_ones_are_not(tmp_path: Path) -> None:
    """A run that went on with other data would be neither the one nor the other."""
    text = tmp_path / "text.txt"
    text.write_text("to be or not to be, that is the question. " * 40)
    data = {"is": "text", "files": str(text), "length": 16}
    go(tmp_path / "run", tiny(data=data), stop=2)
    before = text.read_text()
    text.write_text(before[:-3] + "ok.")
    with pytest.raises(BadInput, match="run on other data: a file that \\[data\\] names has changed"):
        go(tmp_path / "run", tiny(data=data), resume=True)
    text.write_text(before)
    assert go(tmp_path / "run", tiny(data=data), resume=True).finished


def test_a_folder_that_holds_a_run_is_refused_without_resume_and_one_that_does_not_with_it(tmp_path: Path) -> None:
    go(tmp_path / "run", tiny(), stop=2)
    with pytest.raises(BadInput, match="already holds a run: continue it"):
        go(tmp_path / "run", tiny())
    with pytest.raises(BadInput, match="there is no run"):
        go(tmp_path / "none", tiny(), resume=True)
    assert not (tmp_path / "none").exists()


# ---- a checkpoint that is not what it was


def shard(folder: Path) -> Path:
    return next(folder.glob("*.safetensors"))


def cut(folder: Path) -> None:
    path = shard(folder)
    path.write_bytes(path.read_bytes()[:-7])


def flip(folder: Path) -> None:
    path = shard(folder)
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)


def lose(folder: Path) -> None:
    shard(folder).unlink()


def scribble(folder: Path) -> None:
    (folder / "state.json").write_text('{"step": 4,')


def lose_state(folder: Path) -> None:
    (folder / "state.json").unlink()


def another_step(folder: Path) -> None:
    path = folder / "state.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"step": 3}))


def no_seals(folder: Path) -> None:
    path = folder / "state.json"
    state = json.loads(path.read_text())
    path.write_text(json.dumps(state | {"files": {name: {} for name in state["files"]}}))


def a_list(folder: Path) -> None:
    (folder / "state.json").write_text("[]")


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (cut, "should have"),
        (flip, "its checksum differs"),
        (lose, "is missing"),
        (scribble, "state.json cannot be read"),
        (lose_state, "state.json cannot be read"),
        (another_step, "state.json is of step 3"),
        (no_seals, "does not say the size"),
        (a_list, "state.json cannot be read"),
    ],
)
def test_damage_is_named_and_the_checkpoint_before_still_loads(tmp_path: Path, damage: Any, says: str) -> None:
    said = tiny(save={"every": 2})
    go(tmp_path / "whole", said)
    go(tmp_path / "run", said, stop=4)
    last = tmp_path / "run" / "checkpoints" / "step-00000004"
    damage(last)
    with pytest.raises(CheckpointError) as caught:
        go(tmp_path / "run", said, resume=True)
    assert says in str(caught.value)
    assert str(last) in str(caught.value)
    assert "Remove that folder" in str(caught.value)
    for path in last.iterdir():
        path.unlink()
    last.rmdir()
    go(tmp_path / "run", said, resume=True)
    same(tmp_path / "whole", tmp_path / "run")


def test_what_a_kill_leaves_half_done_is_cleared_away(tmp_path: Path) -> None:
    go(tmp_path / "run", tiny(save={"every": 2}), stop=3)
    for left in ("step-00000004.part", "step-00000001.old.part"):
        (tmp_path / "run" / "checkpoints" / left).mkdir()
        (tmp_path / "run" / "checkpoints" / left / "shard").write_text("half")
    notes = Notes()
    go(tmp_path / "run", tiny(save={"every": 2}), resume=True, report=notes)
    left = sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())
    assert left == ["step-00000004", "step-00000006"]


def test_a_kill_between_an_early_end_and_the_model_leaves_the_same_model(tmp_path: Path) -> None:
    said = tiny(loop={"steps": 40}, evaluate={"every": 2, "patience": 1}, optimiser={"lr": 0.5}, guard={"spike": 0.0})
    done = go(tmp_path / "whole", said)
    assert done.step < 40
    go(tmp_path / "run", said)
    for path in (tmp_path / "run" / "model").iterdir():
        path.unlink()  # as if the kill had come before it was written
    again = go(tmp_path / "run", said, resume=True)
    assert again.step == done.step
    same(tmp_path / "whole", tmp_path / "run")


def test_nothing_in_a_run_is_a_pickle(tmp_path: Path) -> None:
    go(tmp_path / "run", tiny(**HARD))
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert len(files) > 8
    for path in files:
        assert path.suffix in (".safetensors", ".json", ".jsonl") or ".tfevents." in path.name
        head = path.read_bytes()[:4]
        assert not head.startswith((b"\x80", b"PK"))  # a pickle, and the zip that torch.save makes


def test_a_checkpoint_of_an_adapter_leaves_out_what_is_not_trained(tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text("".join(json.dumps({"prompt": f"{n}+", "answer": "yes"}) + "\n" for n in range(20)))

    def base(seed: int) -> Path:
        model = vt.build(vt.decoder(vocab=256, width=16, layers=2, heads=2, max_length=32), seed=seed)
        model.tokenizer = Bytes().build()
        vt.save(model, tmp_path / "base")
        return tmp_path / "base"

    model = {"is": "loaded", "source": str(base(0)), "lora": {"rank": 2}}
    data = {"is": "prompts", "files": str(file), "length": 16}
    said = tiny(model=model, data=data, evaluate={"every": 2, "best": True}, save={"every": 2})
    go(tmp_path / "whole", said)
    go(tmp_path / "parts", said, stop=3)
    kept = tensors(tmp_path / "parts")
    weights = [name for name in kept if "/model." in name]
    assert weights
    assert all(".parts." in name for name in weights)
    shutil.rmtree(tmp_path / "base")
    base(1)
    with pytest.raises(CheckpointError, match="adapts another model"):
        go(tmp_path / "parts", said, resume=True)
    shutil.rmtree(tmp_path / "base")
    base(0)
    go(tmp_path / "parts", said, resume=True)
    same(tmp_path / "whole", tmp_path / "parts")
