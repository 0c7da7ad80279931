"""The studio's application: the server's, and on top of it the page and its API."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

from fastapi import FastAPI
from starlette.middleware import Middleware

from vantage.checkpoints.pull import home
from vantage.errors import BadInput
from vantage.serve.app import assemble
from vantage.serve.logs import ServerLog
from vantage.serve.model_pool import Load
from vantage.serve.settings import ServerSettings, loopback
from vantage.serve.state import ServerState
from vantage.serve.studio import page_files
from vantage.serve.studio.pages import routers
from vantage.serve.studio.state import Studio
from vantage.serve.studio.token_check import TokenCheck


def create_studio(
    settings: ServerSettings,
    *,
    load: Load | None = None,
    log: ServerLog | None = None,
    folder: Path | None = None,
    troubles: Mapping[str, str] | None = None,
) -> FastAPI:
    """The studio as an ASGI application.

    ``folder``: where conversations and reports lie. ``troubles``: models that are known not to be there, and why.
    """
    _check(settings)
    token = secrets.token_urlsafe(32)
    check = Middleware(TokenCheck, token=token)
    app = assemble(settings, load=load, log=log, within=[check])
    state: ServerState = app.state.vantage
    sources = {served.name: served.source for served in settings.models}
    studio = Studio(state.model_pool, state.log, token=token, folder=folder or home() / "studio", sources=sources)
    studio.troubles.update(troubles or {})
    app.state.studio = studio
    for router in routers():
        app.include_router(router, include_in_schema=False)
    app.include_router(page_files.router)  # the last: it takes every path that is left
    inner = app.router.lifespan_context

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with inner(app):
            yield
            await studio.close()

    app.router.lifespan_context = lifespan
    return app


def _check(settings: ServerSettings) -> None:
    access = settings.access
    if not loopback(settings.host):
        raise BadInput(f"host {settings.host}: the studio runs code for whoever reaches it, so it is on 127.0.0.1 only")
    if access.keys or access.hosts or access.origins:
        raise BadInput("the studio is for this machine alone: it takes no API keys, other hosts or other origins")
