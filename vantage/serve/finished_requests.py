"""Finished requests that can be looked into: the tokens of the last ones of each key, and nothing else of them."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar, final

from vantage.serve.engine_jobs import EngineJob
from vantage.serve.errors import ApiError, overloaded

T = TypeVar("T")
WAITING = 4  # calls that may wait for the one thread
TENANTS = 1024  # keys whose requests are kept, should there ever be so many


@final
@dataclass(frozen=True)
class FinishedChoice:
    """One choice of a finished request, as tokens."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    source: tuple[int, ...] | None = None

    @property
    def tokens(self) -> list[int]:
        return [*self.prompt, *self.answer]

    def __len__(self) -> int:
        return len(self.prompt) + len(self.answer) + len(self.source or ())


@final
@dataclass(frozen=True)
class FinishedRequest:
    model: str
    rows: tuple[FinishedChoice, ...]


@final
class FinishedRequests:
    """The last requests of each key. What one key asked cannot be had with another. For the event loop alone."""

    def __init__(self, requests: int, tokens: int):
        self._requests, self._tokens = requests, tokens
        self._kept: OrderedDict[str | None, OrderedDict[str, FinishedRequest]] = OrderedDict()
        self._thread: ThreadPoolExecutor | None = None
        self.calls = 0

    def put(self, tenant: str | None, id: str, model: str, jobs: Sequence[EngineJob]) -> None:
        """Requests whose tokens are too many are not kept, nor those with images: they could not be looked at."""
        if any(job.submission.images for job in jobs):
            return
        finished = [job.request for job in jobs if job.request is not None and job.request.state == "finished"]
        if not self._requests or len(finished) < len(jobs):
            return
        rows = tuple(
            FinishedChoice(job.submission.tokens, tuple(output.tokens), job.submission.source)
            for job, request in zip(jobs, finished, strict=True)
            for output in request.outputs
        )
        if not any(len(row) <= self._tokens for row in rows):
            return
        kept = self._kept.setdefault(tenant, OrderedDict())
        self._kept.move_to_end(tenant)
        kept[id] = FinishedRequest(
            model, tuple(row if len(row) <= self._tokens else FinishedChoice((), ()) for row in rows)
        )
        while len(kept) > self._requests:
            kept.popitem(last=False)
        while len(self._kept) > TENANTS:
            self._kept.popitem(last=False)

    def get(self, tenant: str | None, id: str) -> FinishedRequest:
        request = self._kept.get(tenant, {}).get(id)
        if request is None:
            raise ApiError(
                404,
                "request_not_found",
                f"there is no finished request of this id: the last {self._requests} of a key are kept, if they have "
                f"at most {self._tokens:,} tokens and no images",
                param="id",
            )
        return request

    async def run(self, work: Callable[[], T]) -> T:
        """In the one thread for this, or 429."""
        if self.calls > WAITING:
            raise overloaded(5)
        self._thread = self._thread or ThreadPoolExecutor(1, thread_name_prefix="attention")
        self.calls += 1
        future = self._thread.submit(work)
        loop = asyncio.get_running_loop()
        future.add_done_callback(lambda _: loop.call_soon_threadsafe(self._over))
        return await asyncio.wrap_future(future)

    def _over(self) -> None:
        self.calls -= 1

    def close(self) -> None:
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)
