"""What every route of the studio can reach: the models, a place for blocking work, and streams of events."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar, final

from fastapi import Request, Response
from pydantic_core import to_json

from vantage.errors import VantageError
from vantage.figures import Figure
from vantage.model import Model
from vantage.model.shared_copy import copy_sharing_weights
from vantage.serve.errors import ApiError, failed
from vantage.serve.generation_call import unless_client_leaves
from vantage.serve.logs import ServerLog
from vantage.serve.model_pool import LoadedModel, ModelPool
from vantage.serve.state import state_of
from vantage.serve.stream import EventStream
from vantage.serve.studio.answers import StreamError, StudioAnswer
from vantage.serve.studio.worker_thread import WorkerThread

T = TypeVar("T")
Carried = StudioAnswer | Figure | bytes  # bytes: JSON already
Event = tuple[str, Carried]  # its name, and what it carries
PING, PING_S = ": still at work\n\n", 10.0  # a comment, which readers of events skip
WAITING = 4  # calls that may wait for one thread


@final
class Studio:
    """One studio. ``folder`` is where conversations and reports lie; ``sources``: where each model comes from, by its
    name; ``default``: the model that the page begins with."""

    def __init__(self, model_pool: ModelPool, log: ServerLog, *, token: str, folder: Path, sources: Mapping[str, str]):
        self.model_pool, self.log, self.token, self.folder, self.sources = model_pool, log, token, folder, sources
        self.names = tuple(sources)
        self.default = self.names[0]
        self.troubles: dict[str, str] = {}  # why a model is not there, by its name
        self.closing: list[Callable[[], object]] = []  # called when the studio ends
        self._threads: dict[str, WorkerThread] = {}
        self._parts: dict[Callable[[Studio], Any], Any] = {}
        self._copies: dict[tuple[str, str], tuple[Model, Model]] = {}
        self._making = asyncio.Lock()

    # ---- models

    async def loaded(self, name: str) -> LoadedModel:
        """The server's own record of a model. Raises in words if it cannot be loaded."""
        try:
            async with self.model_pool.lease(name) as it:
                self.troubles.pop(name, None)
                return it
        except ApiError as e:
            if e.code == "model_load_failed":
                # the server hides causes from strangers; here the reader owns the machine
                cause = e.__cause__
                why = str(cause) if isinstance(cause, VantageError) else f"{type(cause).__name__}: {cause}"
                self.troubles[name] = f"{name} could not be loaded: {why}"
                raise ApiError(e.status, e.code, self.troubles[name], param="model") from cause
            if e.code in ("out_of_memory", "model_too_large"):
                self.troubles[name] = e.message
            raise

    async def model(self, name: str, use: str = "look") -> Model:
        """A model to look into: the weights of the served one behind modules of its own. One for each ``use``.

        Run it with ``work`` or ``call`` and ``model=name``: then one thread at a time has it.
        """
        served = (await self.loaded(name)).model
        async with self._making:
            kept = self._copies.get((name, use))
            if kept is None or kept[0] is not served:
                kept = self._copies[name, use] = (served, await asyncio.to_thread(copy_sharing_weights, served))
        return kept[1]

    # ---- work

    def part(self, make: Callable[[Studio], T]) -> T:
        """The one thing of its kind that this studio has, made when it is first wanted: conversations, captures."""
        if make not in self._parts:
            self._parts[make] = make(self)
        return self._parts[make]

    def thread(self, name: str) -> WorkerThread:
        """A thread and a short queue, made when it is first wanted."""
        if name not in self._threads:
            self._threads[name] = WorkerThread(name, WAITING)
        return self._threads[name]

    async def close(self) -> None:
        for close in self.closing:
            close()
        for thread in self._threads.values():
            thread.close()


def studio_of(request: Request) -> Studio:
    return request.app.state.studio


async def work(
    request: Request, make: Callable[[], Iterator[T]], *, model: str | None = None, thread: str | None = None
) -> AsyncGenerator[T]:
    """What a blocking generator yields, run in a thread. It is closed at its next yield when the reader goes away.

    ``model``: it runs the copy that ``studio.model(model)`` gave, so it waits for others who do. ``thread``: the name
    of another one. At most one runs in a thread; too many that wait are refused with 429.
    """
    async with contextlib.aclosing(_thread_of(request, model, thread).run(make)) as items:
        async for item in items:
            yield item


async def call(
    request: Request, function: Callable[[], T], *, model: str | None = None, thread: str | None = None
) -> T:
    """What a blocking function returns, run in a thread as ``work`` does. If the reader leaves, nobody waits for it."""

    def once() -> Iterator[T]:
        yield function()

    async def first() -> T:
        async with contextlib.aclosing(_thread_of(request, model, thread).run(once)) as items:
            async for item in items:
                return item
        raise AssertionError("a function returns or raises")

    return await unless_client_leaves(request, first())


def _thread_of(request: Request, model: str | None, thread: str | None) -> WorkerThread:
    return studio_of(request).thread(thread or ("studio" if model is None else f"look {model}"))


async def sse(request: Request, events: AsyncIterator[Event]) -> Response:
    """Events as a stream. What is wrong before the first is an answer with its status; later, an ``error`` event."""
    state = state_of(request)
    coming = _closable(events)
    try:
        first = await unless_client_leaves(request, _first(coming))
    except BaseException:
        await coming.aclose()
        raise
    chunks = _written(request, coming, first)
    return EventStream(chunks, stall_s=state.settings.limits.stall_s, abort=state.abort, close=coming.aclose)


async def _first(events: AsyncGenerator[Event]) -> Event | None:
    return await anext(events, None)


async def _closable(events: AsyncIterator[Event]) -> AsyncGenerator[Event]:
    try:
        async for event in events:
            yield event
    finally:
        if isinstance(events, AsyncGenerator):
            await events.aclose()


async def _written(request: Request, events: AsyncGenerator[Event], first: Event | None) -> AsyncGenerator[str]:
    try:
        if first is not None:
            yield written(*first)
        async for event in _never_silent(events):
            yield PING if event is None else written(*event)
    except ApiError as e:
        yield written("error", StreamError(message=e.message, code=e.code))
    except VantageError as e:
        yield written("error", StreamError(message=str(e), code="invalid_value"))
    except Exception as e:
        state_of(request).log.fault("", request.url.path, e)
        error = failed(e, own=False)
        yield written("error", StreamError(message=error.message, code=error.code))


async def _never_silent(events: AsyncGenerator[Event]) -> AsyncGenerator[Event | None]:
    """``None`` whenever nothing has come for a while: a reader cannot tell a long step from a server that is gone."""
    next_one = None
    try:
        while True:
            next_one = next_one or asyncio.ensure_future(_first(events))
            finished, _ = await asyncio.wait({next_one}, timeout=PING_S)
            if not finished:
                yield None
                continue
            event, next_one = next_one.result(), None
            if event is None:
                return
            yield event
    finally:
        if next_one is not None:
            next_one.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await next_one


def written(name: str, data: Carried) -> str:
    """One event, on one line: JSON has line breaks as escapes."""
    body = data if isinstance(data, bytes) else to_json(data, inf_nan_mode="null")
    return f"event: {name}\ndata: {body.decode()}\n\n"
