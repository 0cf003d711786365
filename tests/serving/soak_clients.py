"""All that clients do to a server in a soak, and what became of them.

Most listen; some leave, read slowly, send a request that is wrong, or bring a voice of their own.
"""

from __future__ import annotations

import asyncio
import io
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import numpy as np
import soundfile

WORDS = "a bright cold day in april and the clocks were striking thirteen while old trees gave shade to quick foxes"
LENGTHS = (6, 20, 45)  # words of a text
FEW = 16  # fewer listeners than this ask one after the other: at random times they would be none now, and too many next
UPLOAD_EVERY_S = 10.0
KEPT_S = 2.0  # seconds of sound that a player buffers
MANNERS = {"listens": 80, "leaves": 10, "slow": 5, "wrong": 5}
TELL_S = 5.0


@dataclass
class Told:
    """What some clients have met so far."""

    outcomes: Counter[str] = field(default_factory=Counter)
    gaps_s: list[float] = field(default_factory=list)
    first_s: list[float] = field(default_factory=list)
    late_s: list[float] = field(default_factory=list)  # by how much their own timers were late

    def __add__(self, other: Told) -> Told:
        return Told(
            self.outcomes + other.outcomes,
            self.gaps_s + other.gaps_s,
            self.first_s + other.first_s,
            self.late_s + other.late_s,
        )


@dataclass
class Crowd:
    """Clients of which `listeners` listen at once, on average, to `sound_s` seconds of sound each; few of them each ask
    again when they have heard one, many come at random times."""

    url: str
    rate: int
    listeners: float
    limits: dict[str, int]
    voice: str = "alloy"
    sound_s: float = 0.0
    uploads: bool = False
    told: Told = field(default_factory=Told)

    async def stay(self, minutes: float, tell: Callable[[Told], None]) -> None:
        """Listen for so long; `tell` is given a copy of what was met so far, every few seconds and at the end."""
        end_s = time.monotonic() + 60 * minutes
        arrivals = self._one_after_the_other if self.listeners < FEW else self._at_random
        async with connected() as session:
            tasks = [arrivals(session, end_s), self._keep_time(end_s, tell)]
            await asyncio.gather(*tasks, *([self._upload_often(session, end_s)] if self.uploads else []))
        tell(self.told + Told())

    async def listen(self, session: aiohttp.ClientSession, manner: str, voice: str | None = None) -> None:
        """Be one listener, who hears sound in real time; a slow one reads at half that pace."""
        began_s, heard_s, first_s, gap_s = time.monotonic(), 0.0, 0.0, 0.0
        body = {"input": text(), "response_format": "pcm", "voice": voice or self.voice, **self.limits}
        outcomes = self.told.outcomes
        if manner == "wrong":
            body["voice"] = "nobody at all"
        try:
            async with session.post(f"{self.url}/v1/audio/speech", json=body) as response:
                if response.status != 200:
                    outcomes["expected refusal" if manner == "wrong" else f"status {response.status}"] += 1
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
                        outcomes["left"] += 1
                        return
                    if manner == "slow":
                        await asyncio.sleep(len(data) / self.rate)
                    else:
                        await asyncio.sleep(max(0.0, heard_s - (now_s - first_s) - KEPT_S))
            outcomes["whole"] += 1
            if manner == "listens":
                self.told.gaps_s += [gap_s] if gap_s > 0 else []
                self.told.first_s.append(first_s - began_s)
        except (TimeoutError, aiohttp.ClientError) as e:
            outcomes[f"broken: {type(e).__name__}"] += 1

    async def upload(self, session: aiohttp.ClientSession) -> str | None:
        form = aiohttp.FormData()
        name = f"voice {random.randrange(10**9)}"
        for key, value in (("name", name), ("consent", "I agree to this."), ("ref_text", "hello the world")):
            form.add_field(key, value)
        form.add_field("audio_sample", clip(), filename="clip.wav", content_type="audio/wav")
        async with session.post(f"{self.url}/v1/audio/voices", data=form) as response:
            self.told.outcomes[f"upload {response.status}"] += 1
            return str((await response.json())["id"]) if response.status == 200 else None

    async def come_and_go(self, session: aiohttp.ClientSession, frames: int | None = None) -> None:
        """Upload a voice, speak with it once, to a listener or for so many frames, and delete it."""
        voice = await self.upload(session)
        if voice is None:
            return
        if frames is None:
            await self.listen(session, "listens", voice)
        else:
            await self.ask(session, text(6), voice=voice, max_frames=frames)
        async with session.delete(f"{self.url}/v1/audio/voices/{voice}") as deleted:
            self.told.outcomes[f"delete {deleted.status}"] += 1

    async def ask(self, session: aiohttp.ClientSession, said: str, **fields: Any) -> float:
        """Read the sound as fast as it comes → its seconds."""
        body = {"input": said, "response_format": "pcm", "voice": self.voice, **self.limits, **fields}
        async with session.post(f"{self.url}/v1/audio/speech", json=body) as response:
            response.raise_for_status()
            return len(await response.read()) / 2 / self.rate

    async def _one_after_the_other(self, session: aiohttp.ClientSession, end_s: float) -> None:
        async def place() -> None:
            await asyncio.sleep(random.uniform(0, 2))
            while time.monotonic() < end_s:
                await self.listen(session, manner())
                await asyncio.sleep(random.uniform(0.05, 0.5))

        await asyncio.gather(*(place() for _ in range(round(self.listeners))))

    async def _at_random(self, session: aiohttp.ClientSession, end_s: float) -> None:
        running: set[asyncio.Task[None]] = set()
        while time.monotonic() < end_s:
            task = asyncio.create_task(self.listen(session, manner()))
            running.add(task)
            task.add_done_callback(running.discard)
            await asyncio.sleep(random.expovariate(self.listeners / self.sound_s))
        await asyncio.wait(running, timeout=120)

    async def _upload_often(self, session: aiohttp.ClientSession, end_s: float) -> None:
        while time.monotonic() < end_s:
            await asyncio.gather(self.come_and_go(session), asyncio.sleep(UPLOAD_EVERY_S))

    async def _keep_time(self, end_s: float, tell: Callable[[Told], None]) -> None:
        """Record how late this process is woken, since its listeners may be as late."""
        told_s = time.monotonic()
        while (now_s := time.monotonic()) < end_s:
            if now_s - told_s >= TELL_S:
                told_s = now_s
                tell(self.told + Told())
            due_s = time.monotonic() + 0.1
            await asyncio.sleep(0.1)
            self.told.late_s.append(time.monotonic() - due_s)


@asynccontextmanager
async def connected() -> AsyncIterator[aiohttp.ClientSession]:
    connector, timeout = aiohttp.TCPConnector(limit=0, force_close=True), aiohttp.ClientTimeout(total=600)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        yield session


def text(words: int | None = None) -> str:
    """A text of so many words, by default a few or up to 45, and hardly ever the same."""
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
