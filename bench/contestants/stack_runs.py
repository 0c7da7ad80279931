"""The runs of an experiment: as it trains them (stacks on a GPU, a run on every core), or one after another."""

import atexit
import os
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter

import torch

from vantage.compare.experiment import Experiment
from vantage.compare.gpu_sharing import GpuSharing
from vantage.compare.jobs import TrainingJob, run
from vantage.compare.results import RunResult

POSITIONS = ("none", "sinusoidal", "learned", "rope", "t5", "alibi")
RATE = 1e-3
go: Callable[[], list[list[RunResult]]]


def setup(device: str, seeds: int, steps: int, workers: int, together: bool) -> None:
    global go
    experiment = Experiment(positions=POSITIONS, test_lengths=(20,), seeds=seeds, steps=steps, test_examples=1)
    where = torch.device(device)
    go = as_an_experiment(experiment, where, workers) if together else in_turn(experiment, where)


def in_turn(experiment: Experiment, where: torch.device) -> Callable[[], list[list[RunResult]]]:
    """On a CPU with as many threads as there are cores. Each makes its own examples."""
    return lambda: [run(job, where) for job in jobs_of(experiment, 1)]


def as_an_experiment(experiment: Experiment, where: torch.device, workers: int) -> Callable[[], list[list[RunResult]]]:
    """Processes that stay from round to round. Each round makes its examples anew, once for all encodings."""
    if where.type == "cuda":
        sharing = GpuSharing().__enter__()
        atexit.register(sharing.__exit__)  # a service outlives the process that started it
        os.environ.update(sharing.environment)
    pool = ProcessPoolExecutor(workers, get_context("spawn"), initializer=torch.set_num_threads, initargs=(1,))
    jobs = jobs_of(experiment, experiment.seeds if where.type == "cuda" else 1)

    def train() -> list[list[RunResult]]:
        with tempfile.TemporaryDirectory() as folder:
            return list(pool.map(partial(run, device=where, cache=Path(folder)), jobs))

    return train


def jobs_of(experiment: Experiment, stacked: int) -> list[TrainingJob]:
    seeds = range(experiment.seeds)
    some = [tuple(seeds[i : i + stacked]) for i in range(0, experiment.seeds, stacked)]
    return [
        TrainingJob(experiment, "ordering", position, "multi-head", own, RATE)
        for position in experiment.positions
        for own in some
    ]


def round() -> dict[str, object]:
    start = perf_counter()
    results = [one for job in go() for one in job]
    seconds = perf_counter() - start
    return {"seconds": [seconds], "loss": sum(one.scores[0].loss for one in results) / len(results)}
