"""Who runs the jobs of an experiment: processes on the cores of this machine, or several that share its GPU.

An executor only runs jobs and reports what came of them. That a job is begun again when its worker dies, and what is
kept, is the business of ``run_experiment``. ``ray_executor`` has one for other machines.
"""

from __future__ import annotations

import multiprocessing
import os
import queue
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self, final

import torch
from torch import Tensor

from vantage.compare import gpu_sharing, jobs
from vantage.compare.gpu_sharing import GpuSharing
from vantage.compare.jobs import LossPoint, TrainingJob
from vantage.errors import BadInput
from vantage.spec.devices import generation_device

EVERY, EVERY_S = 25, 0.5  # steps between two reports of progress, or seconds
ON_A_GPU = 8  # processes: one alone leaves it idle while it makes examples and launches small kernels
# called with the number of steps since the last call, and a loss where one is known
OnSteps = Callable[[int, LossPoint | None], None]


@final
@dataclass(frozen=True)
class JobFinished:
    job: TrainingJob
    outcome: Any  # a cost, a rate, or results


@final
@dataclass(frozen=True)
class WorkerDied:
    """The worker that had this job is dead. What it had done of it is lost."""

    job: TrainingJob


class Executor(Protocol):
    """Leaving it ends whatever it still does."""

    def __enter__(self) -> Self: ...
    def __exit__(self, *why: object) -> None: ...

    def submit(self, job: TrainingJob) -> None:
        """Take a job on. It may have to wait for a worker."""
        ...

    def events(self) -> Iterator[JobFinished | WorkerDied]:
        """What has happened since the last time. Waits for a moment where nothing has."""
        ...


class ExecutionBackend(Protocol):
    """Where an experiment runs: its device, how many jobs at once, and what runs them."""

    @property
    def device(self) -> torch.device: ...
    @property
    def workers(self) -> int: ...

    def executor(self, on_steps: OnSteps) -> Executor: ...


@final
@dataclass(frozen=True)
class LocalBackend:
    """This machine."""

    device: torch.device
    workers: int

    @staticmethod
    def detect(device: str | None = None, workers: int | None = None) -> LocalBackend:
        """By what this machine has, where nothing else is asked for."""
        chosen = _device(device)
        check_workers(workers)
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        return LocalBackend(chosen, workers or (min(ON_A_GPU, cores) if chosen.type == "cuda" else cores))

    def executor(self, on_steps: OnSteps) -> Executor:
        return ProcessExecutor(self.device, self.workers, on_steps)


def check_workers(workers: int | None) -> None:
    if workers is not None and workers < 1:
        raise BadInput(f"workers={workers}: give at least 1, or leave it out for one on each core")


def _device(name: str | None) -> torch.device:
    """A device that this machine has."""
    has_gpu = torch.cuda.is_available()
    if name is None:
        return generation_device()
    check_device(name, " or cuda" if has_gpu else " (there is no GPU that torch can use here)")
    if name.startswith("cuda") and not has_gpu:
        raise BadInput("device='cuda': torch finds no GPU. Use cpu, or install torch with CUDA")
    return torch.device(name)


def check_device(name: str, more: str = " or cuda") -> None:
    if name.partition(":")[0] not in ("cpu", "cuda"):
        raise BadInput(f"device={name!r}: use cpu{more}")


@final
class ProcessExecutor:
    """ProcessExecutor that each train one job at a time, on one thread."""

    def __init__(self, device: torch.device, workers: int, on_steps: OnSteps):
        self._device, self._workers, self._on_steps = device, workers, on_steps
        self._waiting: dict[Future[Any], tuple[TrainingJob, ProcessPoolExecutor]] = {}
        self._context = multiprocessing.get_context("spawn")
        self._steps: Any = self._context.Queue()
        self._pool: ProcessPoolExecutor | None = None
        self._cache = Path(tempfile.mkdtemp(prefix="vantage-examples-"))
        self._sharing = GpuSharing() if device.type == "cuda" and workers > 1 else None

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
        shutil.rmtree(self._cache, ignore_errors=True)

    def submit(self, job: TrainingJob) -> None:
        try:
            pool = self._ready_pool()
            future = pool.submit(_work, job, self._device, self._cache)
        except BrokenProcessPool:  # a worker has just died: its jobs are among the next events
            self._pool = None
            pool = self._ready_pool()
            future = pool.submit(_work, job, self._device, self._cache)
        self._waiting[future] = (job, pool)

    def events(self) -> Iterator[JobFinished | WorkerDied]:
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
            yield WorkerDied(job) if lost else JobFinished(job, future.result())

    def _ready_pool(self) -> ProcessPoolExecutor:
        environment = {} if self._sharing is None else self._sharing.environment
        self._pool = self._pool or ProcessPoolExecutor(
            self._workers,
            self._context,
            initializer=_initialise_worker,
            initargs=(self._steps, self._cache, environment),
        )
        return self._pool

    def _drain(self) -> None:
        while True:
            try:
                self._on_steps(*self._steps.get_nowait())
            except queue.Empty:
                return


_steps_queue: Any = None  # in a worker: where it reports how many steps it has done


def _initialise_worker(steps: Any, cache: Path, environment: Mapping[str, str]) -> None:
    global _steps_queue
    _steps_queue = steps
    os.environ.update(environment)  # before anything here has asked for the GPU
    torch.set_num_threads(1)
    threading.Thread(target=_end_with_the_experiment, args=(cache, environment), daemon=True).start()


def _end_with_the_experiment(cache: Path, environment: Mapping[str, str]) -> None:
    """A worker whose experiment was killed would wait for its next job for ever, and what that put up would stay."""
    experiment = multiprocessing.parent_process()
    assert experiment is not None
    experiment.join()
    shutil.rmtree(cache, ignore_errors=True)
    gpu_sharing.stop(environment)
    os._exit(1)


def _work(job: TrainingJob, device: torch.device, cache: Path) -> Any:
    stacked = device.type == "cuda"
    together, last = (job.models, job.steps) if stacked else (1, job.models * job.steps)
    reported, at = 0, time.monotonic()

    def on_step(step: int, losses: Tensor) -> None:
        nonlocal reported, at
        if step - reported >= EVERY or step == last or time.monotonic() - at > EVERY_S:
            point = LossPoint(job.entry, (step - 1) % job.steps + 1, job.steps, losses.mean().item())
            _steps_queue.put(((step - reported) * together, point))
            reported, at = step, time.monotonic()

    return jobs.execute(job, device, on_step, cache)
