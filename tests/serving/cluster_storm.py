"""Three replicas on Ray, a hundred clients, and everything killed in turn: what clients saw of it.

    python tests/serving/cluster_storm.py [FOLDER] [--replicas 3] [--clients 100] [--kills 3] [--port 8777]

FOLDER is a checkpoint's, without one the built-in voice speaks. Printed: how bodies ended, with the time that the way
through Ray adds to the first byte (against a replica that is asked directly, in turn, in the same run); what each kill
cost and how soon all was as before; a rolling update, in which no request may fail. Each stream is of a known length,
so that a short body that ends cleanly would be found.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path

import aiohttp
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from serving.cluster_processes import Cluster, cluster
from sonant.config import EngineConfig
from sonant.serving.cluster.replica import ReplicaSetup
from sonant.serving.options import ModelOptions, ServeOptions

BODY = {"input": "hello the world", "response_format": "pcm", "seed": 1}
KINDS = ("engine", "replica", "proxy", "proxy manager", "controller")
_RATE = 2 * 24_000  # bytes a second


@dataclass
class Crowd:
    """Clients that ask again and again; what became of each request."""

    url: str
    frames: int
    expected: int
    headers: dict[str, str] = field(default_factory=dict)
    outcomes: Counter[str] = field(default_factory=Counter)
    gaps: int = 0

    async def ask(self, session: aiohttp.ClientSession) -> str:
        """whole, a status that refused it, broken after it began, unreachable; or short: a lie."""
        size, first_s, gap = 0, 0.0, False
        try:
            body = {**BODY, "max_frames": self.frames}
            async with session.post(f"{self.url}/v1/audio/speech", json=body, headers=self.headers) as answer:
                if answer.status != 200:
                    return str(answer.status)
                async for data in answer.content.iter_any():
                    now_s = time.monotonic()
                    first_s = first_s or now_s
                    gap |= size > 0 and size / _RATE < now_s - first_s
                    size += len(data)
        except (TimeoutError, aiohttp.ClientPayloadError):
            return "broken"
        except (aiohttp.ClientError, OSError):
            return "broken" if size else "unreachable"
        self.gaps += gap
        return "whole" if size == self.expected else "short"

    async def ask_on(self, session: aiohttp.ClientSession, until: asyncio.Event) -> None:
        while not until.is_set():
            outcome = await self.ask(session)
            self.outcomes[outcome] += 1
            if outcome != "whole":
                await asyncio.sleep(0.2)


def new_session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=None, sock_read=60)
    )


async def first_byte_s(session: aiohttp.ClientSession, url: str, path: str) -> float:
    body = None if path == "/health" else {**BODY, "max_frames": 2}
    began_s = time.perf_counter()
    async with session.request("GET" if body is None else "POST", f"{url}{path}", json=body) as answer:
        assert answer.status == 200, await answer.text()
        await answer.content.readany()
        took_s = time.perf_counter() - began_s
        await answer.read()
    return took_s


async def added(c: Cluster, rounds: int) -> None:
    """The way through Ray against a replica asked directly, in turn; for speech, and for what needs no engine."""
    async with new_session() as session:
        for path in ("/v1/audio/speech", "/health"):
            direct, through = [], []
            for n in range(rounds):
                direct.append(await first_byte_s(session, f"http://127.0.0.1:{c.ports()[n % c.replicas]}", path))
                through.append(await first_byte_s(session, c.url, path))
            mine, theirs = (1e3 * np.quantile(times, [0.5, 0.99]) for times in (direct, through))
            print(f"    first byte of {path}, p50 and p99: directly {mine.round(2)}, through Ray {theirs.round(2)} ms")
            print(f"    added {(theirs - mine).round(2)} ms; load {os.getloadavg()[0]:.1f}", flush=True)


async def crowded(c: Cluster, crowd: Crowd, clients: int, seconds: float) -> None:
    until = asyncio.Event()
    async with new_session() as session:
        tasks = [asyncio.create_task(crowd.ask_on(session, until)) for _ in range(clients)]
        await asyncio.sleep(seconds)
        until.set()
        await asyncio.wait(tasks)
    print(f"{clients} clients, {seconds:g} s: {dict(crowd.outcomes)}, {crowd.gaps} with a gap", flush=True)
    assert set(crowd.outcomes) <= {"whole", "429"} and crowd.outcomes["whole"], crowd.outcomes


async def under_load(c: Cluster, crowd: Crowd, clients: int, work: object) -> None:
    """`work` on a thread, while clients ask on."""
    until = asyncio.Event()
    async with new_session() as session:
        tasks = [asyncio.create_task(crowd.ask_on(session, until)) for _ in range(clients)]
        await asyncio.sleep(1.0)
        await asyncio.to_thread(work)  # type: ignore[arg-type]
        await asyncio.sleep(1.0)
        until.set()
        await asyncio.wait(tasks)


def killed(c: Cluster, kind: str, kills: int, crowd: Crowd, clients: int) -> None:
    times: list[float] = []

    def work() -> None:
        for _ in range(kills):
            began_s, victim = time.monotonic(), c.kill(kind)
            while victim in c.pids(kind) or not c.pids(kind):
                time.sleep(0.02)
            time.sleep(0.5)  # in which it shows what is missing
            c.wait_whole()
            times.append(time.monotonic() - began_s)
            time.sleep(1.0)

    asyncio.run(under_load(c, crowd, clients, work))
    times.sort()
    print(f"{kind}: {kills} kills, all as before after {times[len(times) // 2]:.1f} s, at most {times[-1]:.1f} s")
    print(f"    {dict(crowd.outcomes)}", flush=True)
    assert not crowd.outcomes["short"], "a body that ended cleanly was short"
    assert crowd.outcomes["whole"], "nobody was spoken to"


def updated(c: Cluster, setup: ReplicaSetup, crowd: Crowd, clients: int) -> None:
    changed = replace(setup, serving=replace(setup.serving, max_requests_per_minute=10**6))
    before = c.pids("replica")
    began_s = time.monotonic()
    asyncio.run(under_load(c, crowd, clients, lambda: c.deploy(changed)))
    print(f"rolling update: {time.monotonic() - began_s:.1f} s, {dict(crowd.outcomes)}", flush=True)
    assert not set(before) & set(c.pids("replica")), "a replica was not replaced"
    assert set(crowd.outcomes) <= {"whole", "429"}, crowd.outcomes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--replicas", type=int, default=3)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--frames", type=int, default=25)
    parser.add_argument("--first-bytes", type=int, default=200)
    parser.add_argument("--port", type=int, default=8777)
    parser.add_argument("--only", choices=("crowd", "kills", "update"))
    parser.add_argument("--kill", choices=KINDS, nargs="*", default=KINDS)
    args = parser.parse_args()
    serving = ServeOptions(port=args.port, log_level="error", drain_s=30.0, max_first_audio_s=3.0)
    folder = None if args.folder is None else args.folder.absolute()
    setup = ReplicaSetup(folder=folder, model=ModelOptions(device="cpu"), serving=serving, engine=EngineConfig())
    with cluster(setup, args.replicas) as c:
        crowd = Crowd(c.url, args.frames, 0)
        crowd.expected = asyncio.run(length_of(crowd))
        few = max(2, args.clients // 16)
        if args.only in (None, "crowd"):
            asyncio.run(added(c, args.first_bytes))
            asyncio.run(crowded(c, replace_outcomes(crowd), args.clients, args.seconds))
            print("and once more, after the crowd:")
            asyncio.run(added(c, args.first_bytes))
        for kind in args.kill if args.only in (None, "kills") else ():
            killed(c, kind, args.kills, replace_outcomes(crowd), few)
        if args.only in (None, "update"):
            updated(c, setup, replace_outcomes(crowd), few)


def replace_outcomes(crowd: Crowd) -> Crowd:
    return replace(crowd, outcomes=Counter(), gaps=0)


async def length_of(crowd: Crowd) -> int:
    async with new_session() as session, session.post(
        f"{crowd.url}/v1/audio/speech", json={**BODY, "max_frames": crowd.frames, "stream": False}
    ) as answer:
        assert answer.status == 200, await answer.text()
        return len(await answer.read())


if __name__ == "__main__":
    main()
