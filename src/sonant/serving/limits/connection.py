"""A client's connection, with limits where uvicorn has none.

A request must keep coming at some pace, its head may not grow without end, and what is not HTTP gets our error JSON
like everything else. A client that stops reading is cut off by the kernel, which alone sees whether anything moves: a
player that reads as slowly as it plays must not be, however full its buffers are.
"""

from __future__ import annotations

import asyncio
import socket
from http import HTTPStatus
from typing import Any, ClassVar, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from sonant.serving.api.error_responses import error_response
from sonant.serving.limits.middleware import new_request_id
from sonant.serving.options import ServeOptions

MAX_HEAD_BYTES = 64 << 10  # of the request line and all headers; also of anything else that is not a body
MIN_BYTES_PER_S = 16 << 10  # a body that comes at this pace may take as long as it needs
_UNSENT_BYTES = 128 << 10  # may wait in the kernel for a connection to send; more would be of no use there


class HeadWithBody:
    """A transport that sends the head of an answer together with what follows it. uvicorn writes them one by one, and
    each write costs a system call and wakes the client. A head that nothing follows leaves in the loop's next turn."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._head = b""
        # These are called often, and so do not go through `__getattr__`.
        self.is_closing, self.get_extra_info = transport.is_closing, transport.get_extra_info

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if self._head:
            head, self._head = self._head, b""
            self._transport.writelines((head, data))
        elif data.startswith(b"HTTP/1."):
            self._head = data
            self._loop.call_soon(self._send_head)
        else:
            self._transport.write(data)

    def close(self) -> None:
        self._send_head()
        self._transport.close()

    def _send_head(self) -> None:
        head, self._head = self._head, b""
        if head and not self._transport.is_closing():
            self._transport.write(head)


class HeadTooLarge(Exception):
    """Raised inside the parser, which turns it into an error of its own."""


class Connection(HttpToolsProtocol):
    options: ClassVar[ServeOptions]
    cuts_off_unread: ClassVar[bool]

    _clock: asyncio.TimerHandle | None = None  # runs while a request is expected or is coming
    _expected_s = 0.0  # since when it has been
    _received = 0  # bytes since then
    _last_s = 0.0  # when the last of them came
    _idle_bytes = 0  # bytes since the parser last completed a head or gave part of a body
    _head_bytes = 0  # of the request that is coming

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(cast(asyncio.Transport, HeadWithBody(transport, self.loop)))
        if self.cuts_off_unread:
            _limit_unread(transport.get_extra_info("socket"), self.options.unread_s)
        self._expect()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_clock()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._clock is None:
            self._expect()
        self._received += len(data)
        self._last_s = self.loop.time()
        self._idle_bytes += len(data)
        super().data_received(data)
        if self._idle_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self._refuse_head()

    def handle_websocket_upgrade(self) -> None:
        self._stop_clock()  # from here on the session's own limits apply
        super().handle_websocket_upgrade()

    def send_400_response(self, msg: str) -> None:
        if self._head_bytes > MAX_HEAD_BYTES:
            self._refuse_head()
        else:
            self._refuse(400, msg, "invalid_http")

    # Called by the parser

    def on_message_begin(self) -> None:
        self._head_bytes = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._count_head(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count_head(len(name) + len(value))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._idle_bytes = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._idle_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._idle_bytes = 0
        self._stop_clock()
        super().on_message_complete()

    def _count_head(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > MAX_HEAD_BYTES:
            raise HeadTooLarge

    # The pace at which it must come

    def _expect(self) -> None:
        self._expected_s, self._received, self._idle_bytes = self.loop.time(), 0, 0
        self._clock = self.loop.call_later(self.options.receive_s, self._check_pace)

    def _stop_clock(self) -> None:
        if self._clock is not None:
            self._clock.cancel()
            self._clock = None

    def _check_pace(self) -> None:
        due_s = self._expected_s + self.options.receive_s + self._received / MIN_BYTES_PER_S
        due_s = min(due_s, max(self._last_s, self._expected_s) + self.options.receive_s)  # a pause ends it all the same
        cycle = self.cycle
        answering = cycle is not None and not cycle.response_complete and not cycle.more_body
        if answering or self.flow.read_paused:  # it is we who keep the client waiting
            self._expect()
        elif due_s > self.loop.time():
            self._clock = self.loop.call_at(due_s, self._check_pace)
        elif self._received:
            self._refuse(408, f"the request did not come within {self.options.receive_s:g} s", "request_timeout")
        else:
            self.transport.close()

    # Answers to clients that are cut off

    def _refuse_head(self) -> None:
        self._refuse(431, f"the request's head is over {MAX_HEAD_BYTES:,} bytes", "head_too_large")

    def _refuse(self, status: int, message: str, code: str) -> None:
        """Answer without the app, unless it has begun to, and close."""
        self._stop_clock()
        if self.cycle is None or self.cycle.response_complete or not self.cycle.response_started:
            self.transport.write(refusal(status, message, code))
        self.transport.close()


def refusal(status: int, message: str, code: str) -> bytes:
    """A whole answer, for requests that never reach the app."""
    headers = {"x-request-id": new_request_id(), "connection": "close"}
    response = error_response(status, message, code, headers=headers)
    lines = b"".join(name + b": " + value + b"\r\n" for name, value in response.raw_headers)
    return f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n".encode() + lines + b"\r\n" + bytes(response.body)


def connection_type(options: ServeOptions, *, cuts_off_unread: bool = True) -> type[Connection]:
    """The class that uvicorn makes for each connection; it has our options, since uvicorn passes none to it."""
    return type("Connection", (Connection,), {"options": options, "cuts_off_unread": cuts_off_unread})


def _limit_unread(sock: socket.socket, unread_s: float) -> None:
    # Linux has both. Elsewhere only the limits on streams stop a client that does not read its answer.
    for name, value in (("TCP_USER_TIMEOUT", round(1e3 * unread_s)), ("TCP_NOTSENT_LOWAT", _UNSENT_BYTES)):
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
