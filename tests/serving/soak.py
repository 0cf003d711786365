"""A server under a steady load for a long time, with all that clients do: is it as it was, and was anybody let down?

    python tests/serving/soak.py [FOLDER] --minutes 60 --listeners 2 [--workers 2] [--device cuda] [--voices DIR]
    python tests/serving/soak.py FOLDER --minutes 5 --listeners 1500 --frames 125 --workers 6 --device cuda

So many listen at once and play what they get as it comes: few of them one after the other in as many places, many at
random times. Meanwhile some hang up in the middle, some read slowly, some ask for what is wrong, and voices are
uploaded, spoken with and deleted where the model clones. Before memory counts, all that a server keeps for later is
filled: the cache of prompts, which has its full size from the start but no pages yet, the clips it remembers, and what
a full house works in.

Printed every minute: memory by process. At the end, for each process: how much it has at the beginning and the end of
what counts, and the slope of a line through all of it; then who was heard whole, without a gap, broken off, refused,
and how late the clients' own clock was, which is in every gap. The exit code is 0 if nothing was lost, nobody had a
gap, and memory of all together is flat within 2 %.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import soundfile
from process_memory import MemoryRecord

WORDS = "a bright cold day in april and the clocks were striking thirteen while old trees gave shade to quick foxes"
LENGTHS = (6, 20, 45)  # of texts, in words
WARM_SHARE, WARM_MINUTES = 0.1, 1.0  # of all the time, and at least, before memory counts as what it is to stay
SAMPLE_S = 10.0
FEW = 16  # listeners, who come one after the other: random times would be idle at one moment and too much at the next
REMEMBERED = 80  # clips, a few more than an engine remembers
PROMPTS = 1200  # at least: a CPU's cache has 1,024 blocks, of which a prompt may write just one anew
HOUSE, HOUSES = 10, 6  # requests at once, more than a CPU has rows; and how often
UPLOAD_EVERY_S = 10.0
KEPT_S = 2.0  # by a player
MANNERS = {"listens": 80, "leaves": 10, "slow": 5, "wrong": 5}


class Soak:
    def __init__(self, url: str, listeners: float, rate: int, frames: int | None) -> None:
        self.url, self.listeners, self.rate, self.sound_s = url, listeners, rate, 0.0
        self.limits = {} if frames is None else {"max_frames": frames}
        self.voice = "alloy"
        self.outcomes: Counter[str] = Counter()
        self.gaps_s: list[float] = []
        self.first_s: list[float] = []
        self.late_s: list[float] = []

    async def listen(self, session: aiohttp.ClientSession, manner: str, voice: str | None = None) -> None:
        """One listener, who hears it in real time; a slow one reads at half that pace."""
        began_s, heard_s, first_s, gap_s = time.monotonic(), 0.0, 0.0, 0.0
        body = {"input": text(), "response_format": "pcm", "voice": voice or self.voice, **self.limits}
        if manner == "wrong":
            body["voice"] = "nobody at all"
        try:
            async with session.post(f"{self.url}/v1/audio/speech", json=body) as response:
                if response.status != 200:
                    self.outcomes["expected refusal" if manner == "wrong" else f"status {response.status}"] += 1
                    return
                async for data in response.content.iter_any():
                    now_s = time.monotonic()
                    first_s = first_s or now_s
                    late_s = now_s - first_s - heard_s if heard_s else 0.0
                    if manner == "listens" and late_s > gap_s:
                        print(f"a gap of {1e3 * late_s:.0f} ms after {heard_s:.2f} s", flush=True)
                    gap_s = max(gap_s, late_s)
                    heard_s += len(data) / 2 / self.rate
                    if manner == "leaves" and heard_s > 1:
                        self.outcomes["left"] += 1
                        return
                    if manner == "slow":
                        await asyncio.sleep(len(data) / self.rate)
                    else:
                        await asyncio.sleep(max(0.0, heard_s - (now_s - first_s) - KEPT_S))
            self.outcomes["whole"] += 1
            if manner == "listens":
                self.gaps_s += [gap_s] if gap_s > 0 else []
                self.first_s.append(first_s - began_s)
        except (TimeoutError, aiohttp.ClientError) as e:
            self.outcomes[f"broken: {type(e).__name__}"] += 1

    async def upload(self, session: aiohttp.ClientSession) -> str | None:
        form = aiohttp.FormData()
        name = f"voice {random.randrange(10**9)}"
        for key, value in (("name", name), ("consent", "I agree to this."), ("ref_text", "hello the world")):
            form.add_field(key, value)
        form.add_field("audio_sample", clip(), filename="clip.wav", content_type="audio/wav")
        async with session.post(f"{self.url}/v1/audio/voices", data=form) as response:
            self.outcomes[f"upload {response.status}"] += 1
            return str((await response.json())["id"]) if response.status == 200 else None

    async def come_and_go(self, session: aiohttp.ClientSession, frames: int | None = None) -> None:
        """A voice that is uploaded, spoken with once, to a listener or for so many frames, and deleted."""
        voice = await self.upload(session)
        if voice is None:
            return
        if frames is None:
            await self.listen(session, "listens", voice)
        else:
            await self.ask(session, text(6), voice=voice, max_frames=frames)
        async with session.delete(f"{self.url}/v1/audio/voices/{voice}") as deleted:
            self.outcomes[f"delete {deleted.status}"] += 1

    async def ask(self, session: aiohttp.ClientSession, said: str, **fields: Any) -> float:
        """Nobody listens → seconds of sound."""
        body = {"input": said, "response_format": "pcm", "voice": self.voice, **self.limits, **fields}
        async with session.post(f"{self.url}/v1/audio/speech", json=body) as response:
            response.raise_for_status()
            return len(await response.read()) / 2 / self.rate

    async def fill(self, session: aiohttp.ClientSession, memory: MemoryRecord, uploads: bool) -> None:
        """What is kept for later, until it takes no more memory, and what a full house works in."""
        for _ in range(REMEMBERED if uploads else 0):
            await self.come_and_go(session, frames=2)
        for _ in range(HOUSES):
            house = asyncio.gather(*(self.ask(session, text(20), stream=n % 2 == 0) for n in range(HOUSE)))
            while uploads and not house.done():
                await self.come_and_go(session, frames=2)  # what encodes works beside what speaks, at its fullest
            await house
        before, asked = 0.0, 0
        while (now := memory.total_mib()) > 1.002 * before or asked < PROMPTS:
            before = now
            for _ in range(40):
                asked += 1
                await self.ask(session, text(40), max_frames=1)
        print(f"filled with {asked} prompts: {before:.0f} MiB", flush=True)

    async def run(self, minutes: float, uploads: bool, memory: MemoryRecord) -> None:
        connector, timeout = aiohttp.TCPConnector(limit=0, force_close=True), aiohttp.ClientTimeout(total=600)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
            self.voice = (await self.upload(session) if uploads else None) or self.voice  # one that clones has no own
            self.sound_s = float(np.mean([await self.ask(session, text(words)) for words in LENGTHS]))
            await self.fill(session, memory, uploads)
            self.outcomes.clear()
            end_s = time.monotonic() + 60 * minutes
            arrivals = self.one_after_the_other if self.listeners < FEW else self.at_random
            warm_s = 60 * max(WARM_MINUTES, WARM_SHARE * minutes)
            tasks = [self.watch(warm_s, end_s, memory), arrivals(session, end_s)]
            await asyncio.gather(*tasks, *([self.upload_often(session, end_s)] if uploads else []))

    async def one_after_the_other(self, session: aiohttp.ClientSession, end_s: float) -> None:
        async def place() -> None:
            await asyncio.sleep(random.uniform(0, 2))
            while time.monotonic() < end_s:
                await self.listen(session, manner())
                await asyncio.sleep(random.uniform(0.05, 0.5))

        await asyncio.gather(*(place() for _ in range(round(self.listeners))))

    async def at_random(self, session: aiohttp.ClientSession, end_s: float) -> None:
        running: set[asyncio.Task[None]] = set()
        while time.monotonic() < end_s:
            task = asyncio.create_task(self.listen(session, manner()))
            running.add(task)
            task.add_done_callback(running.discard)
            await asyncio.sleep(random.expovariate(self.listeners / self.sound_s))
        await asyncio.wait(running, timeout=120)

    async def upload_often(self, session: aiohttp.ClientSession, end_s: float) -> None:
        while time.monotonic() < end_s:
            await asyncio.gather(self.come_and_go(session), asyncio.sleep(UPLOAD_EVERY_S))

    async def watch(self, warm_s: float, end_s: float, memory: MemoryRecord) -> None:
        began_s, told_s = time.monotonic(), time.monotonic()
        while (now_s := time.monotonic()) < end_s:
            if now_s - began_s > warm_s:
                memory.sample(now_s - began_s)
            if now_s - told_s >= 60:
                told_s += 60
                shown = memory.now()
                gaps = f"{len(self.gaps_s)} with a gap"
                print(f"{(now_s - began_s) / 60:5.1f} min  {shown}  {dict(self.outcomes)}, {gaps}", flush=True)
            wake_s = min(now_s + SAMPLE_S, end_s)
            while (left_s := wake_s - time.monotonic()) > 0:  # how late one is woken is how late a listener may be
                pause_s = min(0.1, left_s)
                due_s = time.monotonic() + pause_s
                await asyncio.sleep(pause_s)
                self.late_s.append(time.monotonic() - due_s)

    def verdict(self, memory: MemoryRecord) -> int:
        growth = memory.show()
        first = np.quantile(self.first_s, [0.5, 0.99]) if self.first_s else (0, 0)
        late = np.quantile(self.late_s, [0.5, 0.99, 1]) if self.late_s else (0, 0, 0)
        wrong = ("broken", "status", "upload 4", "upload 5", "delete 4", "delete 5")
        lost = sum(n for what, n in self.outcomes.items() if what.startswith(wrong))
        print(f"{dict(self.outcomes)}; {lost} lost")
        print(f"first sound p50 {first[0]:.3f} s, p99 {first[1]:.3f} s")
        print(f"{len(self.gaps_s)} listeners with a gap, of {1e3 * max(self.gaps_s, default=0):.0f} ms at most")
        print(f"the clients' own clock: late by {1e3 * late[1]:.1f} ms at p99, {1e3 * late[2]:.0f} at most")
        held = growth is not None and growth <= 0.02
        told = "not enough samples" if growth is None else f"{100 * growth:+.2f} %"
        print(f"memory {told}: {'flat' if held else 'NOT flat'} within 2 %")
        return int(lost > 0 or bool(self.gaps_s) or not held)


def text(words: int | None = None) -> str:
    """Of a few words to three sentences, and hardly ever the same."""
    count = words or random.choice(LENGTHS)
    return " ".join(random.choices(WORDS.split(), k=count)).capitalize() + "."


def manner() -> str:
    return random.choices([*MANNERS], [*MANNERS.values()])[0]


def clip() -> bytes:
    out = io.BytesIO()
    t = np.arange(2 * 24_000) / 24_000
    pitch_hz = random.uniform(150, 300)
    soundfile.write(out, 0.3 * np.sin(2 * np.pi * pitch_hz * t) * np.sin(3 * t), 24_000, format="WAV")
    return out.getvalue()


async def sample_rate(url: str) -> int:
    """Once the server is ready."""
    async with aiohttp.ClientSession() as session:
        while True:
            with contextlib.suppress(aiohttp.ClientError):
                async with session.get(f"{url}/ready") as ready:
                    if ready.status == 200:
                        break
            await asyncio.sleep(0.2)
        async with session.get(f"{url}/v1/engine") as engine:
            return int((await engine.json())["sample_rate"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", help="of a checkpoint; none: the built-in voice")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--listeners", type=float, default=2.0, help="that listen at once, on average")
    parser.add_argument("--frames", type=int, help="of each utterance at most, for random weights, which hardly end")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--voices", type=Path, help="a folder for uploads, where the model clones")
    parser.add_argument("--port", type=int, default=8766)
    args = parser.parse_args()
    url = f"http://127.0.0.1:{args.port}"
    command = [sys.executable, "-m", "sonant.cli.main", "serve", *([args.folder] if args.folder else [])]
    command += ["--port", str(args.port), "--workers", str(args.workers), "--device", args.device]
    command += ["--log-level", "error"]
    command += ["--voices", str(args.voices), "--consent", "asserted"] if args.voices else []
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("told to end"))
    server = subprocess.Popen(command)
    try:
        soak = Soak(url, args.listeners, asyncio.run(sample_rate(url)), args.frames)
        memory = MemoryRecord(server.pid)
        asyncio.run(soak.run(args.minutes, args.voices is not None, memory))
    finally:
        server.send_signal(signal.SIGTERM)
        code = server.wait(60)
    print(f"exit code {code}")
    return soak.verdict(memory) or code


if __name__ == "__main__":
    sys.exit(main())
