"""``torchrun -m vantage generate | train --tensor-parallel N``, and what happens when a process dies."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import vantage as vt
from tests.processes import ROOT, start
from tests.training.runs import losses
from vantage.training import read_log

LIMIT = 240
SETTINGS = """
[model]
is = "decoder"
width = 32
layers = 2
heads = 4
kv_heads = 2
position = "alibi"
[data]
is = "task"
task = "copy"
lengths = [1, 5]
test_lengths = [5]
test_examples = 8
[loop]
steps = 6
batch = 8
threads = 1
[optimiser]
is = "adamw"
lr = 3e-3
[save]
every = 2
keep = 9
"""


def vantage(processes: int, *words: str) -> subprocess.CompletedProcess[str]:
    torchrun = ["-m", "torch.distributed.run", "--nproc-per-node", str(processes), "--standalone"]
    return subprocess.run(
        [sys.executable, *(torchrun if processes > 1 else ()), "-m", "vantage", *words],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "VANTAGE_NATIVE": "0", "PYTHONWARNINGS": "ignore"},
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )


EXPERTS = """
[model.ffn]
is = "experts"
expert = { is = "feed_forward", hidden = 16 }
count = 4
router = { is = "top_k", k = 2 }
"""


def trained(folder: Path, processes: int, *more: str, settings_text: str = SETTINGS) -> None:
    settings = folder.parent / "run.toml"
    settings.write_text(settings_text)
    shared = ["--tensor-parallel", str(processes)] if processes > 1 else []
    done = vantage(processes, "train", str(settings), "--out", str(folder), "--device", "cpu", *shared, *more)
    assert done.returncode == 0, done.stderr[-4000:]


@pytest.mark.slow
def test_training_over_two_processes_is_that_of_one_and_each_goes_on_from_the_other(tmp_path: Path) -> None:
    trained(tmp_path / "one", 1)
    trained(tmp_path / "two", 2)
    trained(tmp_path / "from two", 2, "--steps", "4")
    trained(tmp_path / "from two", 1, "--steps", "6", "--resume")
    trained(tmp_path / "from one", 1, "--steps", "4")
    trained(tmp_path / "from one", 2, "--steps", "6", "--resume")
    for other in ("two", "from two", "from one"):
        assert losses(tmp_path / other) == pytest.approx(losses(tmp_path / "one"), abs=1e-5, rel=1e-5), other
        norms = [[record.norm for record in read_log(tmp_path / name)[0]] for name in ("one", other)]
        assert norms[1] == pytest.approx(norms[0], rel=1e-4), other
        a, b = vt.load(tmp_path / "one"), vt.load(tmp_path / other)
        assert {n: p.shape for n, p in a.named_parameters()} == {n: p.shape for n, p in b.named_parameters()}


@pytest.mark.slow
def test_two_processes_generate_what_one_does_and_the_first_speaks(tmp_path: Path) -> None:
    trained(tmp_path / "run", 1)
    for more in ([], ["--temperature", "1.0", "--seed", "4"]):
        words = ["generate", str(tmp_path / "run"), "abc", "--max-tokens", "8", "--json", "--dtype", "float32", *more]
        one, two = vantage(1, *words), vantage(2, *words, "--tensor-parallel", "2")
        assert two.returncode == 0, two.stderr[-3000:]
        assert json.loads(two.stdout)["tokens"] == json.loads(one.stdout)["tokens"]
    unseeded = vantage(2, *words[:-4], "--temperature", "1.0", "--tensor-parallel", "2")
    assert unseeded.returncode == 0, unseeded.stderr[-3000:]


def on_two_machines(*words: str) -> list[str]:
    """What each of two torchruns prints that stand for machines with one process each."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "VANTAGE_NATIVE": "0", "PYTHONPATH": str(ROOT)}
    machines = []
    for number in range(2):
        place = ["--nnodes", "2", "--nproc-per-node", "1", "--node-rank", str(number)]
        place += ["--master-addr", "127.0.0.1", "--master-port", str(port)]
        command = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run", *place, *words]
        options: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True, "cwd": ROOT}
        machines.append(start(command, env=environment, **options))
    try:
        printed = [machine.communicate(timeout=LIMIT)[0] for machine in machines]
        assert [machine.returncode for machine in machines] == [0, 0]
        return printed
    finally:
        for machine in machines:
            machine.kill()


@pytest.mark.slow
def test_two_machines_generate_what_one_does_and_decode_a_prompt_that_lies_over_them(tmp_path: Path) -> None:
    trained(tmp_path / "run", 1)
    words = ["generate", str(tmp_path / "run"), "abc", "--max-tokens", "8", "--json", "--dtype", "float32"]
    one = json.loads(vantage(1, *words).stdout)["tokens"]
    first, second = on_two_machines("-m", "vantage", *words, "--tensor-parallel", "2")
    assert json.loads(first)["tokens"] == one
    assert second == ""
    how_to = (ROOT / "docs/how-to/several-machines.md").read_text(encoding="utf-8")
    script = how_to.partition("# torchrun … script.py\n")[2].partition("```")[0]
    book = tmp_path / "book.txt"
    book.write_text("abcabca")
    script = script.replace("my-model", str(tmp_path / "run")).replace("book.txt", str(book)).replace("100", "6")
    (tmp_path / "script.py").write_text(
        script.replace("leave_group()", "print(cache.tokens, int(token))\nleave_group()", 2)
    )
    printed = on_two_machines(str(tmp_path / "script.py"))
    model = vt.load(tmp_path / "run")
    tokens = model.tokenizer.encode("abcabca")
    wanted = vt.generate(model, tokens, max_tokens=7, stop=None).tokens
    assert {line for text in printed for line in text.splitlines()} == {f"({len(tokens) + 6},) {wanted[-1]}"}


@pytest.mark.slow
def test_two_processes_with_whole_experts_generate_what_one_does(tmp_path: Path) -> None:
    trained(tmp_path / "run", 1, settings_text=SETTINGS + EXPERTS)
    words = ["generate", str(tmp_path / "run"), "abc", "--max-tokens", "8", "--json", "--dtype", "float32"]
    one, two = vantage(1, *words), vantage(2, *words, "--tensor-parallel", "2", "--whole-experts")
    assert two.returncode == 0, two.stderr[-3000:]
    assert json.loads(two.stdout)["tokens"] == json.loads(one.stdout)["tokens"]


def test_whole_experts_need_processes_to_lie_on(tmp_path: Path) -> None:
    done = vantage(1, "generate", str(tmp_path), "abc", "--whole-experts")
    assert done.returncode == 2
    assert "--whole-experts says how experts lie over processes: give --tensor-parallel as well" in done.stderr


def test_it_says_how_to_start_as_many_processes_as_it_needs(tmp_path: Path) -> None:
    done = vantage(1, "generate", str(tmp_path), "abc", "--tensor-parallel", "2")
    assert done.returncode == 2
    assert (
        "--tensor-parallel 2 needs 2 processes, and there is 1: start with torchrun --nproc-per-node 2" in done.stderr
    )


# ---- one that dies

WORK = """
import sys, time, torch, torch.distributed as dist
from vantage.errors import VantageError
from vantage.parallel.group import ending_together, join_group, leave_group
try:
    with ending_together():
        join_group("cpu")
        print("joined", flush=True)
        for step in range(10**6):
            if dist.get_rank() == 1 and step == 3 and sys.argv[1] == "raises":
                raise ValueError("the disk is full")
            if sys.argv[1] == "waits" and dist.get_rank() == 0:
                time.sleep(600)  # in no collective that would fail
            dist.all_reduce(torch.ones(4))
            time.sleep(0.05)
except VantageError as e:
    print(e, flush=True)
    sys.exit(3)
"""


def pair(how: str) -> list[subprocess.Popen[str]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    started = []
    for rank in range(2):
        place = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        options: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "cwd": ROOT}
        environment = {**os.environ, **place, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        started.append(start([sys.executable, "-W", "ignore", "-c", WORK, how], env=environment, **options))
    return started


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("raises", "process 1 of 2 ended: ValueError: the disk is full"),
        ("killed", "process 1 of 2 ended without a word"),
        ("waits", "process 1 of 2 ended without a word"),
    ],
)
def test_one_that_dies_ends_the_others_within_thirty_seconds_with_its_reason(how: str, words: str) -> None:
    first, second = pair(how)
    try:
        assert second.stdout is not None
        assert second.stdout.readline() == "joined\n"
        if how != "raises":
            time.sleep(2)
            second.send_signal(signal.SIGKILL)
        second.wait(60)
        begun = time.monotonic()
        report, _ = first.communicate(timeout=60)
        assert time.monotonic() - begun < 30
        assert words in report
        assert first.returncode != 0
    finally:
        for process in (first, second):
            process.kill()
            if process.stdout is not None and not process.stdout.closed:
                process.communicate()
