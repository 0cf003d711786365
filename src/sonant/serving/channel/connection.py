"""One end of a channel: messages over a stream socket, each preceded by its length.

Both directions are bounded at both ends. A message that is over `MAX_MESSAGE_BYTES` or malformed ends the connection,
since nothing that follows can be trusted to be framed. A peer that does not read is cut off when `MAX_UNSENT_BYTES`
wait for it, since they take our memory.

Everything happens on the event loop's thread but `send_from_elsewhere`, which saves the hop to that thread.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast

import msgspec

MAX_MESSAGE_BYTES = 64 << 20
MAX_UNSENT_BYTES = 256 << 20
_LENGTH_BYTES = 4
_LAZY_S = 0.005  # how long a message that is not urgent may wait for others
_ENOUGH_BYTES = 16 << 10  # are sent at once: they give the other end enough to do


class BadChannel(Exception):
    """What was received is not a message of this protocol."""


class Connection(asyncio.Protocol):
    """Used on one event loop. `take` gets each message; `lost` is called once, with what was wrong, if anything."""

    def __init__(
        self,
        kind: Any,
        take: Callable[[Any], None],
        lost: Callable[[Exception | None], None],
        *,
        sends_from_elsewhere: bool = False,
    ) -> None:
        self._decoder, self._encoder = msgspec.msgpack.Decoder(kind), msgspec.msgpack.Encoder()
        self._take, self._lost = take, lost
        self._received, self._unsent = bytearray(), bytearray()
        self._flushing = False
        self._later: asyncio.TimerHandle | None = None
        self._wrong: Exception | None = None
        self._transport: asyncio.Transport | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._writing = threading.Lock()  # guards `_unsent` and writes to the socket
        self._sends_from_elsewhere = sends_from_elsewhere
        self._beside: socket.socket | None = None  # a duplicate, for another thread to write to

    @property
    def open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def send(self, message: msgspec.Struct, *, soon: bool = True) -> None:
        """Send with the others of this turn of the event loop or, unless `soon`, within `_LAZY_S`.

        Harmless on a connection that has ended: whoever waits for an answer was told by `lost`.
        """
        if not self.open:
            return
        with self._writing:
            self._add(message)
        if len(self._unsent) >= _ENOUGH_BYTES:
            self._flush()
        elif soon and not self._flushing:
            self._flushing = True
            asyncio.get_running_loop().call_soon(self._flush)
        elif not soon and self._later is None:
            self._later = asyncio.get_running_loop().call_later(_LAZY_S, self._flush)

    def send_now(self, message: msgspec.Struct) -> None:
        """Send at once, with all that waits to be sent, before the event loop does anything else."""
        if self.open:
            with self._writing:
                self._add(message)
            self._flush()

    def send_from_elsewhere(self, message: msgspec.Struct) -> bool:
        """Send from any thread, if nothing waits to be sent before it; False: the event loop's thread must send it.

        What the socket's buffer has no room for follows by itself, before anything that is sent later.
        """
        if not self._writing.acquire(blocking=False):
            return False
        try:
            beside, loop, transport = self._beside, self._loop, self._transport
            if beside is None or loop is None or transport is None or self._unsent:
                return False
            if transport.is_closing() or transport.get_write_buffer_size():
                return False
            self._add(message)
            with suppress(OSError):  # No room, or the peer is gone: the event loop's thread finds out which.
                del self._unsent[: beside.send(self._unsent)]
            if self._unsent:
                loop.call_soon_threadsafe(self._flush)
            return True
        finally:
            self._writing.release()

    def _add(self, message: msgspec.Struct) -> None:
        start = len(self._unsent)
        self._unsent += bytes(_LENGTH_BYTES)
        self._encoder.encode_into(message, self._unsent, start + _LENGTH_BYTES)
        size = len(self._unsent) - start - _LENGTH_BYTES
        self._unsent[start : start + _LENGTH_BYTES] = size.to_bytes(_LENGTH_BYTES, "little")

    def _flush(self) -> None:
        self._flushing = False
        if self._later is not None:
            self._later.cancel()
            self._later = None
        with self._writing:
            transport, data = self._transport, self._unsent
            if transport is None or transport.is_closing() or not data:
                return
            self._unsent = bytearray()
            transport.write(data)
        if transport.get_write_buffer_size() > MAX_UNSENT_BYTES:
            self.break_off(BadChannel(f"over {MAX_UNSENT_BYTES:,} bytes wait to be read"))

    def hang_up(self) -> None:
        """Close once all that was sent has left."""
        self._flush()
        if self._transport is not None:
            self._transport.close()

    def break_off(self, error: Exception | None = None) -> None:
        self._wrong = self._wrong or error
        if self._transport is not None:
            self._transport.abort()

    # asyncio's

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=0)  # or uvloop writes at the end of its turn, not at once
        if self._sends_from_elsewhere:
            self._loop = asyncio.get_running_loop()
            # With a descriptor of our own its number cannot be reused while a thread writes to it.
            self._beside = socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno()))

    def data_received(self, data: bytes) -> None:
        received = self._received
        received += data
        at = 0
        try:
            while len(received) - at >= _LENGTH_BYTES:
                size = int.from_bytes(received[at : at + _LENGTH_BYTES], "little")
                if size > MAX_MESSAGE_BYTES:
                    raise BadChannel(f"a message of {size:,} bytes, over the limit of {MAX_MESSAGE_BYTES:,}")
                end = at + _LENGTH_BYTES + size
                if len(received) < end:
                    break
                with memoryview(received) as view, view[at + _LENGTH_BYTES : end] as body:
                    message = self._decoder.decode(body)
                at = end
                self._take(message)
                if self._wrong is not None:
                    return None
        except (msgspec.DecodeError, UnicodeDecodeError) as e:
            return self.break_off(BadChannel(f"what came is no message: {e}"))
        except BadChannel as e:
            return self.break_off(e)
        if at:
            del received[:at]
        return None

    def connection_lost(self, error: Exception | None) -> None:
        if self._received and self._wrong is None:
            self._wrong = BadChannel("it ended in the middle of a message")
        self._received.clear()
        with self._writing:
            self._unsent.clear()
            if self._beside is not None:
                self._beside.close()
                self._beside = None
        self._lost(self._wrong)  # not `error`: a killed peer resets the connection, which is no protocol error
