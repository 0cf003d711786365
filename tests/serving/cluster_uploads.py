"""Uploads and deletes voices while their servers are killed: what was acknowledged must hold on every replica."""

from __future__ import annotations

import asyncio
import io
from collections import Counter
from dataclasses import dataclass, field

import aiohttp
import httpx
import soundfile

from clips import reference_clip
from serving.cluster_processes import Cluster

FRAME_BYTES = 2 * 1920
_KEPT, _PAUSE_S = 40, 0.1
_SPOKEN = 5  # how many of the voices each replica must speak with


@dataclass
class Uploads:
    """A client that uploads voices, each with a name of its own, and deletes one for every third upload."""

    url: str
    named: str = "voice"
    outcomes: Counter[str] = field(default_factory=Counter)
    kept: dict[str, str] = field(default_factory=dict)  # names of acknowledged voices, by id
    gone: set[str] = field(default_factory=set)  # ids whose deletion was acknowledged
    unsure: set[str] = field(default_factory=set)  # names for which no answer came
    _count: int = 0

    async def upload_on(self, session: aiohttp.ClientSession, until: asyncio.Event) -> None:
        while not until.is_set():
            try:
                await self._upload(session)
                if self.kept and (self._count % 3 == 0 or len(self.kept) > _KEPT):
                    await self._delete(session, next(iter(self.kept)))
                await asyncio.sleep(_PAUSE_S)
            except (TimeoutError, aiohttp.ClientError, OSError):
                self.outcomes["no answer"] += 1
                await asyncio.sleep(0.2)

    async def _upload(self, session: aiohttp.ClientSession) -> None:
        self._count += 1
        name = f"{self.named} {self._count}"
        form = aiohttp.FormData({"name": name, "consent": "she agreed"})
        form.add_field("audio_sample", clip_of(self._count), filename="clip.wav")
        self.unsure.add(name)
        async with session.post(f"{self.url}/v1/audio/voices", data=form) as answer:
            body = await answer.read()
            self.outcomes[f"upload {answer.status}"] += 1
            if answer.status == 200:
                self.kept[(await answer.json())["id"]] = name
                self.unsure.discard(name)
            else:
                assert answer.status in (404, 429, 500, 502, 503), body
                await asyncio.sleep(0.2)

    async def _delete(self, session: aiohttp.ClientSession, victim: str) -> None:
        """The voice may be gone whatever the answer is, and must be gone if the answer says so."""
        self.unsure.add(self.kept.pop(victim))
        async with session.delete(f"{self.url}/v1/audio/voices/{victim}") as answer:
            self.outcomes[f"delete {answer.status}"] += 1
            if answer.status == 200:
                self.gone.add(victim)

    def check(self, c: Cluster) -> None:
        """Ask every replica by itself."""
        for port in c.ports():
            url = f"http://127.0.0.1:{port}"
            listed = {v["id"]: v["name"] for v in httpx.get(f"{url}/v1/audio/voices", timeout=60).json()["voices"]}
            mine = {id: name for id, name in listed.items() if name.startswith(f"{self.named} ")}
            lost = self.kept.items() - mine.items()
            assert not lost, f"acknowledged, and not at {url}: {sorted(lost)}"
            assert not self.gone & set(mine), f"deleted, and still at {url}"
            assert set(mine.values()) <= set(self.kept.values()) | self.unsure, "nobody uploaded that"
            for voice in list(self.kept)[-_SPOKEN:]:
                body = {"input": "hello", "voice": {"id": voice}, "max_frames": 1, "response_format": "pcm"}
                answer = httpx.post(f"{url}/v1/audio/speech", json=body, timeout=60)
                assert answer.status_code == 200 and len(answer.content) == FRAME_BYTES, answer.text


def clip_of(number: int) -> bytes:
    """A different sound for each, so that voices share no file; of 80 kB, too large for a proxy to send it twice."""
    samples, rate = reference_clip()
    out = io.BytesIO()
    soundfile.write(out, samples * (0.5 + 0.4 / number), rate, format="WAV")
    return out.getvalue()
