"""An experiment from its settings to its report: refused early, killed, resumed, the same."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from dataclasses import asdict

import psutil
import pytest
import torch

from tests.cli.running import exit_code
from tests.processes import PATIENCE, start, until
from vantage.cli.main import main
from vantage.compare.budget import Budget
from vantage.compare.entries import ModelShape
from vantage.compare.executors import LocalBackend
from vantage.compare.experiment import Experiment, expand_positions, written_experiment
from vantage.compare.experiment_fields import experiment_table
from vantage.compare.metadata import experiment_in, report_metadata
from vantage.compare.results import FILE, read_results
from vantage.compare.run import SilentObserver, run_experiment
from vantage.errors import BadInput

SMALL = Experiment(
    tasks=("ordering",),
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
    *("--tasks", "ordering", "--batch", "8", "--width", "16", "--layers", "1", "--heads", "2"),
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
        (["--seeds", "0"], "at least 1"),
        (["--budget", "soon"], "30m"),
        (["--width", "30"], "multiple"),
        (["--tasks", "ordering", "--train-length", "500"], "longest"),
        (["--resume"], "no experiment"),
    ],
)
def test_bad_input_is_refused_before_any_training(flags, said, tmp_path, capsys):
    assert exit_code(["compare", "--out", str(tmp_path / "out"), *flags]) == 2
    line = capsys.readouterr().err.strip().splitlines()[-1]
    assert said in line
    assert not (tmp_path / "out" / FILE).exists()


def test_a_budget_too_small_for_one_run_is_refused(tmp_path):
    with pytest.raises(BadInput, match="allow"):
        run_experiment(SMALL, tmp_path, HERE, budget=Budget.from_now(0.01))
    assert not list(tmp_path.iterdir())


@pytest.mark.sampled
def test_a_budget_with_real_workers(tmp_path):
    """Timed, planned, trained and reported. A machine that is busy may leave seeds out, which is then said."""
    wanted = Experiment(**{**SMALL.__dict__, "steps": 60})
    results = run_experiment(wanted, tmp_path, HERE, budget=Budget.from_now(600))
    assert experiment_in(tmp_path).steps <= 60
    assert {r.key.entry for r in results} == {"none", "alibi"}


def test_other_seeds_are_other_runs(tmp_path):
    other = Experiment(**{**SMALL.__dict__, "first_seed": 2, "seeds": 1, "steps": 2})
    assert {key.seed for key in other.wanted()} == {2}
    with pytest.raises(BadInput, match="first_seed=-1"):
        Experiment(**{**SMALL.__dict__, "first_seed": -1})


def test_an_experiment_of_an_earlier_version_is_gone_on_with(tmp_path):
    """It was scored by whole rows, and its fingerprint is what it was."""
    plain = Experiment(**{**SMALL.__dict__, "tasks": ("copy",), "score": "exact"})
    fields = {name: value for name, value in asdict(plain).items() if name not in ("score", "first_seed")}
    before = hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()[:16]
    (tmp_path / "study.json").write_text(json.dumps({"fingerprint": before, "study": fields, "versions": {}}))
    held = experiment_in(tmp_path)
    assert held == plain
    assert held.fingerprint() == before
    assert held.measures() == {}
    assert Experiment(**{**plain.__dict__, "score": "auto"}).measures() == {"copy": "tokens"}
    assert report_metadata(held, tmp_path)["cuts"] == []


def test_tokens_are_scored_where_a_guess_has_few_of_them():
    experiment = Experiment(tasks=("copy", "sort", "copy-one", "ordering"))
    assert experiment.measures() == {"copy": "tokens", "sort": "tokens"}
    assert set(Experiment(tasks=("copy-one",), score="tokens").measures()) == {"copy-one"}


def test_an_experiment_from_a_file(tmp_path):
    path = tmp_path / "experiment.toml"
    path.write_text('tasks = ["copy"]\npositions = ["plain"]\nseeds = 2\n[shape]\nwidth = 32\n')
    experiment = written_experiment(experiment_table(path), str(path))
    assert experiment.positions == expand_positions(("plain",))
    assert experiment.shape == ModelShape(32)
    path.write_text("seed = 2\n")
    with pytest.raises(BadInput, match="'seeds'"):
        written_experiment(experiment_table(path), str(path))


def test_the_control_is_left_out_where_answers_are_long():
    experiment = Experiment(tasks=("ordering", "copy"), train_length=8, test_lengths=(8,))
    controls = [key.task for key in experiment.wanted() if key.position == "none-bidirectional"]
    assert set(controls) == {"ordering"}


# ---- whole experiments


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("experiment")
    return folder, run_experiment(SMALL, folder, HERE)


@pytest.mark.sampled
def test_every_run_is_there_and_paired(whole):
    _, results = whole
    assert [r.key for r in results] == SMALL.wanted()
    assert {r.steps for r in results} == {8}
    assert all([s.length for s in r.scores] == [6, 12] for r in results)
    assert len({r.operations for r in results}) == 1  # the same compute for every entry


@pytest.mark.sampled
def test_an_experiment_that_is_done_is_not_done_again(whole):
    folder, results = whole
    before = (folder / FILE).read_bytes()
    assert run_experiment(SMALL, folder, HERE, resume=True) == results
    assert (folder / FILE).read_bytes() == before
    with pytest.raises(BadInput, match="--resume"):
        run_experiment(SMALL, folder, HERE)
    with pytest.raises(BadInput, match="other settings"):
        run_experiment(Experiment(**{**SMALL.__dict__, "steps": 9}), folder, HERE, resume=True)


@pytest.mark.sampled
def test_a_worker_that_is_killed_loses_only_its_run(tmp_path):
    class Killer(SilentObserver):
        """Kills a worker that is in the middle of a job, as its first steps are reported."""

        def __init__(self):
            self.kills, self.notes = 0, []

        def advanced(self, steps):
            if not self.notes and self.kills < 3:
                children = psutil.Process().children(recursive=True)
                children = [p for p in children if p.status() != psutil.STATUS_ZOMBIE]
                workers = [p for p in children if "spawn_main" in " ".join(p.cmdline())]
                self.kills += len(workers[-1:])
                for worker in workers[-1:]:
                    worker.kill()

        def note(self, text):
            self.notes.append(text)

    killer, long = Killer(), Experiment(**{**SMALL.__dict__, "steps": 200, "seeds": 1})
    results = run_experiment(long, tmp_path / "killed", HERE, observer=killer)
    assert set(killer.notes) == {"a worker died; its runs start again"}
    assert numbers(results) == numbers(run_experiment(long, tmp_path / "plain", HERE))


@pytest.mark.sampled
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
