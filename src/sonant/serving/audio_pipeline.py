"""Turns the engine's chunks into the bytes that a client asked for: speed, then sample rate, then format."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from concurrent.futures import Executor

import numpy as np

from sonant.audio.continuity import Continuity, continuity
from sonant.audio.pcm import as_float
from sonant.audio.resample import StreamResampler
from sonant.audio.speed import SpeedChanger
from sonant.engine.stream import SpeechStream
from sonant.errors import EngineClosed
from sonant.serving.encode import open_encoder
from sonant.types import AudioChunk, FinishReason, Samples

_CHEAP = frozenset({"pcm", "wav"})


def check_complete(stream: SpeechStream) -> None:
    """Raise `EngineClosed` if the speech was cut off, by a shutdown for example: it must not pass for complete."""
    if stream.finish_reason is FinishReason.ABORT:
        raise EngineClosed("the speech was cut off before its end; the server is shutting down")


class AudioPipeline:
    """For one stream to one client. Compression runs on the executor, so that many listeners share the cores."""

    def __init__(
        self, form: str, source_hz: int, target_hz: int, speed: float, streaming: bool, executor: Executor
    ) -> None:
        self.form, self.streaming, self.executor = form, streaming, executor
        self.encoder = open_encoder(form, target_hz, streaming=streaming)
        self.pace = speed  # seconds of the model's sound that are heard in a second
        self.speed = SpeedChanger(source_hz, speed) if speed != 1 else None
        self.resample = StreamResampler(source_hz, target_hz) if source_hz != target_hz else None
        self.held_s = 0.0  # how long the client kept us waiting by not reading
        self.arrivals_s: list[float] = []  # by a clock that stops meanwhile: a client that does not read hears no gap
        self.durations_s: list[float] = []
        self.frames = 0

    @property
    def audio_s(self) -> float:
        return sum(self.durations_s)

    def listener(self) -> Continuity:
        """What a listener who began to play at the first chunk has heard; nobody plays a file before it is whole."""
        return continuity(self.arrivals_s, [made_s / self.pace for made_s in self.durations_s])

    def headers(self, stream: SpeechStream) -> dict[str, str]:
        return {
            "content-type": self.encoder.content_type,
            "cache-control": "no-cache",
            "x-accel-buffering": "no",  # Proxies must not buffer sound.
            "x-seed": str(stream.seed),
            **self.encoder.headers,
        }

    def usage(self, stream: SpeechStream) -> dict[str, int]:
        given = stream.input_tokens
        return {"input_tokens": given, "output_tokens": self.frames, "total_tokens": given + self.frames}

    async def sent(self, sending: Awaitable[None]) -> None:
        """Wait for `sending`, which lasts until the client has made room, and add the time to `held_s`."""
        began_s = time.monotonic()
        await sending
        self.held_s += time.monotonic() - began_s

    async def push(self, chunk: AudioChunk) -> bytes:
        self.arrivals_s.append(time.monotonic() - self.held_s)
        self.durations_s.append(len(chunk.samples) / chunk.sample_rate)
        self.frames += len(chunk.frames)
        if self._is_cheap:
            return self._encode(chunk.samples)
        return await asyncio.get_running_loop().run_in_executor(self.executor, self._encode, chunk.samples)

    async def finish(self) -> bytes:
        if self._is_cheap:
            return self._finish()
        return await asyncio.get_running_loop().run_in_executor(self.executor, self._finish)

    @property
    def _is_cheap(self) -> bool:
        """Whether the work is done sooner than another thread could begin to."""
        return self.form in _CHEAP and self.speed is None

    def _encode(self, samples: Samples) -> bytes:
        if self.speed is not None or self.resample is not None:
            samples = as_float(samples)
        if self.speed is not None:
            samples = self.speed.push(samples)
        if self.resample is not None:
            samples = self.resample.push(samples)
        return self.encoder.push(samples)

    def _finish(self) -> bytes:
        rest: Samples = np.zeros(0, np.float32)
        if self.speed is not None:
            rest = self.speed.flush()
        if self.resample is not None:
            rest = np.concatenate([self.resample.push(rest), self.resample.flush()])
        last = self.encoder.push(rest) if len(rest) or not self.durations_s else b""
        return last + self.encoder.finish()
