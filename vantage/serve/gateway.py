"""The state of a server with replicas: it lets requests in, chooses a replica for each and passes its answer on.

It stands in the process that listens, with the same guard, limits, log and signals as a server alone. Only what they
let pass reaches a replica, which checks it all again.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, final

from fastapi import FastAPI
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vantage.serve.errors import ApiError
from vantage.serve.guard import RequestGuard, has_body
from vantage.serve.logs import ServerLog
from vantage.serve.metrics import TYPE, Metrics, MetricsPage, merge_pages
from vantage.serve.replies import reply
from vantage.serve.routing import Routes, chain
from vantage.serve.settings import ServerSettings
from vantage.serve.state import ENTRY, TENANT
from vantage.serve.telemetry import ID, Telemetry

MAX_ATTEMPTS = 3  # replicas that a request is given to, as long as nothing of an answer was sent
PASSED = ("type", "asgi", "http_version", "method", "scheme", "path", "raw_path", "query_string", "headers", "client")
METRICS_S = 2.0  # a replica that has not response its metrics by then is left out


class ReplicaGone(Exception):
    """The replica died, or cannot be reached."""


class ReplicaSet(Protocol):
    """The replicas."""

    def names(self) -> Sequence[str]:
        """Those that are up."""
        ...

    def ask(self, name: str, scope: dict[str, Any], body: bytes) -> AsyncGenerator[list[Message]]:
        """What a replica answers. Raises ``ReplicaGone``."""
        ...


@final
@dataclass
class GatewayState:
    """What ``run_app`` needs to know of it."""

    settings: ServerSettings
    backend: Gateway
    log: ServerLog
    metrics: Metrics
    abort: Callable[[Any], None] = lambda client: None


def create_gateway(settings: ServerSettings, replicas: ReplicaSet, *, log: ServerLog | None = None) -> FastAPI:
    log, metrics = log or ServerLog(settings.logs), Metrics()
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    gateway = Gateway(replicas, settings.limits.stall_s, metrics)
    state = app.state.vantage = GatewayState(settings, gateway, log, metrics)
    app.add_middleware(_Relay, gateway=gateway, state=state)
    app.add_middleware(RequestGuard, access=settings.access, limits=settings.limits, backend=gateway)
    app.add_middleware(Telemetry, log=log, metrics=metrics)
    return app


@final
class _Relay:
    """In the place of routes."""

    def __init__(self, app: ASGIApp, gateway: Gateway, state: GatewayState):
        self._app, self._gateway, self._state = app, gateway, state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        await self._gateway.answer(scope, receive, send, self._state.abort)


@final
class Gateway:
    def __init__(self, replicas: ReplicaSet, stall_s: float, metrics: Metrics):
        self._replicas, self._stall_s, self._metrics = replicas, stall_s, metrics
        self._routes = Routes()
        self._loads: Counter[str] = Counter()
        self._tasks: set[asyncio.Task[Any]] = set()
        self.draining = False

    @property
    def busy(self) -> int:
        return len(self._tasks)

    async def close(self) -> None:
        """Whatever still runs ends with an error."""
        for task in self._tasks:
            task.cancel()

    async def answer(self, scope: Scope, receive: Receive, send: Send, abort: Callable[[Any], None]) -> None:
        if scope["path"] == "/health":
            return await self._health(send)
        body = (await receive()).get("body", b"") if has_body(scope) else b""  # the guard has read it, and whole
        response = _ClientResponse(send, self._stall_s)
        work = self._gather if scope["path"] == "/metrics" else self._relay
        task = asyncio.ensure_future(work(scope, body, response))
        gone = asyncio.ensure_future(_gone(receive))
        self._tasks.add(task)
        try:
            await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                await self._end(task, response)
        except TimeoutError:
            abort(scope.get("client"))  # a reader that takes nothing: an orderly end would wait for it
        finally:
            gone.cancel()
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await task
            self._tasks.discard(task)

    async def _end(self, task: asyncio.Task[None], response: _ClientResponse) -> None:
        """An error before the answer is an answer; in the midst of a stream it is its last event."""
        try:
            task.result()
        except asyncio.CancelledError:
            await response.fail(ApiError(503, "unloaded", "the server stopped before the answer was complete", retry=5))
        except ApiError as e:
            await response.fail(e)

    async def _relay(self, scope: Scope, body: bytes, response: _ClientResponse) -> None:
        prefixes = chain(scope[TENANT], scope["path"], body)
        passed_scope = {name: scope[name] for name in PASSED if name in scope} | {ID: scope[ENTRY].id}
        everywhere = _is_about_an_earlier_request(scope["path"], body)  # one of them has it
        tried: list[str] = []
        for _ in range(max(MAX_ATTEMPTS, len(self._replicas.names()) if everywhere else 0)):
            loads = {name: self._loads[name] for name in self._replicas.names() if name not in tried}
            if not loads:
                break
            name = self._routes.choose(prefixes, loads)
            tried.append(name)
            scope[ENTRY].replica = name
            more = everywhere and len(loads) > 1
            try:
                if await self._passed(name, passed_scope, body, response, unless=404 if more else 0):
                    return
            except ReplicaGone:
                if response.begun:
                    raise _lost() from None
        raise _lost()

    async def _passed(
        self, name: str, passed_scope: dict[str, Any], body: bytes, response: _ClientResponse, unless: int
    ) -> bool:
        """Whether it was: an answer of the status ``unless`` is not."""
        self._loads[name] += 1
        try:
            async with contextlib.aclosing(self._replicas.ask(name, passed_scope, body)) as answer:
                async for messages in answer:
                    if messages[0].get("status") == unless:
                        return False
                    for message in messages:
                        await response.send(message)
            return True
        finally:
            self._loads[name] -= 1
            if not self._loads[name]:
                del self._loads[name]

    async def _health(self, send: Send) -> None:
        status = "draining" if self.draining else "ok" if self._replicas.names() else "starting"
        body = json.dumps({"status": status}).encode()
        await reply(send, 200 if status == "ok" else 503, body, {"Content-Type": "application/json"})

    async def _gather(self, scope: Scope, body: bytes, response: _ClientResponse) -> None:
        """The metrics of all, each with the name of its replica."""
        passed_scope = {name: scope[name] for name in PASSED if name in scope} | {ID: scope[ENTRY].id}
        names = list(self._replicas.names())
        pages = await asyncio.gather(*(self._page(name, passed_scope) for name in names))
        page = merge_pages({"front": self._own()} | {n: p for n, p in zip(names, pages, strict=True) if p is not None})
        await reply(response.send, 200, page.encode(), {"Content-Type": TYPE})

    async def _page(self, name: str, passed_scope: dict[str, Any]) -> str | None:
        parts: list[bytes] = []
        try:
            async with (
                asyncio.timeout(METRICS_S),
                contextlib.aclosing(self._replicas.ask(name, passed_scope, b"")) as answer,
            ):
                async for messages in answer:
                    if any(message.get("status", 200) != 200 for message in messages):
                        return None
                    parts += [message.get("body", b"") for message in messages]
        except (ReplicaGone, TimeoutError):
            return None
        return b"".join(parts).decode()

    def _own(self) -> str:
        page = MetricsPage()
        page.counter("vantage_requests_total", "Requests by route and status", self._metrics.requests)
        page.counter("vantage_refused_total", "Requests refused, by the code of the error", self._metrics.refused)
        page.histogram("vantage_request_seconds", "From arrival to the end of the answer", self._metrics.seconds)
        page.put("vantage_busy", "gauge", "Requests under way", [({}, self.busy)])
        return str(page)


@final
class _ClientResponse:
    """What a client was response so far."""

    def __init__(self, send: Send, stall_s: float):
        self._send, self._stall_s = send, stall_s
        self.begun = self._over = self._events = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.begun = True
            headers = {name.lower(): value for name, value in message.get("headers", ())}
            self._events = headers.get(b"content-type", b"").startswith(b"text/event-stream")
        elif not message.get("more_body", False):
            self._over = True
        async with asyncio.timeout(self._stall_s):
            await self._send(message)

    async def fail(self, error: ApiError) -> None:
        if not self.begun:
            raise error
        if self._over:
            return
        if not self._events:
            raise error  # half an answer: the connection is closed
        event = f"data: {json.dumps(error.body(), ensure_ascii=False, separators=(',', ':'))}\n\n"
        await self.send({"type": "http.response.body", "body": event.encode(), "more_body": False})


def _is_about_an_earlier_request(path: str, body: bytes) -> bool:
    """Which replica answered that one is not known here."""
    goes_on = path == "/v1/responses" and b'"previous_response_id"' in body
    return goes_on or path == "/v1/attention" or path.startswith("/v1/responses/")


def _lost() -> ApiError:
    return ApiError(503, "replica_lost", "the replica that computed this answer is gone: ask again", retry=1)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def replica_answer(
    answer: AsyncIterator[Any], gone: tuple[type[BaseException], ...]
) -> AsyncGenerator[list[Message]]:
    """An answer whose end by one of these errors means that its replica is gone."""
    try:
        async for messages in answer:
            yield messages
    except gone as e:
        raise ReplicaGone(str(e)) from e
