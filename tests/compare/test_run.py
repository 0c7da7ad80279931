"""An experiment from its settings to its report: refused early, killed, resumed, the same."""

from __future__ import annotations

import os
import sys
import threading

import psutil
import pytest
import torch

from tests.processes import PATIENCE, start, until
from vantage.cli.main import main
from vantage.compare.entries import ModelShape
from vantage.compare.executors import LocalBackend
from vantage.compare.experiment import Experiment, expand_positions, read_experiment
from vantage.compare.results import FILE, read_results
from vantage.compare.run import SilentObserver, fit_budget, run_experiment
from vantage.errors import BadInput

SMALL = Experiment(
    positions=("none", "alibi"),
    train_length=6,
    test_lengths=(6, 12),
    seeds=2,
    steps=8,
    batch=8,
    shape=ModelShape(16, 1, 2),
    test_examples=16,
)
HERE = LocalBackend(torch.device("cpu"), 2)
FLAGS = [
    *("--positions", "none", "alibi", "--train-length", "6", "--test-lengths", "6", "12", "--seeds", "2"),
    *("--batch", "8", "--width", "16", "--layers", "1", "--heads", "2"),
]


def numbers(results):
    return [(r.key, r.lr, r.steps, r.parameters, r.operations, r.scores) for r in results]


# ---- bad input


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--test-lengths", "0"], "at least 1"),
        (["--tasks", "orderin"], "'ordering'"),
        (["--positions", "alibii"], "'alibi'"),
        (["--attention", "multihead"], "'multi-head'"),
        (["--seeds", "0"], "seeds=0"),
        (["--budget", "soon"], "30m"),
        (["--width", "30"], "multiple"),
        (["--train-length", "500"], "longest"),
        (["--resume"], "no experiment"),
    ],
)
def test_bad_input_is_refused_before_any_training(flags, said, tmp_path, capsys):
    assert main(["compare", "--out", str(tmp_path / "out"), *flags]) == 2
    line = capsys.readouterr().err.strip().splitlines()[-1]
    assert said in line
    assert not (tmp_path / "out" / FILE).exists()


def test_a_budget_too_small_for_one_run_is_refused():
    with pytest.raises(BadInput, match="minutes or more"):
        fit_budget(SMALL, 0.01, HERE)


def test_a_budget_sets_the_steps():
    assert fit_budget(Experiment(**{**SMALL.__dict__, "steps": 10**6}), 60, HERE).steps < 10**6
    assert fit_budget(Experiment(**{**SMALL.__dict__, "steps": 50}), 3600, HERE).steps == 50


def test_an_experiment_from_a_file(tmp_path):
    path = tmp_path / "experiment.toml"
    path.write_text('tasks = ["copy"]\npositions = ["plain"]\nseeds = 2\n[shape]\nwidth = 32\n')
    experiment = read_experiment(path)
    assert experiment.positions == expand_positions(("plain",))
    assert experiment.shape == ModelShape(32)
    path.write_text("seed = 2\n")
    with pytest.raises(BadInput, match="'seeds'"):
        read_experiment(path)


def test_the_control_is_left_out_where_answers_are_long():
    experiment = Experiment(tasks=("ordering", "copy"), train_length=8, test_lengths=(8,))
    controls = [key.task for key in experiment.wanted() if key.position == "none-bidirectional"]
    assert set(controls) == {"ordering"}


# ---- whole experiments


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("experiment")
    return folder, run_experiment(SMALL, folder, HERE)


def test_every_run_is_there_and_paired(whole):
    _, results = whole
    assert [r.key for r in results] == SMALL.wanted()
    assert {r.steps for r in results} == {8}
    assert all([s.length for s in r.scores] == [6, 12] for r in results)
    assert len({r.operations for r in results}) == 1  # the same compute for every entry


def test_an_experiment_that_is_done_is_not_done_again(whole):
    folder, results = whole
    before = (folder / FILE).read_bytes()
    assert run_experiment(SMALL, folder, HERE, resume=True) == results
    assert (folder / FILE).read_bytes() == before
    with pytest.raises(BadInput, match="--resume"):
        run_experiment(SMALL, folder, HERE)
    with pytest.raises(BadInput, match="other settings"):
        run_experiment(Experiment(**{**SMALL.__dict__, "steps": 9}), folder, HERE, resume=True)


def test_a_worker_that_is_killed_loses_only_its_run(whole, tmp_path):
    class Killer(SilentObserver):
        def __init__(self):
            self.done, self.notes = False, []

        def chose(self, entry, rate):
            if not self.done:  # the search has ended: workers are at work
                self.done = True
                threading.Thread(target=self.kill).start()

        def kill(self):
            workers = psutil.Process().children(recursive=True)
            [p for p in workers if "spawn_main" in " ".join(p.cmdline())][-1].kill()

        def note(self, text):
            self.notes.append(text)

    killer = Killer()
    results = run_experiment(Experiment(**{**SMALL.__dict__, "steps": 8}), tmp_path, HERE, observer=killer)
    assert killer.notes == ["a worker died; its runs start again"]
    assert numbers(results) == numbers(whole[1])


def test_killed_and_resumed_it_gives_the_same_report(whole, tmp_path):
    """The whole command, killed with SIGKILL as soon as it has a result or two."""
    out, plain = tmp_path / "killed", tmp_path / "plain"
    command = [sys.executable, "-m", "vantage", "compare", *FLAGS, "--steps", "8", "--workers", "1"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with start([*command, "--out", str(out)], env=environment) as process:
        until(lambda: read_results(out / FILE))
        workers = psutil.Process(process.pid).children(recursive=True)
        process.kill()
    assert workers
    assert not psutil.wait_procs(workers, timeout=PATIENCE)[1]  # nobody waits for an experiment that is gone
    kept = len(read_results(out / FILE))
    assert 1 <= kept < len(SMALL.wanted())
    assert main(["compare", "--out", str(out), "--resume", "--workers", "1"]) == 0
    assert main(["compare", *FLAGS, "--steps", "8", "--workers", "1", "--out", str(plain)]) == 0
    for name in ("index.html", "scores.csv", "report.json"):
        assert (out / name).read_bytes() == (plain / name).read_bytes()
    assert "vantage compare --tasks ordering" in (out / "report.json").read_text()
