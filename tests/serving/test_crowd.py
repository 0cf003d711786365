"""More clients at once than there is room for: each is served to the end, or told when to come again.

`pytest -n 0 -m long -s tests/serving/test_crowd.py` sends two hundred, again and again, and takes three minutes.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import aiohttp
import httpx
import pytest

from serving.health_watch import HealthWatch
from serving.process import open_files, resident_mib, server_processes
from serving.test_speech import seconds
from sonant.bundled import bundled_voice

FORMATS = ("mp3", "opus", "aac", "flac", "wav", "pcm")
FRAMES, SEEDS = 8, 4
ROWS, WAITING, ROUNDS = 8, 30, 5
CLIENTS = 56  # half as many again as there is room for
MOST_HEALTH_S = {0.5: 0.02, 0.99: 0.05, 1.0: 0.5}  # by share of the probes: one in hundreds may wait for a core
IDLE_S = 4.5  # the server gives memory back when it has been left alone for three seconds
KEPT = 1.10  # at most this multiple of the memory that it had before

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory and files are read from /proc")


@dataclass
class Crowd:
    """What each client got in the end, and how often clients were refused before."""

    bodies: list[tuple[int, str, bytes]] = field(default_factory=list)  # with seed and format
    refusals: int = 0


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server with the built-in voice."""
    folder = bundled_voice()
    assert folder is not None
    limits = ("--max-rows", str(ROWS), "--max-waiting", str(WAITING), "--max-streams-per-client", "1000")
    with server_processes() as run:
        yield run(folder, *limits)


def request(seed: int, form: str) -> dict[str, object]:
    return {"input": "hello the world", "voice": "alloy", "seed": seed, "max_frames": FRAMES, "response_format": form}


@pytest.fixture(scope="module")
def expected_s(server: tuple[subprocess.Popen[str], str]) -> list[float]:
    """How long the speech of each seed is, for a client that is alone."""
    alone = [httpx.post(f"{server[1]}/v1/audio/speech", json=request(seed, "pcm")).content for seed in range(SEEDS)]
    return [seconds(data, "pcm") for data in alone]


async def listen(session: aiohttp.ClientSession, url: str, number: int, crowd: Crowd) -> None:
    seed, form = number % SEEDS, FORMATS[number % len(FORMATS)]
    while True:
        async with session.post(f"{url}/v1/audio/speech", json=request(seed, form)) as response:
            data = await response.read()  # raises if the body was broken off
            if response.status == 200:
                crowd.bodies.append((seed, form, data))
                return
            assert response.status == 429, (response.status, data[:300])
            assert json.loads(data)["error"]["type"] == "rate_limit_error" and response.headers["x-request-id"]
            crowd.refusals += 1
            wait_s = float(response.headers["retry-after"])
            assert 0 < wait_s <= 60
        await asyncio.sleep(min(wait_s, 1.0))


async def gather(url: str, clients: int) -> Crowd:
    crowd = Crowd()
    unlimited = aiohttp.TCPConnector(limit=0, force_close=True)
    async with aiohttp.ClientSession(connector=unlimited, timeout=aiohttp.ClientTimeout(120)) as session:
        await asyncio.gather(*(listen(session, url, number, crowd) for number in range(clients)))
    return crowd


def check(crowd: Crowd, clients: int, expected_s: list[float]) -> None:
    assert len(crowd.bodies) == clients
    for seed, form, data in crowd.bodies:
        added_s = seconds(data, form) - expected_s[seed]
        assert -1e-3 < added_s < 0.1, (seed, form)  # an encoder may begin with a frame of silence


def check_health(health: HealthWatch) -> None:
    for share, most_s in MOST_HEALTH_S.items():
        assert health.share_s(share) < most_s, f"{share:.0%} of /health: {health.shown()}"


def idle_mib(process: subprocess.Popen[str]) -> float:
    """Its memory after it has been idle."""
    time.sleep(IDLE_S)
    return resident_mib(process)


def settled(url: str) -> None:
    """Wait until the server itself reports that no request is left."""
    deadline = time.monotonic() + 10
    while (stats := httpx.get(f"{url}/v1/engine/stats").json())["running"] + stats["waiting"]:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert stats["restarts"] == 0 and stats["free_rows"] == stats["rows"]


@pytest.mark.heavy
def test_a_crowd_is_served_or_told_to_come_back(
    server: tuple[subprocess.Popen[str], str], expected_s: list[float]
) -> None:
    process, url = server
    asyncio.run(gather(url, 2 * ROWS))  # Memory that is needed once all rows have spoken does not count.
    before_mib = idle_mib(process)
    with HealthWatch(url) as health:
        crowd = asyncio.run(gather(url, CLIENTS))
    check(crowd, CLIENTS, expected_s)
    settled(url)
    after_mib = idle_mib(process)
    print(f"{crowd.refusals} refusals; /health {health.shown()}; {before_mib:.0f} MiB before, {after_mib:.0f} after")
    assert crowd.refusals >= CLIENTS - ROWS - WAITING
    check_health(health)
    assert after_mib < KEPT * before_mib


@pytest.mark.long
def test_two_hundred_at_once_again_and_again_leave_nothing_behind(
    server: tuple[subprocess.Popen[str], str], expected_s: list[float]
) -> None:
    process, url = server
    start_mib, files = idle_mib(process), open_files(process)
    left_mib: list[float] = []
    for _ in range(ROUNDS):
        began = time.monotonic()
        with HealthWatch(url) as health:
            crowd = asyncio.run(gather(url, 200))
        took_s, busy_mib = time.monotonic() - began, resident_mib(process)
        check(crowd, 200, expected_s)
        settled(url)
        left_mib.append(idle_mib(process))
        print(f"{took_s:.1f} s, {crowd.refusals} refusals; /health {health.shown()}")
        print(f"memory: {start_mib:.0f} MiB at the start, {busy_mib:.0f} at the end, {left_mib[-1]:.0f} when idle")
        check_health(health)
    assert max(left_mib[2:]) < 1.05 * left_mib[1], left_mib
    assert max(left_mib) < KEPT * start_mib
    assert open_files(process) <= files + 2
