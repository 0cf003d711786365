"""Encodes sound as it is made, in the format that a client asked for.

Whatever `push` and `finish` return, joined, is a valid stream; nothing is ever written twice, so it can go straight
to a socket. Each push returns all that the format can encode of the sound so far. What is held back is the format's
own: mp3 and aac look a frame or two ahead, and Ogg keeps its last page, since only the end tells that it is the last.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache
from io import BytesIO
from typing import Any

import av
import numpy as np

from sonant.audio.clip import MAX_RATE_HZ, MIN_RATE_HZ
from sonant.audio.pcm import as_float, clipped, growing_wav_header, pcm16, wav_header
from sonant.errors import BadRequest, EngineError
from sonant.types import Samples

CONTENT_TYPES: Mapping[str, str] = {
    "mp3": "audio/mpeg",
    "opus": "audio/ogg",
    "aac": "audio/aac",
    "flac": "audio/flac",
    "wav": "audio/wav",
    "pcm": "audio/pcm",
}
FORMATS = tuple(CONTENT_TYPES)


@dataclass(frozen=True, kw_only=True)
class Codec:
    """How libav makes one format."""

    encoder: str
    container: str
    sample_format: str
    rates_hz: tuple[int, ...] = ()  # none: any
    bits_per_sample: float = 0.0  # the bit rate is this times the sample rate, but at most `max_bit_rate`
    max_bit_rate: int = 0
    options: Mapping[str, str] = field(default_factory=dict)
    stream_muxer: Mapping[str, str] = field(default_factory=dict)  # for output that cannot be corrected at the end
    gain: float = 1.0
    frame_s: float | None = None  # where the encoder leaves the choice to us
    lead_samples: Mapping[int, int] = field(default_factory=dict)  # silence put first, by sample rate


CODECS: Mapping[str, Codec] = {
    "mp3": Codec(
        encoder="libmp3lame",
        container="mp3",
        sample_format="fltp",
        rates_hz=(8000, 11025, 12000, 16000, 22050, 24000, 32000, 44100, 48000),
        bits_per_sample=8,
        max_bit_rate=128_000,
        # Without the reservoir no frame needs bits of another: each is whole when it leaves, and a listener may join
        # anywhere. Level 7 takes two thirds of the time of LAME's default and measures the same.
        options={"reservoir": "0", "compression_level": "7"},
        gain=1 / 0.95,  # LAME turns all sound down by 5 %; formats should be equally loud
        # A Xing frame holds what is known only at the end. Tags would delay the first frame.
        stream_muxer={"write_xing": "0", "id3v2_version": "0", "write_id3v1": "0"},
    ),
    "opus": Codec(
        encoder="libopus",
        container="ogg",
        sample_format="flt",
        rates_hz=(8000, 12000, 16000, 24000, 48000),
        bits_per_sample=4,
        max_bit_rate=64_000,
        options={"frame_duration": "20"},
        stream_muxer={"page_duration": "20000"},  # in µs: a page a packet, not a page a second
    ),
    "aac": Codec(
        encoder="aac",
        container="adts",
        sample_format="fltp",
        rates_hz=(7350, 8000, 11025, 12000, 16000, 22050, 24000, 32000, 44100, 48000, 64000, 88200, 96000),
        bits_per_sample=4,
        max_bit_rate=128_000,
        options={"aac_coder": "fast"},  # at these bit rates as good as the default, for half the time
        # The first packet needs two frames of 1,024. With 5 ms of silence before it, the codec frame of 1,920
        # samples makes two: a player can set up its decoder 80 ms earlier.
        lead_samples={24000: 128},
    ),
    "flac": Codec(
        encoder="flac",
        container="flac",
        sample_format="s16",
        stream_muxer={"metadata_header_padding": "0"},  # else 8 KiB of zeros come first
        frame_s=0.020,  # a block of the usual 4,608 samples would hold back 0.2 s; this costs 3 % in size
    ),
}


def open_encoder(format: str, sample_rate: int, *, streaming: bool = True) -> Encoder:
    """An encoder for mono sound at `sample_rate`, or `BadRequest` with the choices.

    Without `streaming` most bytes come from `finish`, and headers tell the true length.
    """
    if format not in CONTENT_TYPES:
        raise BadRequest(f"response_format must be one of {', '.join(FORMATS)}, not {format!r}")
    rates_hz = CODECS[format].rates_hz if format in CODECS else ()
    if rates_hz and sample_rate not in rates_hz:
        raise BadRequest(f"{format} has no sample rate of {sample_rate} Hz: use {', '.join(map(str, rates_hz))}")
    if not rates_hz and not MIN_RATE_HZ <= sample_rate <= MAX_RATE_HZ:
        raise BadRequest(f"the sample rate must be from {MIN_RATE_HZ} to {MAX_RATE_HZ} Hz, not {sample_rate}")
    if format == "pcm":
        return PcmEncoder(format, sample_rate)
    if format == "wav":
        return WavEncoder(format, sample_rate, streaming)
    return LibavEncoder(format, sample_rate, streaming)


def carried_rate_hz(format: str, sample_rate: int) -> int:
    """`sample_rate` if the format can carry it, else the next higher rate that it can, or its highest."""
    rates_hz = CODECS[format].rates_hz if format in CODECS else ()
    return min((hz for hz in rates_hz if hz >= sample_rate), default=max(rates_hz, default=sample_rate))


class Encoder(ABC):
    """One stream of sound. Calls may come from any thread, one at a time."""

    def __init__(self, format: str, sample_rate: int) -> None:
        self.format = format
        self.sample_rate = sample_rate
        self.content_type = CONTENT_TYPES[format]
        self.headers: dict[str, str] = {}
        self.finished = False

    def push(self, samples: Samples) -> bytes:
        """Encode samples → the bytes that can be sent now; for an empty array, the container's head before sound."""
        if self.finished:
            raise ValueError("this encoder is finished: open another for more sound")
        flat = np.ascontiguousarray(samples).reshape(-1)
        return self._push(flat if flat.dtype == np.int16 else clipped(as_float(flat)))

    def finish(self) -> bytes:
        """The bytes at the end of the stream; none the second time."""
        if self.finished:
            return b""
        self.finished = True
        return self._finish()

    @abstractmethod
    def _push(self, samples: Samples) -> bytes: ...

    @abstractmethod
    def _finish(self) -> bytes: ...


class PcmEncoder(Encoder):
    """Bare 16-bit samples, which the headers describe."""

    def __init__(self, format: str, sample_rate: int) -> None:
        super().__init__(format, sample_rate)
        self.headers = {"X-Sample-Rate": str(sample_rate), "X-Channels": "1", "X-Bit-Depth": "16"}

    def _push(self, samples: Samples) -> bytes:
        return pcm16(samples).tobytes()

    def _finish(self) -> bytes:
        return b""


class WavEncoder(Encoder):
    def __init__(self, format: str, sample_rate: int, streaming: bool) -> None:
        super().__init__(format, sample_rate)
        self.streaming = streaming
        self.pending = bytearray(growing_wav_header(sample_rate) if streaming else b"")

    def _push(self, samples: Samples) -> bytes:
        self.pending += pcm16(samples).tobytes()
        return self._take() if self.streaming else b""

    def _finish(self) -> bytes:
        head = b"" if self.streaming else wav_header(self.sample_rate, len(self.pending) // 2)
        return head + self._take()

    def _take(self) -> bytes:
        taken = bytes(self.pending)
        self.pending.clear()
        return taken


class LibavEncoder(Encoder):
    """A libav encoder and muxer that write into memory.

    Streaming, libav is given a sink that cannot seek, so it writes nothing that it would have to correct; else it gets
    a file in memory and corrects its header at the end.
    """

    def __init__(self, format: str, sample_rate: int, streaming: bool) -> None:
        super().__init__(format, sample_rate)
        self.codec = CODECS[format]
        self.sink: Sink | None = Sink() if streaming else None
        self.file = BytesIO()
        self.position = 0  # in samples
        muxer = {"flush_packets": "1", **self.codec.stream_muxer} if streaming else {}
        self.container = av.open(self.sink or self.file, "w", format=self.codec.container, container_options=muxer)
        # Container and stream refer to each other: without this, memory would wait for the garbage collector.
        weakref.finalize(self, self.container.close).atexit = False
        self.stream = self._add_stream()
        self.container.start_encoding()  # the head is ready before the sound is
        self._encode(np.zeros(self.codec.lead_samples.get(sample_rate, 0) if streaming else 0, np.float32))

    def _add_stream(self) -> Any:
        codec, options = self.codec, dict(self.codec.options)
        if codec.frame_s is not None:
            options["frame_size"] = str(round(codec.frame_s * self.sample_rate))
        stream: Any = self.container.add_stream(codec.encoder, rate=self.sample_rate, options=options)
        context = stream.codec_context
        context.format = codec.sample_format
        context.layout = "mono"
        context.thread_count = 1  # a server has many streams, none of them large
        if codec.max_bit_rate:
            context.bit_rate = min(codec.max_bit_rate, int(codec.bits_per_sample * self.sample_rate))
        return stream

    def _push(self, samples: Samples) -> bytes:
        self._encode(samples)
        return self.sink.take() if self.sink is not None else b""

    def _finish(self) -> bytes:
        if self.position == 0 and self.codec.max_bit_rate:
            self._encode(np.zeros(self.sample_rate // 50, np.float32))  # players reject lossy streams without a packet
        self._mux(None)
        self.container.close()
        return self.sink.take() if self.sink is not None else self.file.getvalue()

    def _encode(self, samples: Samples) -> None:
        if not len(samples):
            return
        data = pcm16(samples) if self.codec.sample_format == "s16" else as_float(samples) * np.float32(self.codec.gain)
        frame = av.AudioFrame.from_ndarray(data[None], format=self.codec.sample_format, layout="mono")
        frame.sample_rate = self.sample_rate
        frame.pts, frame.time_base = self.position, Fraction(1, self.sample_rate)
        if self.position == 0:
            with _on_one_cpu():
                self._mux(frame)
        else:
            self._mux(frame)
        self.position += len(samples)

    def _mux(self, frame: av.AudioFrame | None) -> None:
        try:
            self.container.mux(self.stream.encode(frame))
        except av.FFmpegError as e:
            raise EngineError(f"the sound could not be encoded as {self.format}: {e}") from e


class Sink:
    """A file that can only be written, and is emptied as it grows."""

    def __init__(self) -> None:
        self.written: list[bytes] = []

    def write(self, data: bytes) -> int:
        self.written.append(data)
        return len(data)

    def take(self) -> bytes:
        taken = b"".join(self.written)
        self.written.clear()
        return taken


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)


@contextmanager
def _on_one_cpu() -> Iterator[None]:
    """For the call that sets up PyAV's framing: it makes a filter graph with a thread for every CPU that the caller
    may run on, up to 16 for each stream, and they never do anything. On one CPU it makes none.

    Only the calling thread is pinned, to the CPU it is on already. On systems other than Linux, or where a sandbox
    forbids it, the threads are started.
    """
    allowed = None
    with suppress(AttributeError, OSError):
        here = _libc().sched_getcpu()
        before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {here})
        allowed = before
    try:
        yield
    finally:
        if allowed is not None:
            os.sched_setaffinity(0, allowed)
