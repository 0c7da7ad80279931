"""Answers sent by hand, where no route is at work."""

from __future__ import annotations

import json
from collections.abc import Mapping

from starlette.types import Send

from vantage.serve.errors import ApiError


async def reply(send: Send, status: int, body: bytes, headers: Mapping[str, str]) -> None:
    listed = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    listed += [] if status == 204 else [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": listed})
    await send({"type": "http.response.body", "body": body})


async def reply_error(send: Send, error: ApiError) -> None:
    body = json.dumps(error.body(), ensure_ascii=False).encode("utf-8", "replace")
    headers = {**error.headers(), "Content-Type": "application/json"}
    if error.status in (408, 413):
        headers["Connection"] = "close"  # the rest of the body is not wanted
    await reply(send, error.status, body, headers)
