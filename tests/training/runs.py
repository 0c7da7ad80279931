"""Runs that take a second, for the tests of training."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor

from vantage.training import Run, Trained, read_log
from vantage.training.checkpoint import steps
from vantage.training.settings import settings_of

ROOT = Path(__file__).parents[2]


def tiny(**sections: Any) -> dict[str, Any]:
    """Settings of a small decoder that copies; a section given here is laid over that."""
    said: dict[str, Any] = {
        "model": {"is": "decoder", "width": 16, "layers": 2, "heads": 2},
        "data": {"is": "task", "task": "copy", "lengths": [1, 5], "test_lengths": [5], "test_examples": 8},
        "loop": {"steps": 6, "batch": 8, "threads": 1},
        "optimiser": {"is": "adamw", "lr": 3e-3},
    }
    for name, section in sections.items():
        own = said.get(name)
        merge = (
            isinstance(own, dict) and isinstance(section, dict) and section.get("is", own.get("is")) == own.get("is")
        )
        said[name] = own | section if merge else section
    return said


def go(folder: Path, said: dict[str, Any], *, resume: bool = False, stop: int | None = None, **more: Any) -> Trained:
    """Run it; ``stop``: as if somebody pressed Ctrl-C in that step."""
    run = Run(settings_of(said), folder, table=said, resume=resume, **more)
    if stop is not None:
        run.loop.report = StopsAt(run, stop)
    return run.go()


on_cpu = functools.partial(go, device="cpu")  # to compare with processes, which share no GPU


def task(folder: Path, said: dict[str, Any], *, resume: bool = False, stop: int | None = None) -> dict[str, Any]:
    """A run for ``in_torchrun``."""
    return {"folder": str(folder), "said": said, "resume": resume, "stop": stop}


def in_torchrun(folder: Path, processes: int, tasks: list[dict[str, Any]]) -> None:
    """Run these in so many processes, one after the other."""
    file = folder / "tasks.json"
    file.write_text(json.dumps(tasks))
    done = torchrun(processes, "tests.training.spread", str(file))
    assert done.returncode == 0, done.stderr[-6000:]


def torchrun(processes: int, module: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a module in so many processes, and wait for its end."""
    started = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(processes), "--standalone"]
    return subprocess.run(
        [*started, "-m", module, *words],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


class StopsAt:
    """A report that says stop after a step."""

    def __init__(self, run: Run, step: int):
        self.run, self.step = run, step

    def begun(self, step: int, steps: int, about: str) -> None:
        self.run.loop.stop = step == self.step - 1

    def scored(self, records: list[Any]) -> None: ...
    def saved(self, where: Path) -> None: ...
    def note(self, text: str) -> None: ...

    def stepped(self, record: Any) -> None:
        if record.step == self.step - 1:  # it is asked for while the next is under way
            self.run.loop.stop = True


class Notes:
    """A report that keeps what it is told."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.saves: list[Path] = []

    def begun(self, step: int, steps: int, about: str) -> None: ...
    def stepped(self, record: Any) -> None: ...
    def scored(self, records: list[Any]) -> None: ...

    def saved(self, where: Path) -> None:
        self.saves.append(where)

    def note(self, text: str) -> None:
        self.notes.append(text)


def losses(folder: Path) -> list[float]:
    return [record.loss for record in read_log(folder)[0]]


def curve(folder: Path) -> list[tuple[Any, ...]]:
    """All that the log says, times apart."""
    stepped, scored = read_log(folder)
    said: list[tuple[Any, ...]] = [(r.step, r.loss, r.lr, r.norm, r.targets) for r in stepped]
    return said + [(s.step, s.set, s.loss, s.tokens, s.exact, s.rows, tuple(s.groups.items())) for s in scored]


def tensors(folder: Path) -> dict[str, Tensor]:
    """Every tensor of the last checkpoint and of the model that was kept."""
    last = folder / "checkpoints" / f"step-{steps(folder / 'checkpoints')[-1]:08d}"
    found: dict[str, Tensor] = {}
    for place in (last, folder / "model"):
        for path in sorted(place.glob("*.safetensors")):
            found |= {f"{place.name}/{name}": value for name, value in load_file(path).items()}
    return found


def same(one: Path, other: Path) -> None:
    """Two runs that computed the same, to the bit."""
    assert curve(one) == curve(other)
    a, b = tensors(one), tensors(other)
    assert a.keys() == b.keys()
    assert any(name.startswith("model/") for name in a)
    assert [name for name in a if not a[name].equal(b[name])] == []
