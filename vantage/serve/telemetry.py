"""Around every request: its id, its line in the log, its place in the metrics, and its errors as envelopes."""

from __future__ import annotations

import secrets
import time
from typing import Any, final

from starlette.types import ASGIApp, Receive, Scope, Send

from vantage.serve.errors import ApiError, failed
from vantage.serve.logs import LogEntry, ServerLog
from vantage.serve.metrics import Metrics
from vantage.serve.replies import reply_error
from vantage.serve.state import ENTRY

ROUTES = frozenset(
    {
        "/health",
        "/metrics",
        "/v1/models",
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/embeddings",
        "/v1/responses",
        "/v1/attention",
        "/tokenize",
        "/detokenize",
        "/openapi.json",
    }
)
ID = "vantage.id"  # in a request's scope, where somebody before us has given it one
METHODS = frozenset({"GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "TRACE"})
SAFE = ((b"x-content-type-options", b"nosniff"), (b"cache-control", b"no-store"))


def route_of(path: str) -> str:
    """Few values: what a client makes up must not become a label or a line of its own."""
    if path in ROUTES:
        return path
    fronts = {
        "/v1/models/": "/v1/models/{model}",
        "/v1/responses/": "/v1/responses/{id}",
        "/studio/": "/studio/",
    }
    return next((name for front, name in fronts.items() if path.startswith(front)), "other")


@final
class Telemetry:
    """The outermost middleware."""

    def __init__(self, app: ASGIApp, log: ServerLog, metrics: Metrics):
        self._app, self._log, self._metrics = app, log, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            return await send({"type": "websocket.close"})
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        method = scope["method"] if scope["method"] in METHODS else "other"
        id = scope.get(ID) or f"req_{secrets.token_hex(12)}"
        entry = LogEntry(id, method, route_of(scope["path"]), time.perf_counter())
        scope[ENTRY] = entry

        async def sent(message: Any) -> None:
            if message["type"] == "http.response.start":
                entry.status = message["status"]
                message = {**message, "headers": _headers(message, entry.id)}
            await send(message)

        try:
            await self._app(scope, receive, sent)
        except Exception as e:
            if not isinstance(e, ApiError):
                self._log.fault("", entry.route, e)
            error = e if isinstance(e, ApiError) else failed(e, own=False)
            entry.error = error.code
            if entry.status:
                raise  # too late for an answer: the connection is closed
            await reply_error(receive, sent, error)
        finally:
            self._note(entry)

    def _note(self, entry: LogEntry) -> None:
        seconds = time.perf_counter() - entry.begun
        self._metrics.requests.add(route=entry.route, status=str(entry.status))
        self._metrics.seconds.observe(seconds, route=entry.route)
        if entry.error is not None:
            self._metrics.refused.add(code=entry.error)
        if entry.route not in ("/health", "/metrics") or entry.status >= 400:
            self._log.request(entry, seconds)


def _headers(message: Any, id: str) -> list[tuple[bytes, bytes]]:
    headers = list(message.get("headers", ()))
    names = {name.lower() for name, _ in headers}
    return [*headers, *((n, v) for n, v in ((b"x-request-id", id.encode()), *SAFE) if n not in names)]
