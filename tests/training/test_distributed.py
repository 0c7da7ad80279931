"""Two processes (torchrun, gloo, FSDP2) compute what one computes, and read each other's checkpoints."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

import vantage as vt
from tests.training.runs import in_torchrun, losses, on_cpu, task, tiny, torchrun
from vantage.errors import BadInput, Refused
from vantage.training import read_log
from vantage.training.checkpoint import steps
from vantage.training.distributed import World, shard
from vantage.training.models import DataFacts, learner_of
from vantage.training.settings import settings_of

CLOSE = {"abs": 1e-5, "rel": 1e-5}

KINDS: dict[str, dict[str, Any]] = {
    "plain": {"save": {"every": 2, "keep": 9}, "evaluate": {"every": 3}},
    # layers that share their bias, one table at both ends, an average, parts, the best kept
    "shared": {
        "model": {"position": "t5", "tied": True},
        "loop": {"accumulate": 2},
        "average": {"decay": 0.8},
        "evaluate": {"every": 2, "best": True},
        "save": {"every": 2, "keep": 9},
    },
}
MORE: dict[str, dict[str, Any]] = {
    "muon": {"optimiser": {"is": "muon", "lr": 0.02}, "save": {"every": 2, "keep": 9}},
    "pairs": {"model": {"is": "encoder_decoder", "width": 16, "layers": 2, "heads": 2, "position": "t5"}},
    "recurrent": {"model": {"is": "recurrent", "width": 16, "attention": "general"}},
    "classes": {"model": {"is": "encoder", "width": 16, "layers": 1, "heads": 2}, "data": {"task": "parity"}},
    "recompute": {"loop": {"recompute": True}, "model": {"position": "t5", "layers": 3}},
    "average": {"average": {"decay": 0.5}, "evaluate": {"every": 1}},
    "numbers": {"model": {"position": "fire"}},  # some of its weights are one number: a process may hold none of them
    "no clip": {"loop": {"clip": 1e6}, "model": {"position": "kerple"}},
}


def alike(one: Path, other: Path) -> None:
    assert losses(one) == pytest.approx(losses(other), **CLOSE)
    (a, scored_a), (b, scored_b) = read_log(one), read_log(other)
    assert [(r.step, r.targets, r.lr) for r in a] == [(r.step, r.targets, r.lr) for r in b]
    assert [r.norm for r in a] == pytest.approx([r.norm for r in b], rel=1e-4)
    assert [(s.step, s.set, s.rows) for s in scored_a] == [(s.step, s.set, s.rows) for s in scored_b]
    assert [s.loss for s in scored_a] == pytest.approx([s.loss for s in scored_b], **CLOSE)


def same_model(one: Path, other: Path) -> None:
    close(vt.load(one / "model"), vt.load(other / "model"))


def close(one: vt.Model, other: vt.Model) -> None:
    a, b = one.state_dict(), other.state_dict()
    assert a.keys() == b.keys()
    for name, value in a.items():
        torch.testing.assert_close(value, b[name], atol=2e-4, rtol=1e-3)  # AdamW's first steps blow rounding up


@pytest.mark.sampled
@pytest.mark.parametrize("kinds", [KINDS, pytest.param(MORE, marks=pytest.mark.slow)], ids=["quick", "more"])
def test_two_processes_give_the_losses_of_one_and_read_each_others_checkpoints(
    tmp_path: Path, kinds: dict[str, dict[str, Any]]
) -> None:
    tasks = []
    for name, kind in kinds.items():
        said = tiny(**kind)
        on_cpu(tmp_path / f"{name} one", said)
        on_cpu(tmp_path / f"{name} from one", said, stop=4)
        tasks += [
            task(tmp_path / f"{name} two", said),
            task(tmp_path / f"{name} from two", said, stop=4),
            task(tmp_path / f"{name} from one", said, resume=True),
        ]
    in_torchrun(tmp_path, 2, tasks)
    for name, kind in kinds.items():
        folder = tmp_path / f"{name} from two"
        at = steps(folder / "checkpoints")[-1]
        assert 0 < at < 6
        last = folder / "checkpoints" / f"step-{at:08d}"
        assert len(list(last.glob("*.safetensors"))) == 2  # each wrote its own
        if (early := folder / "checkpoints" / "step-00000002").is_dir():
            # a checkpoint of two is a model as well, put together from both
            close(vt.load(early), vt.load(tmp_path / f"{name} from one" / "checkpoints" / early.name))
        on_cpu(folder, tiny(**kind), resume=True)
        for other in ("two", "from two", "from one"):
            alike(tmp_path / f"{name} one", tmp_path / f"{name} {other}")
            if name != "recurrent":
                same_model(tmp_path / f"{name} one", tmp_path / f"{name} {other}")


def test_what_cannot_be_shared_out_is_refused_by_name() -> None:
    learner = learner_of(settings_of(tiny()).model, DataFacts(9, 0))
    learner.register_parameter("temperature", torch.nn.Parameter(torch.tensor(1.0)))
    with pytest.raises(Refused, match="temperature is one number, which FSDP2 cannot share out"):
        shard(learner, [], World(0, 2), None)


def test_each_process_makes_its_own_rows() -> None:
    shares = [World(rank, 4).share(range(8, 16)) for rank in range(4)]
    assert [i for share in shares for i in share] == list(range(8, 16))
    with pytest.raises(BadInput, match="9 does not divide among 2"):
        World(0, 2).share(range(9))


@pytest.mark.slow
def test_the_command_line_runs_in_two_processes(tmp_path: Path) -> None:
    settings = tmp_path / "run.toml"
    settings.write_text(
        '[model]\nis = "decoder"\nwidth = 16\nlayers = 2\nheads = 2\n'
        '[data]\nis = "task"\ntask = "copy"\nlengths = [1, 5]\ntest_lengths = [5]\ntest_examples = 8\n'
        '[loop]\nsteps = 6\nbatch = 8\nthreads = 1\n[optimiser]\nis = "adamw"\nlr = 3e-3\n'
    )

    def start(*more: str) -> subprocess.CompletedProcess[str]:
        return torchrun(2, "vantage", "train", str(settings), "--out", str(tmp_path / "two"), "--device", "cpu", *more)

    done = start()
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.count("done: 6 steps") == 1  # only one of them speaks
    on_cpu(tmp_path / "one", tiny())
    alike(tmp_path / "one", tmp_path / "two")
    again = start()
    assert again.returncode != 0
    assert "already holds a run" in again.stderr
    odd = start("loop.batch=9", "--resume")
    assert odd.returncode != 0
