"""The first stop of every request: gives it an id, and checks its key, its origin and the size of its body, before
anything is parsed.

Plain ASGI, so that streamed sound goes through untouched.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Awaitable, Callable
from functools import partial
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sonant.errors import SonantError
from sonant.serving.api.error_responses import response_for
from sonant.serving.limits.bodies import BodyBudget, BodyReader
from sonant.serving.limits.keys import ApiKeys, mark, role_for
from sonant.serving.limits.origins import Origins
from sonant.serving.observability.request_log import RequestRecord, is_probe, route_name
from sonant.serving.options import ServeOptions
from sonant.serving.page.routes import PREFIX
from sonant.serving.refused import Refused

# The page asks its user for the key, so it must load without one. Its files are the same for everybody and tell nothing
# of this server; every figure on it comes from /v1. Probes have no key, and learn only whether to send requests.
_OPEN_PATHS = frozenset({"/health", "/ready", "/"})
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")

Admit = Callable[[str, str], Awaitable[None]]  # by client and path


def new_request_id() -> str:
    return f"req_{secrets.token_hex(12)}"


def _open(path: str) -> bool:
    return path in _OPEN_PATHS or path.startswith(PREFIX)


def _utf8(header: str) -> str:
    """A header's bytes are given to us as Latin-1; what a client sent was most likely UTF-8."""
    try:
        return header.encode("latin-1").decode()
    except UnicodeDecodeError:
        return header


class SendWithId:
    """Puts the request's id on its answer. A closure that names itself would live until the next garbage collection."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, request_id: str, body: BodyReader) -> None:
        self.scope, self.receive, self.send, self.request_id, self.body = scope, receive, send, request_id, body
        self.accepted = False
        self.status: int | None = None  # of the answer, once there is one

    async def __call__(self, message: Message) -> None:
        if message["type"] == "websocket.close" and not self.accepted:  # The router knows no such socket.
            return await response_for(Refused(404, "not_found", "Not Found"))(self.scope, self.receive, self)
        if message["type"] in ("http.response.start", "websocket.http.response.start"):
            self.body.release()
            self.status = message["status"]
            MutableHeaders(scope=message)["x-request-id"] = self.request_id
        if message["type"] == "websocket.accept":
            self.accepted, self.status = True, 101
        return await self.send(message)


class RequestMiddleware:
    def __init__(
        self,
        app: ASGIApp,
        options: ServeOptions,
        keys: ApiKeys,
        bodies: BodyBudget,
        admit: Admit,
        finished: Callable[[RequestRecord], None],
    ) -> None:
        """`admit` raises what would refuse a speech request of this client now, and takes nothing.

        `finished` is called with every request when it is over.
        """
        self.app, self.options, self.keys, self.bodies = app, options, keys, bodies
        self.admit, self.finished = admit, finished
        self.origins = Origins(options)
        self.guarded = bool(keys)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            return await self.app(scope, receive, send)
        headers = Headers(scope=scope)
        given = headers.get("x-request-id", "")
        request_id = given if _REQUEST_ID.fullmatch(given) else new_request_id()
        key = self._key(scope, headers)
        client = self._client(scope, key)
        record = self._record(scope, headers, request_id, client)
        scope.setdefault("state", {}).update(request_id=request_id, client=client, record=record)
        admit = partial(self.admit, client, scope["path"])
        body = BodyReader(receive, self.bodies, client, self.options.max_body_bytes, admit)
        named_send = SendWithId(scope, receive, send, request_id, body)
        try:
            await self._answer(scope, headers, key, body, named_send)
        finally:
            body.release()
            record.status, record.route = named_send.status, route_name(scope)
            if body.gone and record.outcome is None:
                record.outcome = "client_gone"
            self.finished(record)

    async def _answer(self, scope: Scope, headers: Headers, key: str, body: BodyReader, send: SendWithId) -> None:
        try:
            await self._check(scope, headers, key, body)
        except SonantError as e:
            return await self._refuse(e.with_traceback(None), scope, headers, send)
        return await self.app(scope, body, send)

    async def _check(self, scope: Scope, headers: Headers, key: str, body: BodyReader) -> None:
        """Raises `Refused`, or why there is no engine."""
        if "origin" in headers or "sec-fetch-site" in headers:  # a browser
            self.origins.check(scope, headers)
        path = scope["path"]
        if self.guarded and not _open(path):
            roles = self.keys.roles_of(key)
            if roles is None:
                message = "the API key is missing or wrong; send Authorization: Bearer KEY"
                raise Refused(401, "invalid_api_key", message)
            role = role_for(scope.get("method", "GET"), path)
            if role is not None and role not in roles:
                raise Refused(403, "key_not_allowed", f"this API key is not for that; it lacks the role {role}")
        length = headers.get("content-length", "0")
        if not length.isdecimal():
            raise Refused(400, "invalid_header", "content-length is not a number")
        await body.expect(int(length))

    async def _refuse(self, refusal: SonantError, scope: Scope, headers: Headers, send: SendWithId) -> None:
        response = response_for(refusal)
        if response.status_code == 401:
            response.headers["www-authenticate"] = "Bearer"
        if "expect" in headers:  # Its body is not sent now, so the next request would be taken for the body.
            response.headers["connection"] = "close"
        await response(scope, send.receive, send)

    def _record(self, scope: Scope, headers: Headers, request_id: str, client: str) -> RequestRecord:
        parent, state = headers.get("traceparent"), headers.get("tracestate")
        return RequestRecord(request_id, client, route_name(scope), is_probe(scope["path"]), parent, state)

    def _key(self, scope: Scope, headers: Headers) -> str:
        scheme, _, token = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            return _utf8(token.strip())
        # Browsers cannot set headers on a page or a WebSocket.
        return parse_qs(scope.get("query_string", b"").decode("latin-1")).get("api_key", [""])[0]

    def _client(self, scope: Scope, key: str) -> str:
        if self.guarded:
            return f"key:{mark(key)}"
        address = scope.get("client")
        return f"address:{address[0] if address else 'unknown'}"
