"""Running the app with uvicorn: the socket, the signals and the end."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import signal
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any, Protocol

import uvicorn
from fastapi import FastAPI

from vantage.errors import BadInput
from vantage.serve.app import create_app
from vantage.serve.logs import ServerLog, UvicornHandler
from vantage.serve.model_group import ModelGroup
from vantage.serve.model_pool import Backend, Load
from vantage.serve.settings import ServerSettings

SEND_BYTES = 64 * 1024  # the kernel's buffer for a reader: without a bound it takes megabytes before a stall shows
FLUSH_TIMEOUT_S = 2.0  # for answers that were cut, to be sent
HEADERS_BYTES = 32 * 1024
ENDING = (signal.SIGTERM, signal.SIGINT)


class Running(Protocol):
    """What is to be known of an app that is run: ``app.state.vantage``."""

    @property
    def settings(self) -> ServerSettings: ...
    @property
    def backend(self) -> Backend: ...
    @property
    def log(self) -> ServerLog: ...

    abort: Callable[[Any], None]


def serve(
    settings: ServerSettings,
    *,
    load: Load | None = None,
    ready: Callable[[str], None] | None = None,
    group: ModelGroup | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT. ``ready`` is told the address once requests are taken."""
    run_app(create_app(settings, load=load, group=group), settings, ready=ready)


def run_app(app: FastAPI, settings: ServerSettings, *, ready: Callable[[str], None] | None = None) -> None:
    """The same for an app that was made elsewhere."""
    state: Running = app.state.vantage
    log = state.log
    sock = _bound(settings.host, settings.port)
    host, port = sock.getsockname()[:2]
    url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        ws="none",
        timeout_keep_alive=30,
        limit_concurrency=settings.limits.connections,
        timeout_graceful_shutdown=int(FLUSH_TIMEOUT_S),
        h11_max_incomplete_event_size=HEADERS_BYTES,
        http="h11",
        loop="asyncio",  # whatever else is installed
    )
    for name in ("uvicorn", "uvicorn.error"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [UvicornHandler(log)] if name == "uvicorn" else [], name != "uvicorn"
        logger.setLevel(logging.WARNING)
    server = uvicorn.Server(config)
    state.abort = lambda client: _abort(server, client)
    _on_start(app, server, state, lambda: (log.write("info", "listening", url=url), ready and ready(url)))
    _settle()
    with contextlib.closing(sock):
        server.run(sockets=[sock])


def _settle() -> None:
    """What the imports made stays for ever: the collector need not look at it again. A full collection over all of
    torch holds the interpreter for a tenth of a second, and with it the event loop, wherever it falls."""
    gc.collect()
    gc.freeze()


def _bound(host: str, port: int) -> socket.socket:
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        sock = socket.socket(family, kind, proto)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BYTES)  # connections take it over
        sock.bind(address)
    except OSError as e:
        raise BadInput(f"{host} port {port} cannot be listened on: {e}") from e
    return sock


def _on_start(app: FastAPI, server: uvicorn.Server, state: Running, ready: Callable[[], Any]) -> None:
    """Put our signal handlers in the place of uvicorn's once it has put its own: those would stop listening at once.
    What this process was started to ignore it ignores, as the background of a script ignores SIGINT."""
    ignored = [number for number in ENDING if signal.getsignal(number) is signal.SIG_IGN]
    inner = app.router.lifespan_context

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[Any]:
        loop = asyncio.get_running_loop()
        draining: list[asyncio.Task[None]] = []

        def stop() -> None:
            if draining:
                server.should_exit = server.force_exit = True  # asked twice
            else:
                draining.append(loop.create_task(_drain(server, state)))

        for number in ENDING:
            if number in ignored:
                signal.signal(number, signal.SIG_IGN)
            else:
                loop.add_signal_handler(number, stop)
        async with inner(app) as state_of_app:
            starting = loop.create_task(_announce(server, ready))
            yield state_of_app
            starting.cancel()

    app.router.lifespan_context = lifespan


async def _announce(server: uvicorn.Server, ready: Callable[[], Any]) -> None:
    while not server.started:
        await asyncio.sleep(0.01)
    ready()


async def _drain(server: uvicorn.Server, state: Running) -> None:
    """New requests get 503; those that run may finish, within the limit. Then the server ends."""
    state.backend.draining = True
    limit = state.settings.limits.drain_s
    state.log.write("info", "draining", busy=state.backend.busy, seconds=limit)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(limit):
            while state.backend.busy:
                await asyncio.sleep(0.05)
    await asyncio.sleep(0.05)  # the last bytes of the last answers
    left = state.backend.busy
    if left:
        await state.backend.close()  # their answers end with an error
        await asyncio.sleep(0.05)
    state.log.write("info", "stopped", cut=left)
    server.should_exit = True


def _abort(server: uvicorn.Server, client: Any) -> None:
    """Cut a connection without waiting for what is still to be sent."""
    for connection in list(server.server_state.connections):
        if getattr(connection, "client", None) == client and client is not None:
            connection.transport.abort()
