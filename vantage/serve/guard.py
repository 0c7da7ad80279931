"""Who gets in: Host, Origin, key, and a body of the right kind and size. Before anything is done for a request."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import json
import re
from collections.abc import Iterable
from typing import Any, NoReturn, final
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vantage.serve.errors import ApiError, bad, draining
from vantage.serve.model_pool import Backend
from vantage.serve.replies import reply
from vantage.serve.settings import Access, Limits
from vantage.serve.state import ENTRY, TENANT

OPEN = ("/health",)  # needs no key
WHILE_DRAINING = ("/health", "/metrics")
SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


def has_body(scope: Scope) -> bool:
    """Whether a request brings a body, whatever its path: every such body is read by the guard, and whole.

    One that says of what kind its body is has one, even an empty one; unless it is a GET or the like, where clients
    name a kind out of habit.
    """
    headers = Headers(scope=scope)
    if "transfer-encoding" in headers or headers.get("content-length", "0") != "0":
        return True
    return scope["method"] in ("POST", "PUT", "PATCH") and "content-type" in headers


@final
class RequestGuard:
    """An ASGI middleware. What it refuses never reaches a route."""

    def __init__(self, app: ASGIApp, access: Access, limits: Limits, backend: Backend):
        self._app, self._access, self._limits, self._backend = app, access, limits, backend
        self._keys = [hashlib.sha256(key.encode()).digest() for key in access.keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        headers = Headers(scope=scope)
        self._check_host(headers)
        allowed = self._check_origin(headers)
        if allowed is not None:
            send = _with_cors(send, allowed)
            if scope["method"] == "OPTIONS" and "access-control-request-method" in headers:
                return await reply(send, 204, b"", {})
        self._check_key(scope, headers)
        if self._backend.draining and scope["path"] not in WHILE_DRAINING:
            raise draining()
        if has_body(scope):
            self._check_kind(headers)
            body = await self._body(headers, receive)
            if body is None:
                return
            _check_json(body)
            receive = _replayed(body, receive)
        await self._app(scope, receive, send)

    def _check_host(self, headers: Headers) -> None:
        """A page that made its own name point here (DNS rebinding) still says that name."""
        hosts = headers.getlist("host")
        name = _host(hosts[0]) if len(hosts) == 1 else None
        known = {"localhost", *(host.lower() for host in self._access.hosts)}
        if name is None or (name not in known and not _is_address(name)):
            raise ApiError(
                403, "host_not_allowed", "this server does not go by that Host: start it with --allow-host NAME"
            )

    def _check_origin(self, headers: Headers) -> str | None:
        """Browsers say which page asks. Another page than ours needs to be allowed. Returns one that is."""
        origin = headers.get("origin")
        if origin is None:
            return None
        if origin in self._access.origins:
            return origin
        if origin.split("://", 1)[-1].lower() != headers["host"].lower() or "://" not in origin:
            raise ApiError(403, "origin_not_allowed", "pages from this Origin may not call here: see --allow-origin")
        return None

    def _check_key(self, scope: Scope, headers: Headers) -> None:
        scope[TENANT] = None
        if not self._keys or scope["path"] in OPEN:
            return
        kind, _, key = headers.get("authorization", "").partition(" ")
        digest = hashlib.sha256(key.strip().encode("utf-8", "replace")).digest()
        # every key is compared, in constant time: neither which nor how far shows in the time
        matches = [hmac.compare_digest(digest, key) for key in self._keys]
        if kind.lower() != "bearer" or not any(matches):
            raise ApiError(401, "invalid_api_key", "no valid API key: send Authorization: Bearer KEY")
        which = matches.index(True)
        scope[TENANT] = f"key-{which}"
        scope[ENTRY].key = f"key-{which}"

    def _check_kind(self, headers: Headers) -> None:
        """A form or plain text is what another page can send without being asked; JSON is not."""
        kind = headers.get("content-type", "").split(";")[0].strip().lower()
        if kind != "application/json":
            raise ApiError(415, "unsupported_media_type", "send the body as application/json")

    async def _body(self, headers: Headers, receive: Receive) -> bytes | None:
        """The whole body, within its limits; ``None``: the client has left."""
        most = self._limits.body_bytes
        too_large = ApiError(413, "body_too_large", f"the body has more than the {most:,} bytes that are allowed")
        length = headers.get("content-length")
        if length is not None and (not length.isdecimal() or int(length[:20]) > most):
            raise too_large
        parts, size = [], 0
        try:
            async with asyncio.timeout(self._limits.body_s):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return None
                    parts.append(message.get("body", b""))
                    size += len(parts[-1])
                    if size > most:
                        raise too_large
                    if not message.get("more_body", False):
                        return b"".join(parts)
        except TimeoutError:
            raise ApiError(408, "body_too_slow", "the body did not arrive in time") from None


def _host(header: str) -> str | None:
    """The name in a Host header, without the port; ``None``: it is none."""
    try:
        parts = urlsplit(f"//{header}")
        _ = parts.port  # raises where it is no number
    except ValueError:
        return None
    if "@" in header or "/" in header or "?" in header or "#" in header:
        return None
    return parts.hostname


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _check_json(body: bytes) -> None:
    """JSON as the standard has it: no NaN, no half characters, no depth that breaks a parser."""
    try:
        read = json.loads(body, parse_constant=_no_constant)
        if SURROGATE.search(body):
            json.dumps(read, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as e:
        raise bad(f"the body is not JSON: {str(e)[:200]}", code="invalid_json") from e


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number in JSON")


def _replayed(body: bytes, receive: Receive) -> Receive:
    """The body once more, then whatever comes: the client's leaving."""
    left = [body]

    async def again() -> Message:
        return {"type": "http.request", "body": left.pop(), "more_body": False} if left else await receive()

    return again


def _with_cors(send: Send, origin: str) -> Send:
    extra: Iterable[tuple[bytes, bytes]] = (
        (b"access-control-allow-origin", origin.encode()),
        (b"access-control-allow-headers", b"authorization, content-type"),
        (b"access-control-allow-methods", b"GET, POST, DELETE, OPTIONS"),
        (b"vary", b"Origin"),
    )

    async def sent(message: Any) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), *extra]}
        await send(message)

    return sent
