"""A batch computed in pieces: the same to rounding, chosen by memory, and smaller where memory runs out."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import vantage as vt
from tests.training.runs import Notes, go, losses, same, tiny
from vantage.errors import BadInput, Refused
from vantage.training import Run, micro_batch, read_log
from vantage.training.settings import settings_of

ROOT = Path(__file__).parents[2]
UNEQUAL = {"data": {"is": "task", "task": "copy", "lengths": [1, 12], "test_examples": 4}}


def forced(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    """As if no more rows than these fitted into memory."""
    monkeypatch.setattr(micro_batch, "_estimated", lambda loss, batch, device: rows)


@pytest.mark.parametrize("rows", [1, 3, 5, 8])
def test_pieces_weigh_by_their_targets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    """Rows of 2 to 13 targets: the mean of the pieces' means would be another loss and another gradient."""
    go(tmp_path / "whole", tiny(**UNEQUAL))
    forced(monkeypatch, rows)
    go(tmp_path / "pieces", tiny(**UNEQUAL, loop={"accumulate": "auto"}))
    whole, pieces = (read_log(tmp_path / name)[0] for name in ("whole", "pieces"))
    assert [r.targets for r in whole] == [r.targets for r in pieces]
    assert [r.loss for r in pieces] == pytest.approx([r.loss for r in whole], rel=1e-5)
    assert [r.norm for r in pieces] == pytest.approx([r.norm for r in whole], rel=1e-4)


def test_the_mean_of_means_would_be_seen(tmp_path: Path) -> None:
    """The test above can fail: the wrong way differs by far more than rounding."""
    run = Run(settings_of(tiny(**UNEQUAL)), tmp_path / "run")
    batch = run.opened.data.batch(range(8))
    weights = [p for p in run.model.parameters() if p.requires_grad]

    def gradient(losses: list[torch.Tensor]) -> torch.Tensor:
        grads = torch.autograd.grad(torch.stack(losses).mean(), weights)
        return torch.cat([grad.flatten() for grad in grads])

    right = gradient([run.loop.state.loss(batch) / batch.target_count])
    wrong = gradient([run.loop.state.loss(piece) / piece.target_count for piece in batch.split(3)])
    assert float((wrong - right).norm()) > 1e-2 * float(right.norm())


def test_own_data_of_unequal_length_in_explicit_parts(tmp_path: Path) -> None:
    rows = [[1, 2], [3, 4, 5, 6, 7, 8, 9], [2, 3, 4], [5, 4, 3, 2, 1, 0, 9, 8, 7]]
    spec = vt.decoder(vocab=16, width=16, layers=1, heads=2)
    for name, parts in (("one", 1), ("four", 4), ("auto", "auto")):
        more: Any = {"settings": {"loop": {"threads": 1}}, "device": "cpu", "steps": 5, "batch_size": 4}
        vt.train(spec, rows, gradient_accumulation_steps=parts, out=tmp_path / name, **more)  # pyright: ignore[reportArgumentType]
    assert losses(tmp_path / "four") == pytest.approx(losses(tmp_path / "one"), rel=1e-5)
    assert losses(tmp_path / "auto") == losses(tmp_path / "one")  # it fits at once


@pytest.mark.parametrize(
    "model",
    [
        {"is": "encoder_decoder", "width": 16, "layers": 1, "heads": 2},
        {"is": "decoder", "width": 16, "layers": 1, "heads": 2, "bidirectional": True},
    ],
    ids=["pairs", "positions"],
)
def test_pieces_carry_sources_and_positions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: dict[str, Any]
) -> None:
    data = {"is": "task", "task": "parity", "lengths": [1, 9], "test_examples": 4}
    go(tmp_path / "whole", tiny(model=model, data=data))
    forced(monkeypatch, 3)
    go(tmp_path / "pieces", tiny(model=model, data=data, loop={"accumulate": "auto"}))
    assert losses(tmp_path / "pieces") == pytest.approx(losses(tmp_path / "whole"), rel=1e-5)


def test_the_choice_is_said_and_kept_when_a_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = tiny(loop={"accumulate": "auto"})
    forced(monkeypatch, 3)
    notes = Notes()
    go(tmp_path / "whole", said, report=notes)
    assert notes.notes == ["a batch of 8 rows is computed in 3 parts of up to 3, as fits memory"]
    go(tmp_path / "parts", said, stop=3)
    forced(monkeypatch, 8)  # there is more room now, and the run computes what it would have computed
    go(tmp_path / "parts", said, resume=True)
    same(tmp_path / "whole", tmp_path / "parts")


def test_the_estimate_follows_the_free_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(settings_of(tiny(loop={"batch": 64})), tmp_path / "run")
    state = run.loop.state
    batch, device = run.opened.data.batch(range(64)), torch.device("cpu")

    def fits() -> int:
        return micro_batch.rows_that_fit(state.loss, batch, device, state.optimiser.zero_grad)

    each = micro_batch._saved(state.loss, batch, 2, device) - micro_batch._saved(state.loss, batch, 1, device)
    width = batch.tokens.shape[1]
    assert each > width * 16 * 4  # at least one state of every token
    needed = each * micro_batch.BACKWARD / micro_batch.CPU_SHARE
    for room, rows in ((100, 64), (64, 64), (40, 32), (7, 7), (0.5, 1)):
        monkeypatch.setattr(micro_batch, "free_memory", lambda room=room: int(room * needed) + 1)
        assert fits() == rows
    monkeypatch.setattr(micro_batch, "free_memory", lambda: None)
    assert fits() == 64
    monkeypatch.undo()
    assert (micro_batch.free_memory() or 0) > 2**20


SMALL_MEMORY = """
import resource, sys
import torch
from tests.training.runs import Notes, tiny
from vantage.training import Run, micro_batch, read_log
from vantage.training.settings import settings_of

torch.set_num_threads(1)
data = {"is": "task", "task": "copy", "lengths": [200, 200], "test_lengths": [4], "test_examples": 2}
accumulate = "auto" if sys.argv[2] == "auto" else 1
said = tiny(model={"width": 64}, data=data, loop={"batch": 64, "accumulate": accumulate, "steps": 2})
notes = Notes()
run = Run(settings_of(said), sys.argv[1], report=notes)
run.loop.state.ahead = False  # no other thread, whose stack would count
micro_batch.free_memory = lambda: None  # begin with all of it, to see it fail
needed = micro_batch._saved(run.loop.state.loss, run.opened.data.batch(range(64)), 64, torch.device("cpu"))
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + int(0.9 * needed), resource.RLIM_INFINITY))
try:
    run.go()
except Exception as e:
    print(type(e).__name__, e)
    sys.exit(3)
print([r.loss for r in read_log(sys.argv[1])[0]])
print(*notes.notes, sep="\\n")
"""


@pytest.mark.sampled
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs a limit on a process's memory")
def test_when_memory_runs_out_the_pieces_are_halved(tmp_path: Path) -> None:
    """A real limit on the process: torch cannot allocate, and the run goes on with less at a time."""

    def run(name: str, accumulate: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", SMALL_MEMORY, str(tmp_path / name), accumulate]
        env = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        return subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, timeout=300)

    done = run("auto", "auto")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "out of memory with 64 rows at a time: continuing with 32" in done.stdout
    data = {"is": "task", "task": "copy", "lengths": [200, 200], "test_lengths": [4], "test_examples": 2}
    go(tmp_path / "whole", tiny(model={"width": 64}, data=data, loop={"batch": 64, "steps": 2}))
    assert losses(tmp_path / "auto") == pytest.approx(losses(tmp_path / "whole"), rel=1e-5)
    refused = run("one", "1")
    assert refused.returncode == 3
    assert "Refused out of memory with 64 rows at a time: set loop.accumulate to 'auto'" in refused.stdout


# ---- a batch in tokens


def test_a_batch_in_tokens(tmp_path: Path) -> None:
    rows = [[1] * 11 for _ in range(30)]
    spec = vt.decoder(vocab=16, width=16, layers=1, heads=2)
    more: Any = {"settings": {"loop": {"threads": 1}}, "device": "cpu", "steps": 2}
    vt.train(spec, rows, batch_tokens=65, out=tmp_path / "run", **more)
    assert {record.targets for record in read_log(tmp_path / "run")[0]} == {60}  # 6 rows of 10
    vt.train(spec, rows, batch_tokens=65, gradient_accumulation_steps=4, out=tmp_path / "parts", **more)
    assert {record.targets for record in read_log(tmp_path / "parts")[0]} == {40}
    with pytest.raises(Refused, match="a batch in tokens needs data with a length"):
        vt.train(spec, iter(rows), batch_tokens=65, out=tmp_path / "none", **more)


def test_what_accumulate_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="wanted int or 'auto'"):
        settings_of(tiny(loop={"accumulate": "some"}))
    with pytest.raises(BadInput, match="accumulate=0: give at least 1"):
        settings_of(tiny(loop={"accumulate": 0}))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_is_measured_and_what_is_chosen_fits(tmp_path: Path) -> None:
    """With a bound on what the process may take: fewer rows at a time, and the losses of a batch that fits whole."""
    data = {"is": "task", "task": "copy", "lengths": [200, 200], "test_lengths": [4], "test_examples": 2}
    said = tiny(model={"width": 256, "layers": 4}, data=data, loop={"batch": 512, "steps": 2})
    go(tmp_path / "whole", said, device="cuda")
    most = torch.cuda.max_memory_allocated()
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(0.4 * most / torch.cuda.get_device_properties(0).total_memory)
    try:
        notes = Notes()
        said["loop"]["accumulate"] = "auto"
        go(tmp_path / "pieces", said, device="cuda", report=notes)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert notes.notes[0].startswith("a batch of 512 rows is computed in ")
    assert losses(tmp_path / "pieces") == pytest.approx(losses(tmp_path / "whole"), rel=1e-4)
