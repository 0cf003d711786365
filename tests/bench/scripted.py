"""A speech server that does exactly what a test says, and writes down when it did it.

A script is a coroutine that gets a `Call`. The times in `call.sent_s` are the truth that measurements are held against:
timers of a busy machine are late, but what was sent was sent then.
"""

from __future__ import annotations

import asyncio
import base64
import json
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

Script = Callable[["Call"], Awaitable[None]]
PCM_100_MS = bytes(4800)  # 24 kHz, 16 bits


class Call:
    def __init__(self, path: str, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        self.path, self.body, self.writer = path, body, writer
        self.sent_s: list[float] = []  # when each chunk was sent
        self.came_s = time.perf_counter()

    def head(self, status: int = 200, content_type: str = "audio/pcm", /, **headers: str) -> None:
        lines = [f"HTTP/1.1 {status} X", f"content-type: {content_type}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        self.writer.write("\r\n".join([*lines, "", ""]).encode())

    def stream_head(self, content_type: str = "audio/pcm", /, **headers: str) -> None:
        self.head(200, content_type, transfer_encoding="chunked", **headers)

    def chunk(self, data: bytes) -> None:
        self.sent_s.append(time.perf_counter())
        self.writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    def event(self, **event: Any) -> None:
        self.chunk(f"data: {json.dumps(event)}\n\n".encode())

    def delta(self, sound: bytes) -> None:
        self.event(type="speech.audio.delta", audio=base64.b64encode(sound).decode())

    def end(self) -> None:
        self.writer.write(b"0\r\n\r\n")

    def whole(self, status: int, body: bytes, content_type: str = "application/json") -> None:
        self.head(status, content_type, content_length=str(len(body)))
        self.writer.write(body)

    async def paced(self, delays_s: list[float], chunk: bytes = PCM_100_MS) -> None:
        """A PCM answer whose chunks come after these pauses."""
        self.stream_head()
        for delay_s in delays_s:
            await asyncio.sleep(delay_s)
            self.chunk(chunk)
        self.end()


class ScriptedServer:
    def __init__(self, script: Script, metrics: Callable[[], str] | None = None) -> None:
        self.script, self.metrics = script, metrics
        self.calls: list[Call] = []
        self.in_flight = self.most_in_flight = 0
        self.url = ""

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            path = head.split()[1]
            lengths = [int(line[15:]) for line in head.lower().splitlines() if line.startswith("content-length:")]
            body = json.loads(await reader.readexactly(lengths[0])) if lengths else {}
            call = Call(path, body, writer)
            if path == "/v1/audio/speech":
                await self._speech(call)
            elif path == "/metrics" and self.metrics is not None:
                call.whole(200, self.metrics().encode(), "text/plain")
            else:
                call.whole(404, b"{}")
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    async def _speech(self, call: Call) -> None:
        self.calls.append(call)
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            await self.script(call)
        finally:
            self.in_flight -= 1


@asynccontextmanager
async def scripted(script: Script, **options: Any) -> AsyncIterator[ScriptedServer]:
    """Serve in the test's own event loop, so that no thread comes between a chunk and its measurement."""
    server = ScriptedServer(script, **options)
    listening = await asyncio.start_server(server.answer, "127.0.0.1", 0)
    server.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    try:
        yield server
    finally:
        listening.close()


@contextmanager
def in_thread(script: Script, **options: Any) -> Iterator[ScriptedServer]:
    """Serve in a thread, for clients that run in processes of their own."""
    ready, stop = threading.Event(), asyncio.Event()
    found: list[Any] = []

    async def serve() -> None:
        async with scripted(script, **options) as server:
            found.extend((server, asyncio.get_running_loop()))
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert ready.wait(10)
    try:
        yield found[0]
    finally:
        found[1].call_soon_threadsafe(stop.set)
        thread.join(10)
