"""A WebSocket's connection: uvicorn's, mended for three kinds of client.

For one that pings and never reads, pongs would pile up without end; one whose handshake the WebSocket library refuses
would never be answered nor closed; and each one that is refused with an answer would be an error in the log.

It has our options as a class attribute, since the server that makes it may be Ray's, which passes none of them on.
"""

from __future__ import annotations

from copy import copy
from typing import Any, ClassVar

from uvicorn import Config
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from sonant.serving.limits.connection import refusal
from sonant.serving.options import ServeOptions


class SocketConnection(WebSocketsSansIOProtocol):
    options: ClassVar[ServeOptions]

    def __init__(self, config: Config, *args: Any, **more: Any) -> None:
        super().__init__(_of_sockets(config, self.options), *args, **more)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.handshake_exc is not None and not self.handshake_initiated:
            message = "the WebSocket handshake cannot be read; are its headers too long?"
            self.transport.write(refusal(400, message, "invalid_handshake"))
            self.transport.close()
        elif not self.writable.is_set() and not self.read_paused:
            self.read_paused = True
            self.transport.pause_reading()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self.read_paused and self.queue.empty():
            self.read_paused = False
            self.transport.resume_reading()

    async def send(self, message: Any) -> None:
        await super().send(message)
        if message["type"] == "websocket.http.response.body" and not message.get("more_body", False):
            self.handshake_complete = True  # a refusal completes it too


def socket_type(options: ServeOptions) -> type[SocketConnection]:
    """The class that uvicorn makes for each WebSocket, whatever server runs uvicorn."""
    return type("SocketConnection", (SocketConnection,), {"options": options})


def _of_sockets(config: Config, options: ServeOptions) -> Config:
    own = copy(config)
    own.ws_max_size = options.ws_max_message_bytes
    own.ws_per_message_deflate = False  # Sound hardly compresses.
    # A silent session may still read: its answers to pings show that to a proxy that counts `unread_s`.
    own.ws_ping_interval = min(config.ws_ping_interval or options.unread_s, options.unread_s / 2)
    # A client that reads slowly answers a ping late, and the answer of one that is held back is not read. Neither is
    # gone: one that is gone does not acknowledge the ping's bytes, and is cut off by the kernel or the proxy.
    own.ws_ping_timeout = None
    return own
