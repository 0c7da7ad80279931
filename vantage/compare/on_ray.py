"""A study on a Ray cluster: one actor for each job, on a GPU of its own where the cluster has them, else on a core.

Ray finds the machine for each, and nothing more: a job whose actor died is begun again by ``conduct``, as anywhere. A
result depends on the study and its seed alone, so on cores it is the same to the bit as on this machine.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Self, TypeVar, final

import torch

from vantage import __version__
from vantage.compare.crew import EVERY, Crew, Ended, Fell, Moved, Place, check_device, check_workers, do
from vantage.compare.jobs import Job
from vantage.compare.study import Study
from vantage.errors import BadInput, Refused

T = TypeVar("T")
WAIT_S, ASK_S = 0.5, 1.0  # for a result, and between two questions about progress


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


@dataclass(frozen=True)
class RayPlace(Place):
    """``workers`` is how many jobs run at once."""

    ray: Any = None
    most: int | None = None  # jobs at once, if that was said

    @staticmethod
    def joined(ray: Any, device: str | None = None, workers: int | None = None) -> RayPlace:
        """What a cluster offers."""
        check_workers(workers)
        if device is not None:
            check_device(device)
        gpus = int(ray.cluster_resources().get("GPU", 0))
        if device is not None and device.startswith("cuda") and not gpus:
            raise BadInput("device='cuda': the Ray cluster has no GPU. Use cpu, or leave it out")
        made = RayPlace(torch.device("cuda" if gpus and device != "cpu" else "cpu"), 0, ray, workers)
        if not made.slots():
            raise Refused("the Ray cluster has no core to train on: add a node to it, or start it with --num-cpus")
        return replace(made, workers=made.slots())

    def slots(self) -> int:
        """How many jobs the cluster can run at once: machines come and go."""
        there = int(self.ray.cluster_resources().get("GPU" if self.device.type == "cuda" else "CPU", 0))
        return min(there, self.most or there)

    def crew(self, moved: Moved) -> Crew:
        return Actors(self, moved)

    def call(self, work: Callable[..., T], *args: Any) -> T:
        remote = self.ray.remote(**self.share(), max_retries=0)(_called)
        try:
            return self.ray.get(remote.remote(Origin.here(), work, args))
        except self.ray.exceptions.RayTaskError as e:
            raise e.cause from e

    def share(self) -> dict[str, float]:
        """Of the cluster, for one job."""
        return {"num_cpus": 0, "num_gpus": 1} if self.device.type == "cuda" else {"num_cpus": 1}


def _called(origin: Origin, work: Callable[..., T], args: tuple[Any, ...]) -> T:
    _settle(origin)
    return work(*args)


def _settle(origin: Origin) -> None:
    """In a worker: as one of this machine's own would be."""
    origin.check()
    with contextlib.suppress(OSError):  # there need not be such a folder: only relative names ask for it
        os.chdir(origin.folder)
    torch.set_num_threads(1)


class Actor:
    """In a process of the cluster: one job. A second thread says how far it is."""

    def __init__(self) -> None:
        self._steps = 0

    def work(self, origin: Origin, job: Job, fingerprint: str, device: str) -> Any:
        _settle(origin)
        if job.study.fingerprint() != fingerprint:
            raise Refused(f"the files of {', '.join(job.study.text)} differ between machines of the cluster")
        before = 0

        def tell(step: int) -> None:
            nonlocal before
            if step % EVERY == 0:
                self._steps += (step - before) * (job.models if device == "cuda" else 1)
                before = step

        return do(job, torch.device(device), tell)

    def steps(self) -> int:
        return self._steps


@final
@dataclass
class _Begun:
    """A job that the cluster has."""

    job: Job
    actor: Any
    asked: Any = None  # how far it is
    steps: int = 0


@final
class Actors:
    def __init__(self, place: RayPlace, moved: Moved):
        self._place, self._ray, self._moved = place, place.ray, moved
        self._class = self._ray.remote(**place.share(), max_restarts=0, max_task_retries=0, max_concurrency=2)(Actor)
        self._origin = Origin.here()
        self._prints: dict[Study, str] = {}
        self._slots = place.workers
        self._waiting: list[Job] = []
        self._begun: dict[Any, _Begun] = {}  # by the promise of the result
        self._asked_at = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *why: object) -> None:
        for begun in self._begun.values():
            self._ray.kill(begun.actor)
        self._begun.clear()

    def begin(self, job: Job) -> None:
        self._waiting.append(job)
        self._fill()

    def _fill(self) -> None:
        while self._waiting and len(self._begun) < self._slots:
            job = self._waiting.pop(0)
            if job.study not in self._prints:
                self._prints[job.study] = job.study.fingerprint()
            actor = self._class.remote()
            promise = actor.work.remote(self._origin, job, self._prints[job.study], self._place.device.type)
            self._begun[promise] = _Begun(job, actor)

    def news(self) -> Iterator[Ended | Fell]:
        done, _ = self._ray.wait(list(self._begun), timeout=WAIT_S)
        self._progress()
        for promise in done:
            begun = self._begun.pop(promise)
            news = self._outcome(promise, begun.job)
            self._ray.kill(begun.actor)  # its place is wanted
            self._fill()
            yield news

    def _outcome(self, promise: Any, job: Job) -> Ended | Fell:
        errors = self._ray.exceptions
        try:
            return Ended(job, self._ray.get(promise))
        except errors.ActorUnschedulableError as e:
            raise Refused(f"no machine of the Ray cluster can take a job: {e}") from e
        except (errors.RayActorError, errors.WorkerCrashedError, errors.OutOfMemoryError, errors.ObjectLostError):
            return Fell(job)
        except errors.RayTaskError as e:
            raise e.cause from e

    def _progress(self) -> None:
        """Nobody waits for an answer: those that have come are read, and those that were read are asked again."""
        asked = {one.asked: one for one in self._begun.values() if one.asked is not None}
        came, _ = self._ray.wait(list(asked), num_returns=len(asked), timeout=0) if asked else ([], [])
        for answer in came:
            begun = asked[answer]
            begun.asked = None
            with contextlib.suppress(self._ray.exceptions.RayError):  # it has died: its result says so too
                steps = self._ray.get(answer)
                self._moved(steps - begun.steps)
                begun.steps = steps
        if time.monotonic() - self._asked_at > ASK_S:
            self._asked_at = time.monotonic()
            self._slots = max(1, self._place.slots())
            self._fill()
            for begun in self._begun.values():
                begun.asked = begun.asked or begun.actor.steps.remote()
