"""What every request passes first: its id, its key, and the size of its body, before anything is parsed.

Plain ASGI, so that streamed sound goes through untouched.
"""

from __future__ import annotations

import hmac
import re
import secrets
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sonant.serving.api.error_responses import response_for
from sonant.serving.options import ServeOptions
from sonant.serving.page.routes import PREFIX
from sonant.serving.refused import Refused

# The page asks for the key itself, so it must load without one. Its files are the same for everybody and say nothing of
# this server; every figure on it comes from /v1.
_OPEN_PATHS = frozenset({"/health", "/"})
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")


def new_request_id() -> str:
    return f"req_{secrets.token_hex(12)}"


def _open(path: str) -> bool:
    return path in _OPEN_PATHS or path.startswith(PREFIX)


def _utf8(header: str) -> str:
    """A header's bytes come to us as Latin-1; what a client typed was most likely UTF-8."""
    try:
        return header.encode("latin-1").decode()
    except UnicodeDecodeError:
        return header


class BodyTooLarge(Refused):
    def __init__(self, limit: int) -> None:
        super().__init__(413, "body_too_large", f"the body is larger than the {limit:,} bytes that are allowed")


class SendWithId:
    """Puts the request's id on its answer. No closure: one that names itself lives until the garbage is collected."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, request_id: str) -> None:
        self.scope, self.receive, self.send, self.request_id = scope, receive, send, request_id
        self.accepted = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "websocket.close" and not self.accepted:  # The router knows no such socket.
            return await response_for(Refused(404, "not_found", "Not Found"))(self.scope, self.receive, self)
        if message["type"] in ("http.response.start", "websocket.http.response.start"):
            MutableHeaders(scope=message)["x-request-id"] = self.request_id
        self.accepted = self.accepted or message["type"] == "websocket.accept"
        return await self.send(message)


class RequestMiddleware:
    def __init__(self, app: ASGIApp, options: ServeOptions) -> None:
        self.app, self.options = app, options

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            return await self.app(scope, receive, send)
        headers = Headers(scope=scope)
        given = headers.get("x-request-id", "")
        request_id = given if _REQUEST_ID.fullmatch(given) else new_request_id()
        key = self._key(scope, headers)
        scope.setdefault("state", {}).update(request_id=request_id, client=self._client(scope, key))
        named_send = SendWithId(scope, receive, send, request_id)
        refusal = self._refusal(scope, headers, key)
        if refusal is None:
            return await self.app(scope, self._counted(receive), named_send)
        return await response_for(refusal)(scope, receive, named_send)

    def _refusal(self, scope: Scope, headers: Headers, key: str) -> Refused | None:
        if self.options.api_keys and not _open(scope["path"]):
            # Every key is compared, so that time tells nothing of which one came near.
            known = [hmac.compare_digest(key.encode(), k.encode()) for k in self.options.api_keys]
            if not any(known):
                return Refused(
                    401, "invalid_api_key", "the API key is missing or wrong; send Authorization: Bearer KEY"
                )
        length = headers.get("content-length", "0")
        if not length.isdecimal():
            return Refused(400, "invalid_header", "content-length is not a number")
        return BodyTooLarge(self.options.max_body_bytes) if int(length) > self.options.max_body_bytes else None

    def _counted(self, receive: Receive) -> Receive:
        """A body that comes without a length is measured as it comes."""
        seen = 0

        async def counted() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b"")) if message["type"] == "http.request" else 0
            if seen > self.options.max_body_bytes:
                raise BodyTooLarge(self.options.max_body_bytes)
            return message

        return counted

    def _key(self, scope: Scope, headers: Headers) -> str:
        scheme, _, token = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            return _utf8(token.strip())
        # Browsers cannot set headers on a page or a WebSocket.
        return parse_qs(scope.get("query_string", b"").decode("latin-1")).get("api_key", [""])[0]

    def _client(self, scope: Scope, key: str) -> str:
        if self.options.api_keys:
            return f"key:{key}"
        address = scope.get("client")
        return f"address:{address[0] if address else 'unknown'}"
