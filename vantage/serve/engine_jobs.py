"""What goes to the engine's thread, and what comes back: the only place where the two sides meet."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import final

from vantage.generation import Constraint, Event, Request, Sampling, Stop
from vantage.serve.errors import ApiError, late, slow_reader
from vantage.spec.images import PreparedImage


@final
@dataclass(frozen=True)
class Submission:
    """A request for the engine, all of it checked and encoded."""

    tokens: tuple[int, ...]
    max_tokens: int
    sampling: Sampling
    stop: Stop
    n: int = 1
    tenant: str | None = None
    constraint: Constraint | None = None
    source: tuple[int, ...] | None = None
    adapter: str | None = None
    prompt_logprobs: int | None = None  # None: the prompt is not scored
    images: tuple[PreparedImage, ...] = ()

    @property
    def prompt_tokens(self) -> int:
        return len(self.tokens if self.source is None else self.source)


@final
class EngineJob:
    """A submission on its way, as the event loop sees it. Everything here runs in the loop's thread.

    ``backlog``: events that may lie here unread. A reader that is further behind loses the job, so a
    stalled reader costs a bounded amount of memory.
    """

    def __init__(self, submission: Submission, backlog: int, dropped: Callable[[EngineJob], None], news: asyncio.Event):
        self.submission, self._backlog, self._dropped, self._news = submission, backlog, dropped, news
        self.request: Request | None = None  # the engine's own; read only, and only for what no longer changes
        self.error: ApiError | None = None
        self.over = False
        self._events: deque[Event] = deque()

    def deliver(self, request: Request, events: list[Event], last: bool) -> None:
        if self.over:
            return
        self.request = request
        self._events.extend(events)
        if last:
            self.over = True
        elif len(self._events) > self._backlog:
            self.end(slow_reader())
        self._news.set()

    def fail(self, error: ApiError) -> None:
        """From the engine's side: it knows already."""
        if not self.over:
            self.over, self.error = True, error
            self._news.set()

    def end(self, error: ApiError | None = None) -> None:
        """From our side: the engine is told to let go of it. Does nothing once it is over."""
        if not self.over:
            self.over, self.error = True, error
            self._events.clear()
            self._dropped(self)
            self._news.set()

    @property
    def cached_tokens(self) -> int:
        """Of the prompt, how many were computed before. Why not more is not for a tenant to see."""
        prefix = None if self.request is None else self.request.prefix
        return 0 if prefix is None else prefix.tokens

    def take(self) -> list[Event]:
        """What has come since the last time."""
        events = list(self._events)
        self._events.clear()
        return events

    @property
    def finished(self) -> bool:
        """Nothing more comes, and all that came was taken."""
        return self.over and not self._events


async def sample_events(
    jobs: Sequence[EngineJob], news: asyncio.Event, deadline: float
) -> AsyncIterator[list[tuple[int, Event]]]:
    """What the jobs of one request bring, each event with the number of its job. Raises the first error."""
    while not all(job.finished for job in jobs):
        try:
            async with asyncio.timeout_at(deadline):
                await news.wait()
        except TimeoutError:
            raise late() from None
        news.clear()
        for job in jobs:
            if job.error is not None:
                raise job.error
        batch = [(i, event) for i, job in enumerate(jobs) for event in job.take()]
        if batch:
            yield batch
