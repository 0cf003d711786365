"""The page at `/` and the files it is made of.

All of them are read once, at start, and served from memory by exact name: a request's path never becomes a file's.
The page holds no secrets and shows nothing by itself; what it shows it requests from `/v1`, with the visitor's key.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from pathlib import Path

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

FOLDER = Path(__file__).parent / "static"
PREFIX = "/page/"  # of every file but the page itself; open without a key, see `middleware`

_MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_HEADERS = {
    "content-security-policy": "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "permissions-policy": "microphone=(self), camera=(), geolocation=()",
    "cache-control": "no-cache",  # browsers cache the file, but revalidate it each time: an upgrade shows at once
}


def page_routes() -> APIRouter:
    router = APIRouter()
    for file in sorted(FOLDER.iterdir()):
        path = "/" if file.name == "index.html" else f"{PREFIX}{file.name}"
        endpoint = _endpoint(file.read_bytes(), _MEDIA_TYPES[file.suffix])
        router.add_route(path, endpoint, methods=["GET", "HEAD"], include_in_schema=False)
    return router


def _endpoint(content: bytes, media_type: str) -> Callable[[Request], Awaitable[Response]]:
    etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    headers = {**_HEADERS, "etag": etag}

    async def serve(request: Request) -> Response:
        if _known(request.headers.get("if-none-match", ""), etag):
            return Response(status_code=304, headers=headers)
        return Response(content, media_type=media_type, headers=headers)

    return serve


def _known(if_none_match: str, etag: str) -> bool:
    """Whether the browser has this file. Proxies that compress make a tag weak, which changes nothing here."""
    tags = {tag.strip().removeprefix("W/") for tag in if_none_match.split(",")}
    return etag in tags or "*" in tags
