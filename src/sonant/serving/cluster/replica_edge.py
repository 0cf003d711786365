"""The outermost layer of a replica's HTTP server, which is Ray's: what Ray does to a request is undone here.

Ray reads a request's body to its end, and into memory, before it is asked for, and cancels the request's task when the
client is gone. Our limits and our own way of ending a stream need neither, and one header turns both off. Ray also adds
an `x-request-id` to answers that have one already, which clients then read as two.
"""

from __future__ import annotations

from starlette.datastructures import MutableHeaders
from starlette.middleware import Middleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sonant.serving.options import ServeOptions

_ID = b"x-request-id"
_RAW_RECEIVE = "x-request-disconnect-disabled"


class ReplicaEdge:
    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            return await self.app(scope, receive, send)
        MutableHeaders(scope=scope)[_RAW_RECEIVE] = "?1"
        return await self.app(scope, receive, _SendOneId(send))


class _SendOneId:
    def __init__(self, send: Send) -> None:
        self.send = send

    async def __call__(self, message: Message) -> None:
        if message["type"] in ("http.response.start", "websocket.http.response.start"):
            message["headers"] = _one_id(message.get("headers", ()))
        return await self.send(message)


def _one_id(headers: object) -> list[tuple[bytes, bytes]]:
    kept: list[tuple[bytes, bytes]] = []
    for name, value in headers:  # type: ignore[attr-defined]
        if name.lower() != _ID or not any(other.lower() == _ID for other, _ in kept):
            kept.append((name, value))
    return kept


def middlewares() -> list[Middleware]:
    """Ray calls this in every process that answers HTTP. Its own proxies get no middleware of ours, since they must go
    on watching for clients that leave."""
    from ray import serve
    from ray.serve.exceptions import RayServeException

    try:
        serve.get_replica_context()
    except RayServeException:
        return []
    return [Middleware(ReplicaEdge)]


def use_own_connections(options: ServeOptions) -> None:
    """Set our connection types where uvicorn looks for them, since Ray makes uvicorn's server with none of our options.

    To be called in a replica's process before its server is made, which is after its deployment is made.
    """
    from uvicorn.protocols.http import auto as http
    from uvicorn.protocols.websockets import auto as sockets

    from sonant.serving.limits.connection import connection_type
    from sonant.serving.limits.socket_connection import socket_type

    # A proxy reads seldom, in large pieces: only the proxy knows whether its client reads nothing.
    http.AutoHTTPProtocol = connection_type(options, cuts_off_unread=False)
    sockets.AutoWebSocketsProtocol = socket_type(options)
