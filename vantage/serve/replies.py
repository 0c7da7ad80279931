"""Answers sent by hand, where no route is at work."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Mapping

from starlette.types import Receive, Send

from vantage.serve.errors import ApiError

# What is still read of a body that was refused. A connection that is closed while its client sends is reset, and a
# client that is reset loses the answer: so it may send on for a while, and nothing of it is kept.
REST_BYTES = 64 * 2**20
REST_S = 30.0
REST_PAUSE_S = 2.0  # nothing more comes: it waits for us, or was told not to send (Expect: 100-continue)


async def reply(send: Send, status: int, body: bytes, headers: Mapping[str, str], *, more: bool = False) -> None:
    """``more``: the end is left to whoever calls."""
    listed = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    listed += [] if status == 204 else [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": listed})
    await send({"type": "http.response.body", "body": body, "more_body": more})


async def reply_error(receive: Receive, send: Send, error: ApiError) -> None:
    body = json.dumps(error.body(), ensure_ascii=False).encode("utf-8", "replace")
    headers = {**error.headers(), "Content-Type": "application/json"}
    if error.status not in (408, 413):
        return await reply(send, error.status, body, headers)
    # the whole answer goes out at once; the connection ends once the client has stopped sending
    await reply(send, error.status, body, {**headers, "Connection": "close"}, more=True)
    await _discard_rest(receive)
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _discard_rest(receive: Receive) -> None:
    """Reads what is left of a body, within bounds."""
    left = REST_BYTES
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(REST_S):
            while left > 0:
                async with asyncio.timeout(REST_PAUSE_S):
                    message = await receive()
                left -= len(message.get("body", b""))
                if not message.get("more_body", False):  # the end of the body, or the client has left
                    return
