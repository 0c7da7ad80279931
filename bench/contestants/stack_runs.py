"""Runs of one study, together (a stack on a GPU, a run on every core) or one after another."""

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from time import perf_counter

import torch

from vantage.compare.jobs import Job, run
from vantage.compare.stack import Recipe, Stack
from vantage.compare.study import Study

go: Callable[[], float]
CORES = 2
CPU = torch.device("cpu")


def setup(device: str, runs: int, steps: int, together: bool) -> None:
    global go
    study = Study(positions=("rope",), test_lengths=(20,), seeds=runs, steps=steps, test_examples=1)
    if device == "cuda":
        go = on_gpu(study, together)
    else:
        go = on_cores(study) if together else in_turn(study)


def on_gpu(study: Study, together: bool) -> Callable[[], float]:
    """Training alone, from fresh weights; compiled once, before the first round that counts."""
    where = torch.device("cuda")
    section = study.section("ordering", "rope", "multi-head")
    data = [study.sequences("ordering", section.reads, seed) for seed in range(study.seeds)]
    spec = section.spec(data[0].vocab)
    groups = [range(study.seeds)] if together else [[seed] for seed in range(study.seeds)]
    stacks = [
        Stack(spec, list(own), [data[seed] for seed in own], [1e-3] * len(own), Recipe(study.steps), where, together)
        for own in groups
    ]

    def train() -> float:
        losses = torch.cat([stack.train() for stack in stacks])
        torch.cuda.synchronize()
        return float(losses.mean())

    return train


def in_turn(study: Study) -> Callable[[], float]:
    """With as many threads as there are cores."""
    return lambda: sum(run(job, CPU)[0].scores[0].loss for job in jobs_of(study))


def on_cores(study: Study) -> Callable[[], float]:
    """What goes to a process is the package's own: it cannot import this file."""
    pool = ProcessPoolExecutor(CORES, get_context("spawn"), initializer=torch.set_num_threads, initargs=(1,))
    work = partial(run, device=CPU)
    return lambda: sum(results[0].scores[0].loss for results in pool.map(work, jobs_of(study)))


def jobs_of(study: Study) -> list[Job]:
    return [Job(study, "ordering", "rope", "multi-head", (seed,), 1e-3) for seed in range(study.seeds)]


def round() -> dict[str, object]:
    start = perf_counter()
    loss = go()
    return {"seconds": [perf_counter() - start], "loss": loss}
