"""The runs of one study: as a study trains them (stacks on a GPU, a run on every core), or one after another."""

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

from vantage.compare.jobs import Job, run
from vantage.compare.results import Result
from vantage.compare.sharing import Sharing
from vantage.compare.study import Study

POSITIONS = ("none", "sinusoidal", "learned", "rope", "t5", "alibi")
RATE = 1e-3
go: Callable[[], list[list[Result]]]


def setup(device: str, seeds: int, steps: int, workers: int, together: bool) -> None:
    global go
    study = Study(positions=POSITIONS, test_lengths=(20,), seeds=seeds, steps=steps, test_examples=1)
    where = torch.device(device)
    go = as_a_study(study, where, workers) if together else in_turn(study, where)


def in_turn(study: Study, where: torch.device) -> Callable[[], list[list[Result]]]:
    """On a CPU with as many threads as there are cores. Each makes its own examples."""
    return lambda: [run(job, where) for job in jobs_of(study, 1)]


def as_a_study(study: Study, where: torch.device, workers: int) -> Callable[[], list[list[Result]]]:
    """Processes that stay from round to round. Each round makes its examples anew, once for all encodings."""
    if where.type == "cuda":
        sharing = Sharing().__enter__()
        atexit.register(sharing.__exit__)  # a service outlives the process that started it
        os.environ.update(sharing.environment)
    pool = ProcessPoolExecutor(workers, get_context("spawn"), initializer=torch.set_num_threads, initargs=(1,))
    jobs = jobs_of(study, study.seeds if where.type == "cuda" else 1)

    def train() -> list[list[Result]]:
        with tempfile.TemporaryDirectory() as shelf:
            return list(pool.map(partial(run, device=where, shelf=Path(shelf)), jobs))

    return train


def jobs_of(study: Study, stacked: int) -> list[Job]:
    seeds = range(study.seeds)
    some = [tuple(seeds[i : i + stacked]) for i in range(0, study.seeds, stacked)]
    return [Job(study, "ordering", position, "multi-head", own, RATE) for position in study.positions for own in some]


def round() -> dict[str, object]:
    start = perf_counter()
    results = [one for job in go() for one in job]
    seconds = perf_counter() - start
    return {"seconds": [seconds], "loss": sum(one.scores[0].loss for one in results) / len(results)}
