"""Server-sent events to a reader that may be slow, or leave."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, final

from fastapi import Response
from starlette.types import Message, Receive, Scope, Send

Abort = Callable[[Any], None]  # cuts the connection of a client, given its address


@final
class EventStream(Response):
    """Sends what ``chunks`` yields. A client that leaves, or takes nothing for ``stall_s`` seconds, ends it."""

    media_type = "text/event-stream"

    def __init__(
        self, chunks: AsyncGenerator[str], *, stall_s: float, abort: Abort, close: Callable[[], Awaitable[None]]
    ):
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._chunks, self._stall_s, self._abort, self._close = chunks, stall_s, abort, close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        pump = asyncio.ensure_future(self._pump(scope, send))
        gone = asyncio.ensure_future(_gone(receive))
        try:
            await asyncio.wait({pump, gone}, return_when=asyncio.FIRST_COMPLETED)
            if pump.done():
                pump.result()
        finally:
            for task in (pump, gone):
                task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await pump
            await self._close()  # a pump that never began has closed nothing

    async def _pump(self, scope: Scope, send: Send) -> None:
        async with contextlib.aclosing(self._chunks):
            try:
                start = {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
                await self._sent(send, start)
                async for text in self._chunks:
                    await self._sent(send, {"type": "http.response.body", "body": text.encode(), "more_body": True})
                await self._sent(send, {"type": "http.response.body", "body": b"", "more_body": False})
            except TimeoutError:
                self._abort(scope.get("client"))  # an orderly end would wait for the reader

    async def _sent(self, send: Send, message: Message) -> None:
        async with asyncio.timeout(self._stall_s):
            await send(message)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
