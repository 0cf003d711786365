"""One request on one connection, timed as close to the socket as Python gets.

Each read is stamped before anything else is done with it. HTTP is parsed by httptools (llhttp, in C), so that a
thousand streams fit in one event loop.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Any

import httptools

from sonant.bench.client.events import ErrorEvent, SpeechEvents
from sonant.bench.client.meter import BadSound, CutSound, Meter, open_meter
from sonant.bench.client.prompts import Prompt
from sonant.bench.client.sample import Failure, Sample
from sonant.bench.client.target import Target

_MAX_DETAIL = 200  # characters of an error's body that are kept


class Exchange(asyncio.Protocol):
    """The answer to one request. `over` is set when it has ended, well or not."""

    def __init__(self, target: Target, *, keep_sound: bool = False) -> None:
        self.target, self.keep_sound = target, keep_sound
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.parser: Any = httptools.HttpResponseParser(self)
        self.transport: asyncio.Transport | None = None
        self.headers: dict[str, str] = {}
        self.status: int | None = None
        self.meter: Meter | None = None
        self.events: SpeechEvents | None = None
        self.error_body = b""
        self.now_s = 0.0
        self.first_byte_s: float | None = None
        self.end_s = 0.0
        self.whole = False
        self.failure: Failure | None = None
        self.detail = ""

    # These are called by asyncio.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        self.now_s = self.end_s = time.perf_counter()
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserCallbackError as e:
            self._fail_by(e.__context__ or e)
        except httptools.HttpParserError as e:
            self.fail(Failure.PROTOCOL, f"not HTTP: {e}")

    def connection_lost(self, exc: Exception | None) -> None:
        if self.ended:
            return
        framed = "content-length" in self.headers or "chunked" in self.headers.get("transfer-encoding", "")
        if self.status is None:
            self.fail(Failure.CUT, f"the connection ended before an answer: {exc or 'closed by the server'}")
        elif exc is None and not framed and self.meter is not None:
            self.end_s = time.perf_counter()
            self.on_message_complete()  # HTTP/1.0's way: the end of the connection is the end of the body
        else:
            self.fail(Failure.CUT, f"the connection ended inside the body: {exc or 'closed by the server'}")

    # These are called by httptools.

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self.status = self.parser.get_status_code()
        if self.status != 200:
            return
        sse = self.headers.get("content-type", "").startswith("text/event-stream")
        if sse != self.target.sse:
            got = self.headers.get("content-type", "an answer that does not say what it is")
            raise BadSound(f"asked for {'events' if self.target.sse else 'sound'}, got {got}")
        form, rate = self.target.response_format, self.target.sample_rate
        self.meter = open_meter(form, self.headers, rate, sse=sse, keep=self.keep_sound)
        if sse:
            self.events = SpeechEvents(self.meter.feed)

    def on_body(self, data: bytes) -> None:
        if self.meter is None:
            self.error_body = (self.error_body + data)[:_MAX_DETAIL]
            return
        if self.first_byte_s is None:
            self.first_byte_s = self.now_s
        (self.events or self.meter).feed(data, self.now_s)

    def on_message_complete(self) -> None:
        if self.status == 100:  # an interim answer
            return
        self.whole = True
        self._close()

    # How the exchange ends.

    @property
    def ended(self) -> bool:
        """Whether it is over. `over.done()` cannot tell, since a timeout cancels that future too."""
        return self.whole or self.failure is not None

    def fail(self, failure: Failure, detail: str) -> None:
        if not self.ended:
            self.failure, self.detail = failure, detail[:_MAX_DETAIL]
            self.end_s = time.perf_counter()
            self._close()

    def _fail_by(self, error: BaseException) -> None:
        if isinstance(error, BadSound):
            self.fail(Failure.PROTOCOL, str(error))
        elif isinstance(error, ErrorEvent):
            self.fail(Failure.SERVER, str(error))
        else:
            raise error

    def _close(self) -> None:
        if not self.over.done():
            self.over.set_result(None)
        if self.transport is not None:
            self.transport.abort() if self.failure else self.transport.close()

    def sample(self, prompt: Prompt, started_s: float, late_s: float, connect_s: float) -> Sample:
        """All that was measured, once it is over. Sound is decoded here, while nothing is timed."""
        arrivals: list[float] = []
        durations: list[float] | None = []
        audio_s, failure, detail = 0.0, self.failure, self.detail
        if self.status not in (None, 200) and failure is None:
            failure, detail = Failure.STATUS, self.error_body.decode("utf-8", "replace")
        if self.meter is not None:
            try:
                arrivals, durations, audio_s = self.meter.finish()
            except CutSound as e:
                failure, detail = failure or Failure.CUT, detail or str(e)
            except BadSound as e:
                failure, detail = failure or Failure.PROTOCOL, detail or str(e)
            if failure is None and self.events is not None and not self.events.done:
                failure, detail = Failure.CUT, "the events ended without the one that says so"
            if failure is None and not audio_s:
                failure, detail = Failure.EMPTY, "200 without any sound"
        return Sample(
            prompt=prompt.name,
            started_s=started_s,
            late_s=late_s,
            connect_s=connect_s,
            first_byte_s=None if self.first_byte_s is None else self.first_byte_s - started_s,
            end_s=self.end_s - started_s,
            arrivals_s=tuple(t - started_s for t in arrivals),
            durations_s=None if durations is None else tuple(durations),
            audio_s=audio_s,
            status=self.status,
            failure=failure,
            detail=_one_line(detail),
            streamed=self.target.stream,
            sample_rate=self.meter.sample_rate if self.meter else 0,
            channels=self.meter.channels if self.meter else 1,
            sound=self.meter.sound if self.meter and self.keep_sound else b"",
        )


def _one_line(detail: str) -> str:
    """What a server wrote, for a line of a terminal: without line ends, control characters and half characters."""
    return " ".join("".join(c if c.isprintable() else " " for c in detail).split())


@dataclass(frozen=True)
class Ended:
    """An exchange that is over. Work such as decoding is put off until nothing is timed any more."""

    exchange: Exchange
    prompt: Prompt
    started_s: float
    late_s: float
    connect_s: float

    @property
    def failed(self) -> bool:
        return self.exchange.failure is not None or self.exchange.status != 200

    @property
    def stopped(self) -> bool:
        return self.exchange.failure is Failure.STOPPED

    def sample(self) -> Sample:
        return self.exchange.sample(self.prompt, self.started_s, self.late_s, self.connect_s)


async def speak(
    target: Target,
    request: bytes,
    prompt: Prompt,
    *,
    host: str,
    timeout_s: float,
    due_s: float | None = None,
    keep_sound: bool = False,
) -> Ended:
    """One request from its start to its last byte. `host` is a resolved address, so that no thread looks it up."""
    loop = asyncio.get_running_loop()
    address, tls = target.address, target.tls
    exchange = Exchange(target, keep_sound=keep_sound)
    began_s = started_s = time.perf_counter()
    connect_s = 0.0
    try:
        async with asyncio.timeout(timeout_s):
            name = address.host if tls else None
            await loop.create_connection(lambda: exchange, host, address.port, ssl=tls, server_hostname=name)
            connected_s = time.perf_counter()
            connect_s = connected_s - began_s
            if target.connect_first:
                started_s = connected_s
            assert exchange.transport is not None
            exchange.transport.write(request)
            await exchange.over
    except TimeoutError:
        exchange.fail(Failure.TIMEOUT, f"no end after {timeout_s:g} s")
    except OSError as e:
        exchange.fail(Failure.CONNECT, str(e))
    except asyncio.CancelledError:
        exchange.fail(Failure.STOPPED, "the run was stopped")
    late_s = 0.0 if due_s is None else began_s - due_s
    return Ended(exchange, prompt, started_s, late_s, connect_s)
