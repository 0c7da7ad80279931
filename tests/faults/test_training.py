"""Training that is killed, starved of disk, interrupted or fed a bad batch: real processes, real signals."""

from __future__ import annotations

import json
import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests import processes
from tests.processes import PATIENCE
from tests.training.runs import curve, go, losses, same, tiny
from vantage.cli.main import main
from vantage.errors import CheckpointError
from vantage.training import Run, read_log, read_settings
from vantage.training.batch import Batch
from vantage.training.checkpoint import steps
from vantage.training.divergence import Diverged, GuardSettings, LossMonitor
from vantage.training.settings import settings_of

ROOT = Path(__file__).parents[2]
SETTINGS = """\
[model]
is = "decoder"
width = 16
layers = 1
heads = 2
dropout = 0.1
position = {is = "randomised", inner = {is = "rope"}, high = 64}

[data]
is = "task"
task = "copy"
lengths = [1, 5]
test_examples = 8

[loop]
steps = 60
batch = 8
threads = 1
accumulate = 2

[optimiser]
is = "muon"

[average]
decay = 0.9

[evaluate]
every = 7
best = true

[save]
every = 2
"""


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    path = tmp_path / "run.toml"
    path.write_text(SETTINGS)
    return path


def start(settings: Path, out: Path, *more: str, shell: str = "") -> subprocess.Popen[str]:
    """`vantage train` as a user starts it; ``shell`` wraps it in a command of a shell."""
    words = [sys.executable, "-m", "vantage", "train", str(settings), "--out", str(out), *more]
    words = ["sh", "-c", f'{shell} exec "$@"', "sh", *words] if shell else words
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    return processes.start(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def number_of(path: Path) -> int | None:
    return path.stat().st_ino if path.exists() else None


def wait_for_lines(process: subprocess.Popen[str], out: Path, before: int | None, n: int) -> None:
    """Until the process has a log of its own (a resumed run writes a new file) with this many lines, or has ended."""
    log, deadline = out / "log.jsonl", time.monotonic() + PATIENCE
    while process.poll() is None and time.monotonic() < deadline:
        if number_of(log) not in (None, before) and log.read_bytes().count(b"\n") >= n:
            return
        time.sleep(0.002)


def uninterrupted(settings: Path, folder: Path, *changes: str) -> None:
    Run(read_settings(settings, changes)[0], folder).go()


# ---- kill -9


def killed_over_and_over(settings: Path, tmp_path: Path, times: int, seed: int, *changes: str) -> None:
    """Killed this many times, at random moments: while it starts, while it computes, while it saves."""
    chance = random.Random(seed)
    uninterrupted(settings, tmp_path / "whole", *changes)
    out, reached = tmp_path / "run", list[int]()
    for _ in range(times):
        before, kept = number_of(out / "log.jsonl"), steps(out / "checkpoints")
        resume = ["--resume"] if out.exists() else []
        process = start(settings, out, *changes, f"save.every={chance.randint(1, 3)}", *resume)
        if times > 3 and chance.random() < 0.2:
            time.sleep(chance.random() * 5)
        else:
            wait_for_lines(process, out, before, (kept[-1] if kept else 0) + chance.randint(1, 8))
            time.sleep(chance.random() * 0.03)
        process.kill()
        process.communicate()
        assert process.returncode in (-signal.SIGKILL, 0)
        reached.append(steps(out / "checkpoints")[-1] if steps(out / "checkpoints") else 0)
    assert reached == sorted(reached)  # nothing that was saved is ever lost
    assert reached[-1] > 0
    process = start(settings, out, *changes, "--resume")
    said, error = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, error
    assert "done: " in said
    same(tmp_path / "whole", out)
    assert list(out.rglob("*.part")) == []


@pytest.mark.sampled
def test_killed_runs_go_on_to_the_bit(settings: Path, tmp_path: Path) -> None:
    killed_over_and_over(settings, tmp_path, 3, 0, "loop.steps=40")


@pytest.mark.slow
def test_killed_twenty_times_a_run_goes_on_to_the_bit(settings: Path, tmp_path: Path) -> None:
    killed_over_and_over(settings, tmp_path, 20, 1, "loop.steps=200")


# ---- a disk that is full


def said_clearly(code: int, error: str) -> None:
    assert code == 2, error
    lines = [line for line in error.splitlines() if line.startswith("vantage: ")]
    assert len(lines) == 1
    assert "Traceback" not in error
    assert "free some space and continue with --resume" in lines[0]


@pytest.mark.sampled
def test_a_file_that_cannot_grow_is_said_clearly_and_the_checkpoint_before_still_loads(
    settings: Path, tmp_path: Path
) -> None:
    """RLIMIT_FSIZE: the kernel itself refuses to write more."""
    out = tmp_path / "run"
    uninterrupted(settings, tmp_path / "whole", "loop.steps=12")
    uninterrupted(settings, out, "loop.steps=5")
    size = max(path.stat().st_size for path in (out / "checkpoints").rglob("*.safetensors"))
    process = start(settings, out, "loop.steps=12", "--resume", shell=f"ulimit -f {size // 512 // 2};")
    error = process.communicate(timeout=PATIENCE)[1]
    said_clearly(process.returncode, error)
    assert "could not be written" in error
    assert steps(out / "checkpoints")[-1] == 5
    assert list(out.rglob("*.part")) == []
    Run(read_settings(settings, ["loop.steps=12"])[0], out, resume=True).go()
    assert losses(tmp_path / "whole") == losses(out)


@pytest.mark.sampled
def test_a_full_disk_is_said_clearly_and_the_checkpoint_before_still_loads(settings: Path, tmp_path: Path) -> None:
    """A real file system with no room left, where the system lets us mount one."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = f"mount -t tmpfs -o size=100k none {disk}"
    try:
        able = subprocess.run(["unshare", "-rm", "sh", "-c", mount], capture_output=True, check=False).returncode == 0
    except OSError:
        able = False
    if not able:
        pytest.skip("file systems cannot be mounted here")
    out, after = disk / "run", tmp_path / "after"
    words = f"{sys.executable} -m vantage train {settings} --out {out} save.every=1 save.keep=9"
    # what is on the disk is gone with the mount: it is copied out once the run has ended
    script = f"{mount} && {words}; code=$?; df {disk} >&2; cp -r {out} {after}; exit $code"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", script], env=environment, capture_output=True, text=True, check=False
    )
    said_clearly(done.returncode, done.stderr)
    assert "No space left" in done.stderr
    assert steps(after / "checkpoints")
    uninterrupted(settings, tmp_path / "whole", "loop.steps=20")
    Run(read_settings(settings, ["loop.steps=20"])[0], after, resume=True).go()
    same(tmp_path / "whole", after)


# ---- Ctrl-C


@pytest.mark.sampled
def test_an_interrupt_saves_says_how_to_go_on_and_going_on_gives_the_same(settings: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    uninterrupted(settings, tmp_path / "whole", "save.every=0")
    process = start(settings, out, "save.every=0")
    wait_for_lines(process, out, None, 3)
    process.send_signal(signal.SIGINT)
    said, error = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130, error
    assert "stopping after this step" in error
    at = steps(out / "checkpoints")
    assert len(at) == 1
    assert 3 <= at[0] < 60
    assert (
        f"saved after {at[0]} steps; continue with: vantage train {settings} save.every=0 --out {out} --resume" in said
    )
    words = shlex.split(said.partition("continue with: ")[2])
    assert main(words[1:]) == 0
    same(tmp_path / "whole", out)


# ---- a loss that is no number, and one that jumps


def spoil(run: Run, step: int, value: float) -> None:
    """In this step the loss is multiplied by a number."""
    sound, calls = run.loop.state.loss, iter(range(1, 1 << 30))

    def loss(batch: Batch) -> torch.Tensor:
        return sound(batch) * (value if next(calls) == step else 1.0)

    run.loop.state.loss = loss


@pytest.mark.parametrize(("value", "says"), [(float("nan"), "the loss is nan"), (float("inf"), "the loss is inf")])
def test_a_loss_that_is_no_number_stops_the_run_with_the_batch_saved(tmp_path: Path, value: float, says: str) -> None:
    said = tiny(save={"every": 2})
    run = Run(settings_of(said), tmp_path / "run")
    spoil(run, 5, value)
    with pytest.raises(Diverged) as caught:
        run.go()
    assert f"stopped at step 5: {says}" in str(caught.value)
    assert "the last checkpoint is of step 4" in str(caught.value)
    bad = tmp_path / "run" / "bad" / "step-00000005.safetensors"
    assert str(bad) in str(caught.value)
    wanted = run.opened.data.batch(range(32, 40))
    found = load_file(bad)
    assert found["0.tokens"].equal(wanted.tokens)
    assert found["0.targets"].equal(wanted.targets)
    assert json.loads(bad.with_suffix(".json").read_text()) == {"step": 5, "why": says}
    assert len(losses(tmp_path / "run")) == 4  # the bad step is not in the log
    go(tmp_path / "run", said, resume=True)
    go(tmp_path / "whole", said)
    same(tmp_path / "whole", tmp_path / "run")


def test_a_jump_stops_the_run(tmp_path: Path) -> None:
    said = tiny(loop={"steps": 120, "batch": 2}, save={"every": 50}, guard={"spike": 3.0})
    run = Run(settings_of(said), tmp_path / "run")
    spoil(run, 110, 10.0)
    with pytest.raises(Diverged, match=r"stopped at step 110: the loss jumped to .* .guard.spike = 3.0"):
        run.go()
    assert steps(tmp_path / "run" / "checkpoints")[-1] == 100
    assert go(tmp_path / "run", said, resume=True).step == 120


def test_who_goes_on_watches_as_before(tmp_path: Path) -> None:
    """The losses that a jump is measured against come from the log."""
    said = tiny(loop={"steps": 120, "batch": 2}, guard={"spike": 3.0})
    go(tmp_path / "run", said, stop=105)
    run = Run(settings_of(said), tmp_path / "run", resume=True)
    spoil(run, 1, 10.0)
    with pytest.raises(Diverged, match="stopped at step 106"):
        run.go()


def test_what_the_watchman_lets_through() -> None:
    watch = LossMonitor(GuardSettings(spike=2.0), [1.0] * 99)
    assert watch.problem(50.0, 1.0) is None  # too few to know what is usual
    assert watch.problem(2.9, 1.0) is None
    assert watch.problem(3.1, 1.0) is not None
    assert watch.problem(3.1, 1.0) is not None  # what was refused is not usual
    assert LossMonitor(GuardSettings(spike=0.0), [1.0] * 100).problem(1e9, 1.0) is None
    assert watch.problem(1.0, float("inf")) == "the gradient's norm is inf"


def test_a_rate_that_is_far_too_large_ends_with_one_line_and_exit_code_2(
    settings: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    wild = ["optimiser={is='adamw', lr=1e18}", "loop.clip=1e18", "model.dropout=0.0"]
    assert main(["train", str(settings), *wild, "--out", str(out)]) == 2
    error = capsys.readouterr().err
    last = error.splitlines()[-1]
    assert last.startswith("vantage: stopped at step ")
    assert "Start again with a lower optimiser.lr" in last
    assert "Traceback" not in error
    assert list((out / "bad").glob("*.safetensors"))
    for step in steps(out / "checkpoints"):
        settings_, _ = read_settings(settings, [*wild, f"loop.steps={step}"])
        copy = tmp_path / f"copy-{step}"
        shutil.copytree(out, copy)
        assert Run(settings_, copy, resume=True).go().step == steps(copy / "checkpoints")[-1]


# ---- the log


def test_a_log_that_cannot_be_written_is_said_clearly(tmp_path: Path) -> None:
    said = tiny()
    go(tmp_path / "run", said, stop=3)
    before = curve(tmp_path / "run")
    tensorboard = tmp_path / "run" / "tensorboard"
    shutil.rmtree(tensorboard)
    tensorboard.write_text("in the way")
    with pytest.raises(CheckpointError, match=r"the log in .* could not be written"):
        go(tmp_path / "run", said, resume=True)
    assert curve(tmp_path / "run") == before
    tensorboard.unlink()
    go(tmp_path / "run", said, resume=True)
    assert [r.step for r in read_log(tmp_path / "run")[0]] == [1, 2, 3, 4, 5, 6]
