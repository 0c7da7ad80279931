"""The page's built files under /studio/. Vite puts them into ``page/``; the wheel carries them."""

from __future__ import annotations

import html
import re
from pathlib import Path

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse

from vantage.serve.errors import ApiError
from vantage.serve.studio.state import studio_of

router = APIRouter()
PAGE = Path(__file__).parent / "page"
TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".ico": "image/x-icon",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".map": "application/json",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
    ".webmanifest": "application/manifest+json",
    ".woff2": "font/woff2",
}
# Scripts come from here and nowhere else. Charts put style elements into their pictures, so those are let in: a style
# runs nothing. Pictures are made in the page (blob:, data:) to be saved; a report is shown in a frame made there too.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
    "font-src 'self'; connect-src 'self'; worker-src 'self'; frame-src 'self' blob:; manifest-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
}
IMMUTABLE = "public, max-age=31536000, immutable"
META = re.compile(r'<meta\s+name="vantage-token"[^>]*>', re.IGNORECASE)
HEAD = re.compile(r"<head[^>]*>", re.IGNORECASE)
NOT_BUILT = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Vantage studio</title></head>
<body><h1>The page is not built</h1>
<p>The server runs, but the files of its page are not there. From a checkout, build them with
<code>make web</code> and open this address again. A wheel of Vantage has them inside.</p></body></html>
"""


@router.get("/", include_in_schema=False)
@router.get("/studio", include_in_schema=False)
async def front(request: Request) -> Response:
    return RedirectResponse("/studio/", status_code=307)


@router.api_route("/studio/{path:path}", methods=["GET", "HEAD"], include_in_schema=False)
async def page(request: Request, path: str) -> Response:
    """The page, or a file of it."""
    return _file(path) if path else _index(studio_of(request).token)


def _file(path: str) -> Response:
    nothing = ApiError(404, "not_found", "there is nothing here")
    try:
        inside = (PAGE / path).resolve()
    except ValueError:  # a null in the name
        raise nothing from None
    if not inside.is_relative_to(PAGE.resolve()) or not inside.is_file() or inside.name == "index.html":
        raise nothing
    # Vite puts a hash into the names of what it puts under assets/
    cache = IMMUTABLE if path.startswith("assets/") else "no-cache"
    kind = TYPES.get(inside.suffix, "application/octet-stream")
    return Response(inside.read_bytes(), headers={**HEADERS, "Cache-Control": cache, "Content-Type": kind})


def _index(token: str) -> Response:
    file = PAGE / "index.html"
    if not file.is_file():
        return Response(NOT_BUILT, 503, headers=HEADERS, media_type="text/html")
    text = with_token(file.read_text(encoding="utf-8"), token)
    return Response(text, headers={**HEADERS, "Cache-Control": "no-store"}, media_type="text/html")


def with_token(text: str, token: str) -> str:
    """The page with its token: in the place that it has for it, or at the front of its head."""
    meta = f'<meta name="vantage-token" content="{html.escape(token)}">'
    if META.search(text):
        return META.sub(lambda _: meta, text, count=1)
    return HEAD.sub(lambda head: f"{head[0]}{meta}", text, count=1)
