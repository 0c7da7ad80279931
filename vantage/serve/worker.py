"""The engine's thread: one for each model that generates. Nobody else touches the engine."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, final

from vantage.errors import VantageError
from vantage.generation import Engine, Event, Request, Stats
from vantage.generation.peers import Peers
from vantage.model import Model
from vantage.serve.engine_jobs import EngineJob, Submission
from vantage.serve.errors import ApiError, bad, failed, group_lost, overloaded
from vantage.serve.logs import ServerLog
from vantage.serve.settings import Batching

if TYPE_CHECKING:
    from vantage.serve.model_group import ModelGroup

SNAPSHOT_S = 0.2  # how old what /metrics shows may be
REBUILD_S = 1.0  # between two attempts to make a new engine


@final
@dataclass(frozen=True)
class Snapshot:
    """The engine at one moment."""

    stats: Stats
    waiting: int  # samples that have not begun
    running: int


@final
class Worker:
    """Submits, steps and delivers. The methods above the line are for the event loop, those below for the thread."""

    def __init__(
        self,
        name: str,
        model: Model,
        batching: Batching,
        backlog: int,
        log: ServerLog,
        adapters: Mapping[str, Model] | None = None,
        group: ModelGroup | None = None,
    ):
        self._name, self._model, self._batching, self._backlog, self._log = name, model, batching, backlog, log
        self._adapters, self._group = adapters or {}, group
        self._lost: Exception | None = None  # why the processes of its group cannot go on
        self._loop: asyncio.AbstractEventLoop | None = None
        self._inbox: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._jobs: dict[Request, EngineJob] = {}
        self._engine = self._new_engine()
        self._stopping = False
        self._seats = 0  # samples that were taken on and have not ended
        self._mean_s = 1.0  # how long a request took of late
        self.snapshot = Snapshot(self._engine.stats, 0, 0)
        self.faults = 0  # steps that failed as a whole, and cost all their requests
        self._thread = threading.Thread(target=self._run, name=f"engine-{name}", daemon=True)

    def start(self) -> None:
        """Must run in the event loop that requests come from."""
        self._loop = asyncio.get_running_loop()
        if self._group is not None:
            self._group.watch(self._lose)
        self._thread.start()

    @contextlib.contextmanager
    def seats(self, samples: int) -> Iterator[None]:
        """Places for these samples, or 429 at once: whoever waits is counted before anything is done for it."""
        if samples > self._batching.rows:
            raise bad(f"{samples} samples in one request: this server runs at most {self._batching.rows} at once", "n")
        if self._seats + samples > self._batching.rows + self._batching.queue:
            rounds = 1 + self._seats / self._batching.rows
            raise overloaded(min(60, max(1, math.ceil(self._mean_s * rounds / 2))))
        self._seats += samples
        began = time.perf_counter()
        try:
            yield
            self._mean_s += 0.2 * (time.perf_counter() - began - self._mean_s)
        finally:
            self._seats -= samples

    @property
    def busy(self) -> int:
        return self._seats

    def submit(self, submission: Submission, news: asyncio.Event) -> EngineJob:
        job = EngineJob(submission, self._backlog, self._drop, news)
        if self._lost is None:
            self._inbox.put(lambda: self._submit(job))
        else:
            job.fail(group_lost())
        return job

    def _drop(self, job: EngineJob) -> None:
        self._inbox.put(lambda: self._cancel(job))

    async def stop(self) -> None:
        """Ends what runs, and the thread, if that ever began."""
        if self._thread.ident is None or self._lost is not None:  # it may wait for a process that is gone
            return
        self._inbox.put(self._stop)
        await asyncio.to_thread(self._thread.join)

    # ---------------------------------------------------------------- in the thread

    def _run(self) -> None:
        last_snapshot = 0.0
        while not self._stopping:
            self._take(wait=self._engine.idle)
            try:
                events = [] if self._engine.idle else self._engine.step()
            except Exception as e:  # the engine holds its own faults: whatever comes here has broken it
                if self._group is not None:
                    return self._lose(e)
                self._rebuild(e)
                continue
            self._deliver(events)
            now = time.monotonic()
            if now - last_snapshot > SNAPSHOT_S or self._engine.idle:
                last_snapshot, self.snapshot = now, self._look()
        self._engine.close()

    def _take(self, *, wait: bool) -> None:
        """Everything that was asked since the last step; waits for something where there is nothing else to do."""
        with contextlib.suppress(Empty):
            while True:
                self._inbox.get(block=wait)()
                wait = False

    def _submit(self, job: EngineJob) -> None:
        submission = job.submission
        if job.over:
            return
        if self._lost is not None:
            return self._tell(lambda: job.fail(group_lost()))
        try:
            request = self._engine.submit(
                submission.tokens,
                max_tokens=submission.max_tokens,
                sampling=submission.sampling,
                stop=submission.stop,
                tenant=submission.tenant,
                source=submission.source,
                n=submission.n,
                constraint=submission.constraint,
                prompt_logprobs=submission.prompt_logprobs,
                adapter=submission.adapter,
                images=submission.images,
            )
        except Exception as e:
            # what the engine refuses is the request's own doing; the rest is ours
            error = bad(str(e)) if isinstance(e, VantageError) else failed(e, own=False)
            if error.status >= 500:
                self._log.fault(self._name, "submit", e)
            return self._tell(lambda: job.fail(error))
        self._jobs[request] = job

    def _cancel(self, job: EngineJob) -> None:
        request = next((request for request, one in self._jobs.items() if one is job), None)
        if request is not None and self._lost is None:
            del self._jobs[request]
            self._engine.cancel(request)

    def _deliver(self, events: list[Event]) -> None:
        """One call into the loop for all that a step brought."""
        by_request: dict[Request, list[Event]] = {}
        for event in events:
            by_request.setdefault(event.request, []).append(event)
        calls: list[Callable[[], None]] = []
        for request, news in by_request.items():
            job = self._jobs.get(request)
            if job is None:
                continue
            if request.error is not None:
                cause = request.error.__cause__
                own = job.submission.constraint is not None or bool(job.submission.sampling.bias)
                self._log.fault(self._name, "step", cause or request.error)
                calls.append(_bound(job.fail, failed(cause, own=own)))
            else:
                calls.append(_bound(job.deliver, request, news, request.state == "finished"))
            if request.state == "finished":
                del self._jobs[request]
        if calls:
            self._tell(lambda: [call() for call in calls])

    def _rebuild(self, error: Exception) -> None:
        """A new engine: nobody knows what the old one holds. Its requests fail, those that come are served."""
        self._log.fault(self._name, "engine", error)
        self.faults += 1
        jobs, self._jobs = list(self._jobs.values()), {}
        self._tell(lambda: [job.fail(failed(error, own=False)) for job in jobs])
        del self._engine  # its blocks go before the new ones come
        gc.collect()
        while True:
            try:
                self._engine = self._new_engine()
                return
            except Exception as e:  # no memory yet: those who wait have a time limit of their own
                self._log.fault(self._name, "rebuild", e)
                time.sleep(REBUILD_S)

    def _lose(self, error: Exception) -> None:
        """A process that has a share of the model is gone: this one's step fails, or never ends. From any thread."""
        if self._lost is None and self._group is not None:
            self._lost = error
            self._log.fault(self._name, "group", error)
            self.faults += 1
            self._group.lost(error)
            jobs = list(self._jobs.values())
            self._tell(lambda: [job.fail(group_lost()) for job in jobs])
            self._take(wait=False)

    def _stop(self) -> None:
        self._stopping = True
        jobs, self._jobs = list(self._jobs.items()), {}
        for request, _ in jobs:
            self._engine.cancel(request)
        gone = ApiError(503, "unloaded", "the server stopped before the answer was complete", retry=5)
        self._tell(lambda: [job.fail(gone) for _, job in jobs])

    def _tell(self, call: Callable[[], object]) -> None:
        assert self._loop is not None, "started without a loop"
        with contextlib.suppress(RuntimeError):  # the loop has closed: nobody is left to tell
            self._loop.call_soon_threadsafe(call)

    def _look(self) -> Snapshot:
        left = [(r, sum(output.finish is None for output in r.outputs)) for r in self._jobs]
        waiting = sum(n for request, n in left if request.state == "waiting")
        return Snapshot(self._engine.stats, waiting, sum(n for _, n in left) - waiting)

    def _new_engine(self) -> Engine:
        peers = None if self._group is None else self._group.peers()
        return new_engine(self._model, self._batching, adapters=self._adapters, peers=peers)


def new_engine(
    model: Model, b: Batching, *, adapters: Mapping[str, Model] | None = None, peers: Peers | None = None
) -> Engine:
    """As a server's settings say. Every process of a group makes the same."""
    return Engine(
        model,
        capacity=b.capacity,
        chunk=b.chunk or None,
        rows=b.rows,
        queue=b.rows + b.queue + 1,  # seats are counted before: this is never reached
        batch_invariant=b.batch_invariant,
        share_prefixes=b.share_prefixes,
        adapters=adapters,
        peers=peers,
    )


def _bound(call: Callable[..., None], *args: object) -> Callable[[], None]:
    return lambda: call(*args)
