"""The application."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from functools import cache
from typing import Any

import torch
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.routing import Match, Mount

from vantage import __version__
from vantage.errors import VantageError
from vantage.families import load as load_model
from vantage.model import Model
from vantage.serve import attention, chat, completions, embeddings, status, text
from vantage.serve.errors import ApiError, bad
from vantage.serve.finished_requests import FinishedRequests
from vantage.serve.guard import RequestGuard
from vantage.serve.logs import ServerLog
from vantage.serve.memory import give_back_regularly
from vantage.serve.metrics import Metrics
from vantage.serve.model_group import ModelGroup
from vantage.serve.model_pool import Load, ModelPool
from vantage.serve.model_responses import routes as model_responses
from vantage.serve.model_responses.stored import StoredResponses
from vantage.serve.openapi import describe
from vantage.serve.settings import Batching, ServedModel, ServerSettings
from vantage.serve.state import ServerState, entry_of
from vantage.serve.telemetry import Telemetry
from vantage.serve.validation import explain
from vantage.spec.devices import generation_device

METHODS = ("DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT")


def create_app(
    settings: ServerSettings,
    *,
    load: Load | None = None,
    log: ServerLog | None = None,
    group: ModelGroup | None = None,
) -> FastAPI:
    """The server as an ASGI application. ``load``: how a model is had; by default with ``vt.load``."""
    return assemble(settings, load=load, log=log, group=group)


def assemble(
    settings: ServerSettings,
    *,
    load: Load | None = None,
    log: ServerLog | None = None,
    within: Sequence[Middleware] = (),
    group: ModelGroup | None = None,
) -> FastAPI:
    """The application, with room for more. ``within``: what a request passes after the guard. ``group``: the processes
    that its model lies over."""
    log = log or ServerLog(settings.logs)
    metrics = Metrics()
    model_pool = ModelPool(settings, log, metrics, load or _loader(settings.batching), group)

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        if settings.preload:
            await model_pool.preload()
        giving_back = asyncio.create_task(give_back_regularly(lambda: sum(metrics.requests.values.values())))
        yield
        giving_back.cancel()
        finished_requests.close()
        await model_pool.close()

    app = FastAPI(lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url="/openapi.json")
    finished_requests = FinishedRequests(settings.limits.attention_requests, settings.limits.attention_tokens)
    app.state.vantage = ServerState(
        settings, model_pool, log, metrics, finished_requests, StoredResponses(settings.limits.stored_responses)
    )
    for part in (chat, completions, model_responses, embeddings, text, attention, status):
        app.include_router(part.router)
    app.add_exception_handler(ApiError, _api_error)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(VantageError, _refused)
    # FastAPI's own way to replace it. Made when first asked for: a quarter of a second that no start waits for
    app.openapi = cache(lambda: describe(app, __version__, settings.model_names, keyed=bool(settings.access.keys)))
    # the last added is the outermost
    for inner in reversed(within):
        app.add_middleware(inner.cls, *inner.args, **inner.kwargs)
    app.add_middleware(RequestGuard, access=settings.access, limits=settings.limits, backend=model_pool)
    app.add_middleware(Telemetry, log=log, metrics=metrics)
    return app


def _loader(batching: Batching) -> Load:
    dtype, device = batching.dtype, generation_device(batching.device)
    kept: Any = dtype if dtype in ("auto", "int8", "int4") else getattr(torch, dtype)

    def load(served: ServedModel) -> Model:
        if not batching.max_memory:
            return load_model(served.source, dtype=kept, device=device)
        limit = {"max_memory": batching.max_memory, "context": batching.capacity}
        return load_model(served.source, dtype=kept, device=device, **limit)

    return load


# ---- errors as envelopes


def _answer(request: Request, error: ApiError) -> JSONResponse:
    entry_of(request).error = error.code
    return JSONResponse(error.body(), error.status, headers=dict(error.headers()))


async def _api_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, ApiError)
    return _answer(request, error)


async def _refused(request: Request, error: Exception) -> JSONResponse:
    return _answer(request, bad(str(error)))


async def _invalid(request: Request, error: Exception) -> JSONResponse:
    """The first thing that is wrong. Texts that were sent are not sent back."""
    assert isinstance(error, RequestValidationError)
    route = request.scope.get("route")
    field = route.body_field if isinstance(route, APIRoute) else None
    model = None if field is None else field.field_info.annotation
    known = model.model_fields if isinstance(model, type) and issubclass(model, BaseModel) else ()
    return _answer(request, explain(error.errors(), error.body, known))


async def _http_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    messages = {404: "there is nothing here", 405: "there is no such method here"}
    code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "http_error")
    answer = _answer(request, ApiError(error.status_code, code, messages.get(error.status_code, str(error.detail))))
    answer.headers.update(error.headers or {})
    if "allow" in answer.headers:
        answer.headers["allow"] = ", ".join(_methods(request))
    return answer


def _methods(request: Request) -> list[str]:
    """All that this path knows: each has a route of its own, and the first of them would name only its own."""
    routes = [route for route in request.app.routes if not isinstance(route, Mount)]
    return [
        method
        for method in METHODS
        if any(route.matches({**request.scope, "method": method})[0] is Match.FULL for route in routes)
    ]
