"""An experiment on a Ray cluster: one actor for each job, on a GPU of its own where the cluster has them, else on a
core.

Ray finds the machine for each, and nothing more: a job whose actor died is begun again by ``run_experiment``, as
anywhere. A result depends on the experiment and its seed alone, so on cores it is the same to the bit as on this
machine.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Self, final

import torch

from vantage import __version__
from vantage.compare.executors import (
    EVERY,
    Executor,
    JobFinished,
    OnSteps,
    WorkerDied,
    check_device,
    check_workers,
)
from vantage.compare.experiment import Experiment
from vantage.compare.jobs import TrainingJob, execute
from vantage.errors import BadInput, Refused

WAIT_S, POLL_S = 0.5, 1.0  # for a result, and between two questions about progress


@final
@dataclass(frozen=True)
class Origin:
    """Who gave a job out: another version of these would give another result."""

    vantage: str
    torch: str
    folder: str  # relative names of files are meant from here

    @staticmethod
    def here() -> Origin:
        return Origin(__version__, str(torch.__version__), os.getcwd())

    def check(self) -> None:
        own = Origin.here()
        if (own.vantage, own.torch) != (self.vantage, self.torch):
            raise Refused(
                f"a machine of the cluster has Vantage {own.vantage} with torch {own.torch}, this one {self.vantage} "
                f"with {self.torch}: install the same on all of them"
            )


@final
@dataclass(frozen=True)
class RayBackend:
    """A Ray cluster. ``workers`` is how many jobs run at once."""

    device: torch.device
    workers: int
    ray: Any = None
    most: int | None = None  # jobs at once, where that was asked for

    @staticmethod
    def detect(ray: Any, device: str | None = None, workers: int | None = None) -> RayBackend:
        """What a cluster offers."""
        check_workers(workers)
        if device is not None:
            check_device(device)
        gpus = int(ray.cluster_resources().get("GPU", 0))
        if device is not None and device.startswith("cuda") and not gpus:
            raise BadInput("device='cuda': the Ray cluster has no GPU. Use cpu, or leave it out")
        backend = RayBackend(torch.device("cuda" if gpus and device != "cpu" else "cpu"), 0, ray, workers)
        if not backend.slots():
            raise Refused("the Ray cluster has no core to train on: add a node to it, or start it with --num-cpus")
        return replace(backend, workers=backend.slots())

    def slots(self) -> int:
        """How many jobs the cluster can run at once: machines come and go."""
        units = int(self.ray.cluster_resources().get("GPU" if self.device.type == "cuda" else "CPU", 0))
        return min(units, self.most or units)

    def executor(self, on_steps: OnSteps) -> Executor:
        return RayExecutor(self, on_steps)

    def share(self) -> dict[str, float]:
        """Of the cluster, for one job."""
        return {"num_cpus": 0, "num_gpus": 1} if self.device.type == "cuda" else {"num_cpus": 1}


def _prepare_worker(origin: Origin) -> None:
    """In a worker: the folder and the threads that one of this machine's own would have."""
    origin.check()
    with contextlib.suppress(OSError):  # there need not be such a folder: only relative names ask for it
        os.chdir(origin.folder)
    torch.set_num_threads(1)


class Actor:
    """In a process of the cluster: one job. A second thread reports how far it is."""

    def __init__(self) -> None:
        self._steps = 0

    def work(self, origin: Origin, job: TrainingJob, fingerprint: str, device: str) -> Any:
        _prepare_worker(origin)
        if job.experiment.fingerprint() != fingerprint:
            raise Refused(f"the files of {', '.join(job.experiment.text)} differ between machines of the cluster")
        before = 0

        def on_step(step: int, losses: torch.Tensor) -> None:
            nonlocal before
            if step % EVERY == 0:
                self._steps += (step - before) * (job.models if device == "cuda" else 1)
                before = step

        return execute(job, torch.device(device), on_step)

    def steps(self) -> int:
        return self._steps


@final
@dataclass
class _RunningJob:
    """A job that the cluster has."""

    job: TrainingJob
    actor: Any
    progress: Any = None  # the promise of how far it is, while one is outstanding
    steps: int = 0


@final
class RayExecutor:
    def __init__(self, backend: RayBackend, on_steps: OnSteps):
        self._backend, self._ray, self._on_steps = backend, backend.ray, on_steps
        self._class = self._ray.remote(**backend.share(), max_restarts=0, max_task_retries=0, max_concurrency=2)(Actor)
        self._origin = Origin.here()
        self._fingerprints: dict[Experiment, str] = {}
        self._slots = backend.workers
        self._waiting: list[TrainingJob] = []
        self._running: dict[Any, _RunningJob] = {}  # by the promise of the result
        self._polled_at = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *why: object) -> None:
        for running in self._running.values():
            self._ray.kill(running.actor)
        self._running.clear()

    def submit(self, job: TrainingJob) -> None:
        self._waiting.append(job)
        self._fill()

    def _fill(self) -> None:
        while self._waiting and len(self._running) < self._slots:
            job = self._waiting.pop(0)
            if job.experiment not in self._fingerprints:
                self._fingerprints[job.experiment] = job.experiment.fingerprint()
            actor = self._class.remote()
            promise = actor.work.remote(
                self._origin, job, self._fingerprints[job.experiment], self._backend.device.type
            )
            self._running[promise] = _RunningJob(job, actor)

    def events(self) -> Iterator[JobFinished | WorkerDied]:
        ready, _ = self._ray.wait(list(self._running), timeout=WAIT_S)
        self._progress()
        for promise in ready:
            running = self._running.pop(promise)
            event = self._outcome(promise, running.job)
            self._ray.kill(running.actor)  # its cores are wanted
            self._fill()
            yield event

    def _outcome(self, promise: Any, job: TrainingJob) -> JobFinished | WorkerDied:
        errors = self._ray.exceptions
        try:
            return JobFinished(job, self._ray.get(promise))
        except errors.ActorUnschedulableError as e:
            raise Refused(f"no machine of the Ray cluster can take a job: {e}") from e
        except (errors.RayActorError, errors.WorkerCrashedError, errors.OutOfMemoryError, errors.ObjectLostError):
            return WorkerDied(job)
        except errors.RayTaskError as e:
            raise e.cause from e

    def _progress(self) -> None:
        """Nobody waits for an answer: those that have come are read, and those that were read are asked again."""
        polled = {one.progress: one for one in self._running.values() if one.progress is not None}
        answers, _ = self._ray.wait(list(polled), num_returns=len(polled), timeout=0) if polled else ([], [])
        for answer in answers:
            running = polled[answer]
            running.progress = None
            with contextlib.suppress(self._ray.exceptions.RayError):  # it has died: its result says so too
                steps = self._ray.get(answer)
                self._on_steps(steps - running.steps, None)
                running.steps = steps
        if time.monotonic() - self._polled_at > POLL_S:
            self._polled_at = time.monotonic()
            self._slots = max(1, self._backend.slots())
            self._fill()
            for running in self._running.values():
                running.progress = running.progress or running.actor.steps.remote()
