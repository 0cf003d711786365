"""A server under a steady load for a long time, with all that clients do: is it as it was, and was anybody let down?

    python tests/serving/soak.py FOLDER --minutes 60 --listeners 8 [--workers 2] [--device cuda] [--clip-voices]

Listeners come at random times, so that about so many speak at once, and play what they get as it comes. Meanwhile some
hang up in the middle, some read slowly, some ask for what is wrong, and voices are uploaded and deleted where the model
clones. Printed every minute and at the end: the processes' memory, and how many were heard whole, without a gap, broken
off, refused.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import aiohttp
import numpy as np
import soundfile

TEXTS = (
    "Hello there, how are you today?",
    "The quick brown fox jumps over the lazy dog, and then it rests for a while in the shade of an old tree.",
    "It was a bright cold day in April, and the clocks were striking thirteen. " * 3,
)
WARM_MINUTES = 2.0  # before memory counts as what it is to stay


class Soak:
    def __init__(self, url: str, listeners: int, sound_s: float, rate: int) -> None:
        self.url, self.listeners, self.sound_s, self.rate = url, listeners, sound_s, rate
        self.outcomes: Counter[str] = Counter()
        self.gaps = 0
        self.first_s: list[float] = []

    async def listen(self, session: aiohttp.ClientSession, manner: str) -> None:
        """One listener, who hears it in real time; a slow one reads at half that pace."""
        began_s, heard_s, first_s, gap = time.monotonic(), 0.0, 0.0, False
        body = {"input": random.choice(TEXTS), "response_format": "pcm", "voice": "alloy"}
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
                    gap |= heard_s > 0 and heard_s < now_s - first_s
                    heard_s += len(data) / 2 / self.rate
                    if manner == "leaves" and heard_s > 1:
                        self.outcomes["left"] += 1
                        return
                    if manner == "slow":
                        await asyncio.sleep(len(data) / self.rate)
                    else:  # as a player does that keeps two seconds
                        await asyncio.sleep(max(0.0, heard_s - (now_s - first_s) - 2.0))
            self.outcomes["whole"] += 1
            self.gaps += gap and manner == "listens"
            self.first_s.append(first_s - began_s)
        except (TimeoutError, aiohttp.ClientError) as e:
            self.outcomes[f"broken: {type(e).__name__}"] += 1

    async def upload(self, session: aiohttp.ClientSession) -> None:
        form = aiohttp.FormData()
        name = f"voice {random.randrange(10**9)}"
        for key, value in (("name", name), ("consent", "I agree to this."), ("ref_text", "hello the world")):
            form.add_field(key, value)
        form.add_field("audio_sample", clip(), filename="clip.wav", content_type="audio/wav")
        async with session.post(f"{self.url}/v1/audio/voices", data=form) as response:
            self.outcomes[f"upload {response.status}"] += 1
            if response.status == 200:
                voice = (await response.json())["id"]
                async with session.delete(f"{self.url}/v1/audio/voices/{voice}") as deleted:
                    self.outcomes[f"delete {deleted.status}"] += 1

    async def run(self, minutes: float, uploads: bool, pid: int) -> list[float]:
        """Memory of the server's processes in MiB, once a minute."""
        memory: list[float] = []
        limits = aiohttp.TCPConnector(limit=0, force_close=True)
        timeout = aiohttp.ClientTimeout(total=600)
        async with aiohttp.ClientSession(connector=limits, timeout=timeout) as session:
            running: set[asyncio.Task[None]] = set()
            end_s, next_s, minute_s = time.monotonic() + 60 * minutes, 0.0, time.monotonic() + 60
            while time.monotonic() < end_s:
                manner = random.choices(("listens", "leaves", "slow", "wrong"), (80, 10, 5, 5))[0]
                task = asyncio.create_task(self.listen(session, manner))
                running.add(task)
                task.add_done_callback(running.discard)
                if uploads and time.monotonic() >= next_s:
                    next_s = time.monotonic() + 10
                    upload = asyncio.create_task(self.upload(session))
                    running.add(upload)
                    upload.add_done_callback(running.discard)
                await asyncio.sleep(random.expovariate(self.listeners / self.sound_s))
                if time.monotonic() >= minute_s:
                    minute_s += 60
                    memory.append(resident_mib(pid))
                    told = f"{memory[-1]:8.1f} MiB  {len(running)} running  {dict(self.outcomes)}"
                    print(f"{len(memory):3} min  {told}", flush=True)
            await asyncio.wait(running, timeout=120)
        return memory


def clip() -> bytes:
    out = io.BytesIO()
    t = np.arange(2 * 24_000) / 24_000
    soundfile.write(out, 0.3 * np.sin(2 * np.pi * 220 * t) * np.sin(3 * t), 24_000, format="WAV")
    return out.getvalue()


def resident_mib(pid: int) -> float:
    """Of a server and all of its processes."""
    pids = [str(pid), *Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    pages = sum(int(Path(f"/proc/{p}/statm").read_text().split()[1]) for p in pids)
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


async def facts(url: str) -> tuple[int, float]:
    """The sample rate, and how long a text lasts on average."""
    async with aiohttp.ClientSession() as session:
        while True:
            with contextlib.suppress(aiohttp.ClientError):
                async with session.get(f"{url}/ready") as ready:
                    if ready.status == 200:
                        break
            await asyncio.sleep(0.2)
        async with session.get(f"{url}/v1/engine") as engine:
            rate = (await engine.json())["sample_rate"]
        lasts = []
        for text in TEXTS:
            body = {"input": text, "response_format": "pcm", "voice": "alloy"}
            async with session.post(f"{url}/v1/audio/speech", json=body) as response:
                lasts.append(len(await response.read()) / 2 / rate)
        return rate, float(np.mean(lasts))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", help="of a checkpoint; none: the built-in voice")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--listeners", type=float, default=8.0, help="that listen at once, on average")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--voices", help="a folder for uploads, where the model clones")
    parser.add_argument("--port", type=int, default=8766)
    args = parser.parse_args()
    url = f"http://127.0.0.1:{args.port}"
    command = [sys.executable, "-m", "sonant.cli.main", "serve", *([args.folder] if args.folder else [])]
    command += ["--port", str(args.port), "--workers", str(args.workers), "--device", args.device]
    command += ["--log-level", "error"]
    command += ["--voices", args.voices, "--consent", "asserted"] if args.voices else []
    server = subprocess.Popen(command)
    try:
        rate, sound_s = asyncio.run(facts(url))
        soak = Soak(url, args.listeners, sound_s, rate)
        memory = asyncio.run(soak.run(args.minutes, args.voices is not None, server.pid))
    finally:
        server.send_signal(signal.SIGTERM)
        code = server.wait(60)
    after = memory[int(WARM_MINUTES) :]
    growth = (max(after[-3:]) / min(after[:3]) - 1) if len(after) > 3 else 0.0
    first = np.quantile(soak.first_s, [0.5, 0.99]) if soak.first_s else (0, 0)
    print(f"exit code {code}; {dict(soak.outcomes)}; {soak.gaps} listeners with a gap")
    print(f"first sound p50 {first[0]:.3f} s, p99 {first[1]:.3f} s; memory {100 * growth:+.1f} % since minute 3")
    lost = sum(count for outcome, count in soak.outcomes.items() if outcome.startswith(("broken", "status 5")))
    return int(lost > 0 or growth > 0.02)


if __name__ == "__main__":
    sys.exit(main())
