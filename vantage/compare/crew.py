"""Who runs the jobs of a study: processes on the cores of this machine, or several that share its GPU.

A crew only runs jobs and says what came of them. That a job is begun again when its worker dies, and what is kept, is
the business of ``conduct``. ``on_ray`` has a crew on other machines.
"""

from __future__ import annotations

import multiprocessing
import os
import queue
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar, final

import torch

from vantage.compare import jobs, sharing
from vantage.compare.jobs import Job
from vantage.compare.sharing import Sharing
from vantage.errors import BadInput

EVERY = 25  # steps between two that are told of
ON_A_GPU = 8  # processes: one alone leaves it idle while it makes examples and launches small kernels
T = TypeVar("T")
Moved = Callable[[int], None]  # told how many steps were done since the last time


@final
@dataclass(frozen=True)
class Ended:
    job: Job
    outcome: Any  # a rate, or results


@final
@dataclass(frozen=True)
class Fell:
    """The worker that had this job is dead. What it had done of it is lost."""

    job: Job


class Crew(Protocol):
    """Leaving it ends whatever it still does."""

    def __enter__(self) -> Self: ...
    def __exit__(self, *why: object) -> None: ...

    def begin(self, job: Job) -> None:
        """Take a job on. It may have to wait for a place."""
        ...

    def news(self) -> Iterator[Ended | Fell]:
        """What has happened since the last time. Waits for a moment where nothing has."""
        ...


@dataclass(frozen=True)
class Place:
    """Where a study runs: this machine."""

    device: torch.device
    workers: int

    @staticmethod
    def here(device: str | None = None, workers: int | None = None) -> Place:
        made = _device(device)
        check_workers(workers)
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        return Place(made, workers or (min(ON_A_GPU, cores) if made.type == "cuda" else cores))

    def crew(self, moved: Moved) -> Crew:
        return Processes(self.device, self.workers, moved)

    def call(self, work: Callable[..., T], *args: Any) -> T:
        """One call, on a machine such as the jobs get."""
        return work(*args)


def check_workers(workers: int | None) -> None:
    if workers is not None and workers < 1:
        raise BadInput(f"workers={workers}: give at least 1, or leave it out for one on each core")


def _device(name: str | None) -> torch.device:
    """A device that is there."""
    there = torch.cuda.is_available()
    if name is None:
        return torch.device("cuda" if there else "cpu")
    check_device(name, " or cuda" if there else " (there is no GPU that torch can use here)")
    if name.startswith("cuda") and not there:
        raise BadInput("device='cuda': torch finds no GPU here. Use cpu, or install torch with CUDA")
    return torch.device(name)


def check_device(name: str, more: str = " or cuda") -> None:
    if name.partition(":")[0] not in ("cpu", "cuda"):
        raise BadInput(f"device={name!r}: use cpu{more}")


def do(job: Job, device: torch.device, tell: jobs.Tell, shelf: Path | None = None) -> Any:
    return (jobs.search if job.searches else jobs.run)(job, device, tell, shelf)


@final
class Processes:
    """Processes that each train one job at a time, on one thread."""

    def __init__(self, device: torch.device, workers: int, moved: Moved):
        self._device, self._workers, self._moved = device, workers, moved
        self._waiting: dict[Future[Any], tuple[Job, ProcessPoolExecutor]] = {}
        self._context = multiprocessing.get_context("spawn")
        self._steps: Any = self._context.Queue()
        self._pool: ProcessPoolExecutor | None = None
        self._shelf = Path(tempfile.mkdtemp(prefix="vantage-examples-"))
        self._sharing = Sharing() if device.type == "cuda" and workers > 1 else None

    def __enter__(self) -> Self:
        if self._sharing is not None:
            self._sharing.__enter__()
        return self

    def __exit__(self, *why: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            for process in multiprocessing.active_children():
                process.terminate()
        if self._sharing is not None:
            self._sharing.__exit__()
        shutil.rmtree(self._shelf, ignore_errors=True)

    def begin(self, job: Job) -> None:
        try:
            pool = self._there()
            future = pool.submit(_work, job, self._device, self._shelf)
        except BrokenProcessPool:  # a worker has just died: its jobs are among the next news
            self._pool = None
            pool = self._there()
            future = pool.submit(_work, job, self._device, self._shelf)
        self._waiting[future] = (job, pool)

    def news(self) -> Iterator[Ended | Fell]:
        finished, _ = wait(self._waiting, timeout=0.5, return_when=FIRST_COMPLETED)
        self._drain()
        broken = {id(self._waiting[f][1]) for f in finished if isinstance(f.exception(), BrokenProcessPool)}
        if broken and id(self._pool) in broken:
            self._pool = None
        # a worker that is killed takes its whole pool along
        over = [f for f, (_, pool) in self._waiting.items() if f in finished or id(pool) in broken]
        for future in over:
            job, pool = self._waiting.pop(future)
            lost = id(pool) in broken and (not future.done() or isinstance(future.exception(), BrokenProcessPool))
            yield Fell(job) if lost else Ended(job, future.result())

    def _there(self) -> ProcessPoolExecutor:
        environment = {} if self._sharing is None else self._sharing.environment
        self._pool = self._pool or ProcessPoolExecutor(
            self._workers, self._context, initializer=_ready, initargs=(self._steps, self._shelf, environment)
        )
        return self._pool

    def _drain(self) -> None:
        while True:
            try:
                self._moved(self._steps.get_nowait())
            except queue.Empty:
                return


_said: Any = None  # in a worker: where it says how many steps it has done


def _ready(steps: Any, shelf: Path, environment: Mapping[str, str]) -> None:
    global _said
    _said = steps
    os.environ.update(environment)  # before anything here has asked for the GPU
    torch.set_num_threads(1)
    threading.Thread(target=_end_with_the_study, args=(shelf, environment), daemon=True).start()


def _end_with_the_study(shelf: Path, environment: Mapping[str, str]) -> None:
    """A worker whose study was killed would wait for its next job for ever, and what the study put up would stay."""
    study = multiprocessing.parent_process()
    assert study is not None
    study.join()
    shutil.rmtree(shelf, ignore_errors=True)
    sharing.stop(environment)
    os._exit(1)


def _work(job: Job, device: torch.device, shelf: Path) -> Any:
    stacked = device.type == "cuda"
    together, last = (job.models, job.steps) if stacked else (1, job.models * job.steps)
    told = 0

    def tell(step: int) -> None:
        nonlocal told
        if step - told >= EVERY or step == last:
            _said.put((step - told) * together)
            told = step

    return do(job, device, tell, shelf)
