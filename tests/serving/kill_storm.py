"""Kill -9 under load: every process of a server in turn, again and again. What do its clients see of it?

    python tests/serving/kill_storm.py FOLDER [--kills 20] [--workers 2]

Each stream has a known length, so that a short body that ends cleanly is detected. Tests use this with few kills.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

FRAMES = 40


@dataclass
class Load:
    """Clients that ask again and again, always for a stream of known length."""

    url: str
    clients: int
    expected: int  # bytes of a whole stream
    outcomes: Counter[str] = field(default_factory=Counter)
    stop: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Load:
        self.threads = [threading.Thread(target=self._ask_on, daemon=True) for _ in range(self.clients)]
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        for thread in self.threads:
            thread.join(60)

    def _ask_on(self) -> None:
        while not self.stop.is_set():
            outcome = ask(self.url, self.expected)
            self.outcomes[outcome] += 1
            if outcome != "whole":
                time.sleep(0.05)


def ask(url: str, expected: int) -> str:
    """Return "whole", "refused" before any sound, "broken" off, "unreachable", or "short": but ended cleanly."""
    host = url.removeprefix("http://")
    try:
        connection = http.client.HTTPConnection(host, timeout=60)
        body = {"input": "hello the world", "voice": "alloy", "response_format": "pcm", "seed": 1, "max_frames": FRAMES}
        connection.request("POST", "/v1/audio/speech", json.dumps(body), {"content-type": "application/json"})
        response = connection.getresponse()
    except (OSError, http.client.HTTPException):
        return "unreachable"
    try:
        sound = response.read()
    except (OSError, http.client.HTTPException):
        return "broken"
    if response.status != 200:
        return "refused"
    return "whole" if len(sound) == expected else "short"


def length_of(url: str) -> int:
    body = {"input": "hello the world", "voice": "alloy", "response_format": "pcm", "seed": 1, "max_frames": FRAMES}
    request = urllib.request.Request(
        f"{url}/v1/audio/speech", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=120) as response:
        return len(response.read())


def children(pid: int) -> dict[str, list[int]]:
    """The processes of a server, by kind."""
    found: dict[str, list[int]] = {"engine": [], "front_end": []}
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        try:
            command = Path(f"/proc/{child}/cmdline").read_text()
        except (FileNotFoundError, ProcessLookupError):  # it has just ended
            continue
        for kind in found:
            if f"{kind}_process" in command:
                found[kind].append(int(child))
    return found


def ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/ready", timeout=5):
            return True
    except OSError:
        return False


def wait_until(condition: object, timeout_s: float) -> float:
    began_s = time.monotonic()
    while not condition():  # type: ignore[operator]
        if time.monotonic() - began_s > timeout_s:
            raise TimeoutError(f"it did not come about in {timeout_s:g} s")
        time.sleep(0.02)
    return time.monotonic() - began_s


def kill_one(server: int, kind: str, url: str, workers: int) -> float:
    """Kill one process of a kind → seconds until everything is as before."""
    victim = children(server)[kind][0]
    os.kill(victim, signal.SIGKILL)

    def back() -> bool:
        now = children(server)
        complete = len(now["front_end"]) == workers and len(now["engine"]) == 1 and victim not in now[kind]
        return complete and ready(url) and front_ends(url) == workers

    return wait_until(back, 120)


def front_ends(url: str) -> int:
    """How many front ends are connected to the engine."""
    try:
        with urllib.request.urlopen(f"{url}/v1/engine/stats", timeout=5) as response:
            return int(json.load(response).get("front_ends", 0))
    except OSError:
        return 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--clients", type=int, default=4)
    args = parser.parse_args()
    command = [sys.executable, "-m", "sonant.cli.main", "serve", args.folder, "--port", "8765", "--log-level", "error"]
    url = "http://127.0.0.1:8765"
    server = subprocess.Popen([*command, "--workers", str(args.workers)])
    try:
        wait_until(lambda: ready(url) and front_ends(url) == args.workers, 180)
        expected = length_of(url)
        for kind in ("front_end", "engine"):
            times = []
            with Load(url, args.clients, expected) as load:
                for _ in range(args.kills):
                    heard = load.outcomes["whole"]
                    wait_until(lambda heard=heard: load.outcomes["whole"] > heard, 60)  # until it speaks again
                    times.append(kill_one(server.pid, kind, url, args.workers))
            times.sort()
            print(f"{kind}: {args.kills} kills, back after {times[len(times) // 2]:.2f} s, at most {times[-1]:.2f} s")
            print(f"    {dict(load.outcomes)}", flush=True)
            assert not load.outcomes["short"], "a body that ended cleanly was short"
    finally:
        server.send_signal(signal.SIGTERM)
        print("exit code", server.wait(60))
    left = subprocess.run(["pgrep", "-f", "sonant.serving.processes"], capture_output=True, text=True).stdout.split()
    print("processes left:", left or "none")


if __name__ == "__main__":
    main()
