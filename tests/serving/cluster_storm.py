"""Three replicas on Ray, a hundred clients, and every process killed in turn: what do clients see of it?

    python tests/serving/cluster_storm.py [FOLDER] [--replicas 3] [--clients 100] [--kills 3] [--port 8777]

FOLDER is a checkpoint's, `tiny` one that is written here, `tiny base` one that clones: then voices are uploaded and
deleted all the while. Without it the built-in voice speaks. Prints how bodies ended, and how much Ray's proxy adds to
the first byte in the same run; what each kill cost, and how soon everything was as before; and a rolling update, in
which no request may fail. Each stream has a known length, so that a short body that ends cleanly is detected, and after
each kill every replica is asked for all voices that were acknowledged.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import aiohttp
import httpx

sys.path.insert(0, str(Path(__file__).parents[1]))

from serving.cluster_first_byte import SPEECH_PATH, ask, show
from serving.cluster_processes import Cluster, alone, cluster, folder_of
from serving.cluster_uploads import Uploads, clip_of
from sonant.config import EngineConfig
from sonant.serving.cluster.replica import ReplicaSetup
from sonant.serving.options import ModelOptions, ServeOptions

BODY = {"input": "hello the world", "response_format": "pcm", "seed": 1}
KINDS = ("engine", "replica", "proxy", "proxy manager", "proxy actor", "controller")
_RATE = 2 * 24_000  # bytes a second


@dataclass
class Crowd:
    """Clients that ask again and again, and what became of their requests."""

    url: str
    frames: int
    expected: int
    voice: str | None = None  # by id; None: the model's own
    headers: dict[str, str] = field(default_factory=dict)
    outcomes: Counter[str] = field(default_factory=Counter)
    gaps: int = 0

    @property
    def body(self) -> dict[str, object]:
        voice = {} if self.voice is None else {"voice": {"id": self.voice}}
        return {**BODY, **voice, "max_frames": self.frames}

    async def ask(self, session: aiohttp.ClientSession) -> str:
        """Return "whole", the status of a refusal, "broken", "unreachable", or "short": cut off, but ended cleanly."""
        size, first_s, gap = 0, 0.0, False
        try:
            async with session.post(f"{self.url}/v1/audio/speech", json=self.body, headers=self.headers) as answer:
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


async def crowded(c: Cluster, crowd: Crowd, clients: int, seconds: float) -> None:
    until = asyncio.Event()
    async with new_session() as session:
        tasks = [asyncio.create_task(crowd.ask_on(session, until)) for _ in range(clients)]
        await asyncio.sleep(seconds)
        until.set()
        await asyncio.wait(tasks)
    print(f"{clients} clients, {seconds:g} s: {dict(crowd.outcomes)}, {crowd.gaps} with a gap", flush=True)
    assert set(crowd.outcomes) <= {"whole", "429"} and crowd.outcomes["whole"], crowd.outcomes


async def under_load(c: Cluster, crowd: Crowd, clients: int, work: object, uploads: Sequence[Uploads] = ()) -> None:
    """Run `work` on a thread, while clients go on asking and uploading."""
    until = asyncio.Event()
    async with new_session() as session:
        tasks = [asyncio.create_task(crowd.ask_on(session, until)) for _ in range(clients)]
        tasks += [asyncio.create_task(each.upload_on(session, until)) for each in uploads]
        await asyncio.sleep(1.0)
        await asyncio.to_thread(work)  # type: ignore[arg-type]
        await asyncio.sleep(1.0)
        until.set()
        await asyncio.gather(*tasks)


def told_of(uploads: Sequence[Uploads]) -> str:
    done = sum((each.outcomes for each in uploads), Counter[str]())
    return f"; voices: {dict(done)}, {sum(len(each.kept) for each in uploads)} kept" if uploads else ""


def killed(c: Cluster, kind: str, kills: int, crowd: Crowd, clients: int, uploads: Sequence[Uploads]) -> None:
    times: list[float] = []

    def work() -> None:
        for _ in range(kills):
            began_s, victim = time.monotonic(), c.kill(kind)
            while victim in c.pids(kind) or not c.pids(kind):
                time.sleep(0.02)
            time.sleep(0.5)  # until what is missing shows
            c.wait_whole()
            times.append(time.monotonic() - began_s)
            time.sleep(1.0)

    asyncio.run(under_load(c, crowd, clients, work, uploads))
    times.sort()
    print(f"{kind}: {kills} kills, all as before after {times[len(times) // 2]:.1f} s, at most {times[-1]:.1f} s")
    print(f"    {dict(crowd.outcomes)}{told_of(uploads)}; load {os.getloadavg()[0]:.1f}", flush=True)
    assert not crowd.outcomes["short"], "a body that ended cleanly was short"
    assert crowd.outcomes["whole"], "nobody was spoken to"
    if kind in ("engine", "replica"):  # The others go on: only those that it spoke to lose their answer.
        assert crowd.outcomes["broken"] <= clients * kills and not crowd.outcomes["unreachable"], crowd.outcomes
    for each in uploads:
        each.check(c)


def updated(c: Cluster, setup: ReplicaSetup, crowd: Crowd, clients: int, uploads: Sequence[Uploads]) -> None:
    """Deploy with another `max_requests_per_minute`, so that every replica is replaced."""
    limit = setup.serving.max_requests_per_minute or 10**6
    changed = replace(setup, serving=replace(setup.serving, max_requests_per_minute=limit + 1))
    before = c.pids("replica")
    began_s = time.monotonic()
    asyncio.run(under_load(c, crowd, clients, lambda: c.deploy(changed), uploads))
    print(f"rolling update: {time.monotonic() - began_s:.1f} s, {dict(crowd.outcomes)}{told_of(uploads)}", flush=True)
    assert not set(before) & set(c.pids("replica")), "a replica was not replaced"
    assert set(crowd.outcomes) <= {"whole", "429"}, crowd.outcomes
    for each in uploads:
        assert set(each.outcomes) <= {"upload 200", "delete 200"}, each.outcomes
        each.check(c)


def first_voice(c: Cluster) -> str:
    answer = httpx.post(
        f"{c.url}/v1/audio/voices", files={"audio_sample": ("clip.wav", clip_of(1))}, timeout=60,
        data={"name": "Who speaks to the crowd", "consent": "she agreed"},
    )  # fmt: skip
    assert answer.status_code == 200, answer.text
    return str(answer.json()["id"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?")
    parser.add_argument("--replicas", type=int, default=3)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--frames", type=int, default=25)
    parser.add_argument("--first-bytes", type=int, default=500)
    parser.add_argument("--port", type=int, default=8777)
    parser.add_argument("--only", choices=("crowd", "kills", "update"))
    parser.add_argument("--kill", choices=KINDS, nargs="*", default=KINDS)
    args = parser.parse_args()
    clones = args.folder == "tiny base"
    with ExitStack() as held:
        held.enter_context(alone())
        voices = Path(held.enter_context(TemporaryDirectory()), "voices") if clones else None
        serving = ServeOptions(
            port=args.port, log_level="error", drain_s=30.0, max_first_audio_s=3.0, voices_folder=voices,
            consent="asserted",
        )  # fmt: skip
        folder = held.enter_context(folder_of(args.folder))
        setup = ReplicaSetup(folder=folder, model=ModelOptions(device="cpu"), serving=serving, engine=EngineConfig())
        storm(held.enter_context(cluster(setup, args.replicas)), setup, args, clones=clones)


def storm(c: Cluster, setup: ReplicaSetup, args: argparse.Namespace, *, clones: bool) -> None:
    crowd = Crowd(c.url, args.frames, 0, voice=first_voice(c) if clones else None)
    crowd.expected = asyncio.run(length_of(crowd))
    few = max(2, args.clients // 16)

    def uploads() -> list[Uploads]:
        return [Uploads(c.url, f"{os.urandom(4).hex()} of {who}") for who in ("Anna", "Bo")] if clones else []

    if args.only in (None, "crowd"):
        asyncio.run(crowded(c, replace_outcomes(crowd), args.clients, args.seconds))
        if not clones:
            show("first byte of speech, by the clock", ask(c, SPEECH_PATH, args.first_bytes, seed=0)[0])
    for kind in args.kill if args.only in (None, "kills") else ():
        killed(c, kind, args.kills, replace_outcomes(crowd), few, uploads())
    if args.only in (None, "update"):
        updated(c, setup, replace_outcomes(crowd), few, uploads())


def replace_outcomes(crowd: Crowd) -> Crowd:
    return replace(crowd, outcomes=Counter(), gaps=0)


async def length_of(crowd: Crowd) -> int:
    async with (
        new_session() as session,
        session.post(f"{crowd.url}/v1/audio/speech", json={**crowd.body, "stream": False}) as answer,
    ):
        assert answer.status == 200, await answer.text()
        return len(await answer.read())


if __name__ == "__main__":
    main()
