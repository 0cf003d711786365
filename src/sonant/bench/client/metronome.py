"""The client's own timing error, measured all the time and in the same way as everything else.

A separate process writes the machine's clock into a socket every few milliseconds. The event loop reads that socket
among all the others; the time between the write and the read is how late the client stamps what arrives.
"""

from __future__ import annotations

import asyncio
import random
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

_STAMP = struct.Struct("<q")
_PERIOD_S = (0.002, 0.006)  # random each time, so that it never falls into step with a stream


class Metronome(asyncio.Protocol):
    """`async with Metronome() as metronome: …; metronome.errors_since(start_s)`"""

    def __init__(self) -> None:
        self.ticks: list[tuple[int, int]] = []  # when each was written and read, in ns

    async def __aenter__(self) -> Metronome:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        command = [sys.executable, "-I", "-S", str(Path(__file__)), str(theirs.fileno())]
        self.process = subprocess.Popen(command, pass_fds=[theirs.fileno()], start_new_session=True)
        theirs.close()
        self.transport, _ = await asyncio.get_running_loop().create_connection(lambda: self, sock=ours)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.transport.close()
        self.process.terminate()
        self.process.wait()

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter_ns()
        self.ticks += [(stamp, now) for (stamp,) in _STAMP.iter_unpack(data)]

    def clear(self) -> None:
        self.ticks = []

    def errors_since(self, start_s: float) -> list[float]:
        return [1e-9 * (read - written) for written, read in self.ticks if 1e-9 * written >= start_s]


def tick(fd: int) -> None:
    """The process's main function. It ends when nobody reads any more."""
    with socket.socket(fileno=fd) as out:
        while True:
            time.sleep(random.uniform(*_PERIOD_S))
            try:
                out.sendall(_STAMP.pack(time.perf_counter_ns()))
            except OSError:
                return


if __name__ == "__main__":
    tick(int(sys.argv[1]))
