"""Many clips at once: the same one is encoded once, others wait in a short queue, and requests without clips do not."""

from __future__ import annotations

import asyncio
import base64
import io
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import httpx
import numpy as np
import pytest
import soundfile

from serving.conftest import Serve, Served
from sonant.errors import BadAudio
from sonant.serving.api import voice_routes
from sonant.serving.channel import connection
from sonant.serving.channel.remote_engine import RemoteEngine
from sonant.serving.voices.clips import MAX_WAITING, Clips
from sonant.types import Samples
from sonant.voice import Voice

ENCODING_S = 0.1


def clip(number: int) -> str:
    out = io.BytesIO()
    t = np.arange(48_000) / 48_000
    soundfile.write(out, 0.3 * np.sin((1000 + number) * t), 48_000, format="WAV")
    return base64.b64encode(out.getvalue()).decode()


@pytest.fixture
def slow(serve: Serve) -> tuple[Served, list[str]]:
    """A server whose model is slow to encode a clip, and the clips that it was given."""
    served, encoded = serve("toy"), list[str]()
    encode = served.supervisor.engine.model.encode_voice

    def slowly(samples: Samples, text: str | None, name: str) -> Voice:
        encoded.append(name)
        time.sleep(ENCODING_S)
        return encode(samples, text, name)

    served.supervisor.engine.model.encode_voice = slowly  # type: ignore[method-assign]
    return served, encoded


def speak(served: Served, ref_audio: str) -> httpx.Response:
    return served.post(input="hello", ref_audio=ref_audio, max_frames=2, response_format="pcm")


def test_a_clip_that_no_message_can_hold_is_refused_and_ends_nobodys_speech(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one of an hour is, where the operator allows that."""
    served = serve("toy")
    monkeypatch.setattr(connection, "MAX_MESSAGE_BYTES", 90_000)
    answer = speak(served, clip(0))
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_audio"), answer.text
    assert served.link.ready and served.link.restarts == 0


def test_the_same_clip_for_many_at_once_is_encoded_once(slow: tuple[Served, list[str]]) -> None:
    served, encoded = slow
    same = clip(0)
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: speak(served, same), range(8)))
    assert {answer.status_code for answer in answers} == {200} and len(encoded) == 1
    assert len({answer.content[:64] for answer in answers}) >= 1 and speak(served, same).status_code == 200
    assert len(encoded) == 1  # its voice is remembered


def test_every_item_of_a_batch_may_have_a_clip(slow: tuple[Served, list[str]]) -> None:
    """Though all items run at once, and there are more of them than clips that may wait to be read."""
    served, encoded = slow
    items: list[dict[str, object]] = [{"input": "hello", "max_frames": 2} for _ in range(2 * MAX_WAITING)]
    body = {"items": items, "ref_audio": clip(0)}
    for n, item in enumerate(items[: MAX_WAITING + 2], start=1):
        item["ref_audio"] = clip(n % 3)
    answer = httpx.post(f"{served.url}/v1/audio/speech/batch", json=body, timeout=60).json()
    assert {result.get("error") for result in answer["results"]} == {None} and len(encoded) == 3


def test_a_crowd_with_clips_is_bounded_and_holds_nobody_up(slow: tuple[Served, list[str]]) -> None:
    served, encoded = slow
    clips = [clip(n) for n in range(40)]
    with ThreadPoolExecutor(41) as pool:
        answers = [pool.submit(speak, served, one) for one in clips]
        slowest_s = 0.0
        while not all(answer.done() for answer in answers):
            began_s = time.monotonic()
            assert httpx.get(f"{served.url}/health").status_code == 200
            slowest_s = max(slowest_s, time.monotonic() - began_s)
            time.sleep(0.05)
        plain = served.post(input="hello", max_frames=2, response_format="pcm")
    told = Counter(answer.result().status_code for answer in answers)
    assert set(told) == {200, 429} and told[200] >= MAX_WAITING and len(encoded) == told[200]
    refused = [answer.result() for answer in answers if answer.result().status_code == 429]
    assert all(r.json()["error"]["code"] == "too_many_clips" and r.headers["retry-after"] for r in refused)
    assert plain.status_code == 200 and slowest_s < 1.0
    text = httpx.get(f"{served.url}/metrics").text
    assert f'sonant_rejected_total{{reason="too_many_clips"}} {len(refused)}.0' in text


def test_a_crowd_with_recorded_consents_is_bounded_and_holds_no_speech_up(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each may take a decoder's memory and time; and the threads that open encoders are for all."""
    served, sound = serve("toy", voices_folder=tmp_path), base64.b64decode(clip(0))
    reading, most, lock = 0, 0, threading.Lock()

    def slowly(*_: object, **limits: object) -> None:
        nonlocal reading, most
        with lock:
            reading += 1
            most = max(most, reading)
        time.sleep(ENCODING_S)
        with lock:
            reading -= 1

    def agree(_: int) -> httpx.Response:
        files, form = {"recording": ("yes.wav", sound)}, {"name": "mine", "language": "en"}
        return httpx.post(f"{served.url}/v1/audio/voice_consents", files=files, data=form, timeout=30)

    monkeypatch.setattr(voice_routes, "read_clip", slowly)
    with ThreadPoolExecutor(60) as pool:
        answers = list(pool.map(agree, range(60)))
    told = Counter(answer.status_code for answer in answers)
    assert most <= 2 and set(told) == {200, 429} and told[200] >= MAX_WAITING
    assert all(a.json()["error"]["code"] == "too_many_clips" for a in answers if a.status_code == 429)


class FailingOnce:
    """An engine whose first encoding fails, when it is told to."""

    def __init__(self) -> None:
        self.fail, self.encoded = asyncio.Event(), 0

    def read_clip(self, clip: bytes, text: str | None) -> Samples:
        return np.zeros(24_000, np.float32)

    async def encode(self, samples: Samples, text: str | None, name: str = "") -> Voice:
        self.encoded += 1
        if self.encoded == 1:
            await self.fail.wait()
            raise BadAudio("the clip is silent")
        return Voice({"embedding": np.ones(4, np.float32)}, text, name, "toy")


def test_a_clip_whose_encoding_fails_while_another_request_reads_it_is_encoded_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asyncio.run(_fail_meanwhile(monkeypatch))


async def _fail_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second request finds that the voice is being made; by the time that it would wait for it, it is gone."""
    clips, engine, loop, read = Clips((), lambda refused: None), FailingOnce(), asyncio.get_running_loop(), Clips._read

    def slow_read(self: Clips, *given: Any) -> tuple[str, Samples | None]:
        key, samples = read(self, *given)
        if samples is None:
            loop.call_soon_threadsafe(engine.fail.set)
            while key in self._voices:
                time.sleep(0.001)
        return key, samples

    monkeypatch.setattr(Clips, "_read", slow_read)
    first = asyncio.ensure_future(clips.voice(cast(RemoteEngine, engine), clip(0), None))
    while engine.encoded == 0:
        await asyncio.sleep(0.001)
    second = clips.voice(cast(RemoteEngine, engine), clip(0), None)
    found = await asyncio.gather(first, second, return_exceptions=True)
    clips.close()
    assert isinstance(found[0], BadAudio) and isinstance(found[1], Voice) and engine.encoded == 2
