"""A speech server that streams silence in real time, so efficient that a load test of it measures the client.

    python tests/bench/stub_server.py --port 9000 --seconds 10 --log sent.json

One timer wheel with slots of 1 ms serves all streams. Each starts in the slot in which it was requested, so the load is
spread as evenly as the requests. At its end the server writes down when each chunk was sent, by the text that was asked
for (perf_counter, which the processes of a Linux machine share): the truth for checking a client's time stamps.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import signal
import time
from pathlib import Path
from typing import cast

import uvloop

RATE_HZ = 24_000
CHUNK_S = 0.08
SLOTS = 80  # of the timer wheel, which turns once per chunk
SILENCE = bytes(int(2 * RATE_HZ * CHUNK_S))
CHUNK = f"{len(SILENCE):x}\r\n".encode() + SILENCE + b"\r\n"
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: audio/pcm\r\nx-sample-rate: 24000\r\ntransfer-encoding: chunked\r\n\r\n"


class Wheel:
    def __init__(self) -> None:
        self.slots: list[list[Stream]] = [[] for _ in range(SLOTS)]
        self.turned = 0
        self.sent_s: dict[str, list[float]] = {}

    async def turn(self) -> None:
        began = time.perf_counter()
        while True:
            due = began + (self.turned + 1) * CHUNK_S / SLOTS
            if (left := due - time.perf_counter()) > 0:
                await asyncio.sleep(left)
            slot = self.turned % SLOTS
            self.slots[slot] = [stream for stream in self.slots[slot] if stream.send()]
            self.turned += 1

    def add(self, stream: Stream) -> None:
        """Add it to the slot that was just sent: its next chunk is due in a chunk's time, less up to a millisecond."""
        self.slots[(self.turned - 1) % SLOTS].append(stream)


class Stream(asyncio.Protocol):
    def __init__(self, wheel: Wheel, chunks: int) -> None:
        self.wheel, self.left = wheel, chunks
        self.got = b""
        self.sent_s: list[float] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.got += data
        head, _, body = self.got.partition(b"\r\n\r\n")
        length = next((int(h[15:]) for h in head.lower().split(b"\r\n") if h.startswith(b"content-length:")), None)
        if length is not None and len(body) >= length:
            self.sent_s = self.wheel.sent_s.setdefault(json.loads(body)["input"], [])
            self.transport.write(HEAD)
            self.send()
            self.wheel.add(self)

    def send(self) -> bool:
        if self.transport.is_closing():
            return False
        self.left -= 1
        self.sent_s.append(time.perf_counter())
        self.transport.write(CHUNK if self.left else CHUNK + b"0\r\n\r\n")
        return self.left > 0

    def connection_lost(self, exc: Exception | None) -> None:
        self.left = 0


async def serve(port: int, seconds: float, log: Path | None) -> None:
    wheel = Wheel()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Stream(wheel, round(seconds / CHUNK_S)), "127.0.0.1", port, backlog=4096)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    gc.freeze()
    gc.disable()
    turning = asyncio.ensure_future(wheel.turn())
    loop.add_signal_handler(signal.SIGTERM, turning.cancel)
    await asyncio.wait([turning])
    if log is not None:
        log.write_text(json.dumps(wheel.sent_s))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--log", type=Path)
    options = parser.parse_args()
    uvloop.run(serve(options.port, options.seconds, options.log))


if __name__ == "__main__":
    main()
