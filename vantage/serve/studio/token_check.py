"""The token: made at each start, put into the page, asked of every call.

A page of somebody else cannot read ours (no CORS, and the guard checks Host and Origin), so it cannot know the token.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import final

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from vantage.serve.errors import ApiError

API = "/studio/api"
HEADER = "X-Vantage-Token"


@final
class TokenCheck:
    """An ASGI middleware behind the guard. Without the token nothing under /studio/api is reached, not even a 404."""

    def __init__(self, app: ASGIApp, token: str):
        self._app, self._digest = app, hashlib.sha256(token.encode()).digest()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and _inside(scope["path"]):
            token = Headers(scope=scope).get(HEADER, "")
            digest = hashlib.sha256(token.encode("utf-8", "replace")).digest()
            if not hmac.compare_digest(digest, self._digest):
                raise ApiError(
                    403,
                    "wrong_token",
                    "this call has no valid token: the studio was started again since the page was opened, "
                    "so open the page again",
                )
        await self._app(scope, receive, send)


def _inside(path: str) -> bool:
    return path == API or path.startswith(f"{API}/")
