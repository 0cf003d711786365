"""Asks /health, over and over, while a crowd is served.

It does so from a process of its own: in the crowd's it would measure how long the clients keep each other waiting, and
their garbage collector, which walks over all that pytest has loaded for a third of a second.
"""

from __future__ import annotations

import http.client
import json
import select
import statistics
import subprocess
import sys
import time

_EVERY_S = 0.02


class HealthWatch:
    def __init__(self, url: str) -> None:
        self.address = url.removeprefix("http://")
        self.took_s: list[float] = []

    def __enter__(self) -> HealthWatch:
        command = [sys.executable, "-I", __file__, self.address]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        return self

    def __exit__(self, *_: object) -> None:
        said, _ = self._process.communicate("\n", timeout=30)
        assert self._process.returncode == 0, "the watch on /health failed"
        self.took_s = sorted(json.loads(said))

    def share_s(self, share: float) -> float:
        """The longest that this share of the answers, the fastest ones, took."""
        return self.took_s[int(share * (len(self.took_s) - 1))]

    def shown(self) -> str:
        p50, p99, most = (1e3 * s for s in (statistics.median(self.took_s), self.share_s(0.99), self.took_s[-1]))
        return f"p50 {p50:.1f} ms, p99 {p99:.1f} ms, most {most:.1f} ms of {len(self.took_s)}"


def watch(address: str) -> list[float]:
    """Ask until something is written to standard input → the seconds that each answer took."""
    took_s: list[float] = []
    connection = http.client.HTTPConnection(address, timeout=30)
    while not select.select([sys.stdin], [], [], _EVERY_S)[0]:
        began_s = time.perf_counter()
        connection.request("GET", "/health")
        assert connection.getresponse().read() == b'{"status":"ok"}'
        took_s.append(time.perf_counter() - began_s)
    return took_s


if __name__ == "__main__":
    print(json.dumps(watch(sys.argv[1])))
