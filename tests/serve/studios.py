"""A studio in this process, on a real socket, over models that tests can see into."""

from __future__ import annotations

import contextlib
import io
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from fastapi import FastAPI

from tests.generation.folder import chat_model
from tests.processes import PATIENCE
from vantage.serve.app import create_app
from vantage.serve.logs import ServerLog
from vantage.serve.run import _bound
from vantage.serve.settings import Access, Batching, Limits, Logs, ServedModel, ServerSettings
from vantage.serve.studio import create_studio
from vantage.serve.studio.state import Studio

BATCHING = Batching(rows=4, queue=4, capacity=512)


class Running:
    """An app on a socket. ``log`` holds what it wrote."""

    def __init__(self, app: FastAPI, log: io.StringIO):
        self.app, self.log = app, log
        self._sock = _bound("127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._sock.getsockname()[1]}"
        config = uvicorn.Config(app, log_config=None, ws="none", timeout_graceful_shutdown=2)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._sock]}, daemon=True)
        self._thread.start()
        while not self._server.started:
            assert self._thread.is_alive()
            time.sleep(0.01)

    @property
    def studio(self) -> Studio:
        return self.app.state.studio

    def http(self, token: str | None = "", **headers: str) -> httpx.Client:
        """``token``: the right one unless another is said; ``None``: none."""
        said = {} if token is None else {"X-Vantage-Token": token or self.studio.token}
        return httpx.Client(base_url=self.url, headers={**said, **headers}, timeout=PATIENCE)

    def events(self, path: str, body: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
        with self.http() as http, http.stream("POST", f"/studio/api{path}", json=body) as answer:
            if answer.status_code != 200:
                answer.read()
            assert answer.status_code == 200, answer.text
            return list(told(answer))

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(20)
        self._sock.close()
        assert not self._thread.is_alive()


def told(answer: httpx.Response) -> Iterator[tuple[str, dict[str, Any]]]:
    """The events of a stream, as they come."""
    name = ""
    for line in answer.iter_lines():
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            yield name, json.loads(line.removeprefix("data: "))


@contextlib.contextmanager
def running(folder: Path, *names: str, load: Any = None, troubles: dict[str, str] | None = None) -> Iterator[Running]:
    """A studio over these models."""
    log = io.StringIO()
    settings = ServerSettings(tuple(ServedModel(name, name) for name in names or ("tiny",)), batching=BATCHING)
    load = load or (lambda served: chat_model())
    yield from _run(
        create_studio(settings, load=load, log=ServerLog(Logs(), log), folder=folder, troubles=troubles), log
    )


@contextlib.contextmanager
def served(limits: Limits = Limits(), model: Any = None, keys: tuple[str, ...] = ()) -> Iterator[Running]:
    """The server alone, over the tiny model."""
    log = io.StringIO()
    settings = ServerSettings((ServedModel("tiny", "tiny"),), batching=BATCHING, limits=limits, access=Access(keys))
    yield from _run(create_app(settings, load=lambda served: model or chat_model(), log=ServerLog(Logs(), log)), log)


def _run(app: FastAPI, log: io.StringIO) -> Iterator[Running]:
    it = Running(app, log)
    try:
        yield it
    finally:
        it.stop()


def of(events: list[tuple[str, dict[str, Any]]], name: str) -> list[dict[str, Any]]:
    return [said for kind, said in events if kind == name]
