"""An experiment on a Ray cluster of two nodes: the same report as on this machine, whatever dies on the way."""

from __future__ import annotations

import importlib.util
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.compare.ray_nodes import Nodes, environment
from vantage.compare.results import FILE, read_results

if importlib.util.find_spec("ray") is None:
    pytest.skip("Ray is not installed: pip install -c constraints.txt -e '.[ray]'", allow_module_level=True)
pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
FLAGS = [
    *("--positions", "none", "alibi", "--train-length", "6", "--test-lengths", "6", "12", "--seeds", "2"),
    *(
        "--batch",
        "8",
        "--width",
        "16",
        "--layers",
        "1",
        "--heads",
        "2",
        "--steps",
        "1500",
    ),  # long enough to be killed twice
]
REPORT = ("index.html", "scores.csv", "verdicts.csv", "report.json")
DEATH = "a worker died; its runs start again"


def command(out: Path, *flags: str) -> list[str]:
    return [sys.executable, "-m", "vantage", "compare", "--out", str(out), *flags]


@pytest.fixture(scope="module")
def nodes():
    made = Nodes()
    yield made
    made.close()


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """The undisturbed experiment, on this machine alone."""
    out = tmp_path_factory.mktemp("plain") / "out"
    subprocess.run(command(out, *FLAGS, "--workers", "1"), check=True, env=environment(), capture_output=True)
    return out


def same(out: Path, plain: Path) -> None:
    for name in REPORT:
        assert (out / name).read_bytes() == (plain / name).read_bytes(), name


def until(true, process: subprocess.Popen, log: Path, seconds: float = 300) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < end, log.read_text()
        time.sleep(0.05)


def test_a_worker_and_a_whole_node_killed_give_the_same_report(nodes, plain, tmp_path):
    out, log = tmp_path / "out", tmp_path / "log"

    def deaths() -> int:
        return log.read_text().count(DEATH)

    with log.open("w") as err:
        process = subprocess.Popen(
            command(out, *FLAGS, "--on", "ray"),
            env=environment(RAY_ADDRESS=nodes.address),
            stdout=subprocess.DEVNULL,
            stderr=err,
        )
    with process:
        until(lambda: len(nodes.workers()) == 2, process, log)  # one on each node
        nodes.workers()[0].send_signal(signal.SIGKILL)
        until(lambda: deaths() == 1, process, log)
        until(lambda: len(nodes.workers()) == 2, process, log)
        nodes.tell("kill")
        until(lambda: deaths() == 2, process, log)
        assert process.wait(300) == 0, log.read_text()
    same(out, plain)
    nodes.tell("add")


def test_a_command_that_is_killed_is_resumed_from_outside_the_cluster(nodes, plain, tmp_path):
    """Begun on a machine of the cluster, gone on with as its client."""
    out, log = tmp_path / "out", tmp_path / "log"
    with log.open("w") as err:
        process = subprocess.Popen(
            command(out, *FLAGS, "--on", "ray"), env=environment(RAY_ADDRESS=nodes.address), stderr=err
        )
    with process:
        until(lambda: read_results(out / FILE), process, log)
        process.kill()
    kept = (out / FILE).read_bytes()
    assert 1 <= len(read_results(out / FILE)) < 4
    done = subprocess.run(
        command(out, "--resume", "--on", nodes.client), env=environment(), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "trying again" not in done.stderr
    proxy = (nodes.logs / "ray_client_server.err").read_text()  # where gRPC says that it saw a fork
    assert "SpecificServer started" in proxy
    assert "fork" not in proxy
    assert (out / FILE).read_bytes().startswith(kept)  # what was finished was not done again
    same(out, plain)


def test_no_cluster_where_one_was_named(tmp_path):
    done = subprocess.run(
        command(tmp_path / "out", *FLAGS, "--on", "ray"),
        env=environment(RAY_ADDRESS="127.0.0.1:1"),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert "127.0.0.1:1" in done.stderr.strip().splitlines()[-1]


def test_a_gpu_that_the_cluster_does_not_have(nodes, tmp_path):
    done = subprocess.run(
        command(tmp_path / "out", *FLAGS, "--on", "ray", "--device", "cuda"),
        env=environment(RAY_ADDRESS=nodes.address),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert "no GPU" in done.stderr.strip().splitlines()[-1]
