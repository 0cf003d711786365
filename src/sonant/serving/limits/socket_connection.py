"""A WebSocket's connection: uvicorn's, which three kinds of client could misuse.

One that pings and never reads would have its pongs kept for it without end; one whose handshake the WebSocket library
refuses would never be answered nor closed; and each one turned away with an answer would be an error in the log.
"""

from __future__ import annotations

from typing import Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from sonant.serving.limits.connection import refusal


class SocketConnection(WebSocketsSansIOProtocol):
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
            self.handshake_complete = True  # A refusal completes it too.
