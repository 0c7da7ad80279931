"""The application in a process of a cluster: requests come as values, and answers go back as a stream of them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any, final

from fastapi import FastAPI
from starlette.types import Message, Scope

from vantage.serve.app import create_app
from vantage.serve.model_group import ModelGroup, load_share
from vantage.serve.settings import ServerSettings

LEAVING_S = 2.0  # for the app to see that a client has left


@final
class Replica:
    def __init__(self, settings: ServerSettings, cores: int = 1):
        """``cores`` of each process, where the model lies over several."""
        self._app = _group_app(settings, cores) if settings.tensor_parallel > 1 else create_app(settings)
        self._begun: asyncio.Task[None] | None = None
        self._held = contextlib.AsyncExitStack()

    async def check_health(self) -> None:
        """Ray asks now and then. Whatever is raised here makes it start another replica."""
        await self._ready()

    async def ask(self, scope: dict[str, Any], body: bytes, to: str = "") -> AsyncGenerator[list[Message]]:
        """The answer's messages, those that are there together. ``to`` was for whoever chose this replica."""
        await self._ready()
        messages_out: asyncio.Queue[Message | None] = asyncio.Queue()
        left, gone = [body], asyncio.Event()

        async def receive() -> Message:
            if left:
                return {"type": "http.request", "body": left.pop(), "more_body": False}
            await gone.wait()
            return {"type": "http.disconnect"}

        task = asyncio.create_task(self._answer({**scope}, receive, messages_out))
        try:
            while True:
                batch = [await messages_out.get()]
                while not messages_out.empty():
                    batch.append(messages_out.get_nowait())
                if messages := [message for message in batch if message is not None]:
                    yield messages
                if batch[-1] is None:
                    break
            await task
        finally:
            gone.set()
            await asyncio.wait({task}, timeout=LEAVING_S)
            task.cancel()

    async def _answer(self, scope: Scope, receive: Any, messages_out: asyncio.Queue[Message | None]) -> None:
        try:
            await self._app(scope, receive, messages_out.put)
        finally:
            messages_out.put_nowait(None)

    async def _ready(self) -> None:
        """The app's beginning, once, in the loop that requests come from."""
        if self._begun is None:
            self._begun = asyncio.create_task(self._begin())
        await asyncio.shield(self._begun)

    async def _begin(self) -> None:
        await self._held.enter_async_context(self._app.router.lifespan_context(self._app))

    async def end(self) -> None:
        await self._held.aclose()


def _group_app(settings: ServerSettings, cores: int) -> FastAPI:
    """The application of the first process of a group, which starts the others."""
    from vantage.serve.ray_group import RayGroup

    group: ModelGroup = RayGroup(settings, cores)
    return create_app(replace(settings, preload=True), load=lambda served: load_share(served, settings), group=group)
