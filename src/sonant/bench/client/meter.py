"""Turns bytes of sound, as they arrive, into seconds of sound.

A meter takes every read with its time. PCM and WAV are exact to the sample. Compressed sound is kept and decoded at the
end: each packet counts as arrived when its last byte has.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Mapping
from io import BytesIO
from itertools import accumulate

_SAMPLE_BYTES = 2
_UNKNOWN_BYTES = 0x7FFF0000  # from here on a size stands for one that is not known yet
_MAX_WAV_HEADER = 4096
_CONTENT_FORMATS: Mapping[str, str] = {
    "audio/pcm": "pcm",
    "audio/l16": "pcm",
    "audio/x-pcm": "pcm",
    "audio/wav": "wav",
    "audio/x-wav": "wav",
    "audio/wave": "wav",
    "audio/vnd.wave": "wav",
    "audio/mpeg": "mp3",
    "audio/mp3": "mp3",
    "audio/ogg": "opus",
    "audio/opus": "opus",
    "audio/aac": "aac",
    "audio/flac": "flac",
    "audio/x-flac": "flac",
}


class BadSound(Exception):
    """The body is not the sound that was asked for."""


class CutSound(Exception):
    """There is less sound than its own header promises."""


class Meter(ABC):
    def __init__(self, *, keep: bool = False) -> None:
        self.arrivals_s: list[float] = []
        self.sizes: list[int] = []
        self.kept: list[bytes] | None = [] if keep else None
        self.sample_rate = 0
        self.channels = 1

    def feed(self, data: bytes, at_s: float) -> None:
        if data:
            self._note(data, at_s)

    def _note(self, data: bytes, at_s: float) -> None:
        self.arrivals_s.append(at_s)
        self.sizes.append(len(data))
        if self.kept is not None:
            self.kept.append(data)

    @abstractmethod
    def finish(self) -> tuple[list[float], list[float] | None, float]:
        """Arrivals of sound, seconds of sound in each (None if that is not known), and seconds in all."""

    @property
    def sound(self) -> bytes:
        return b"".join(self.kept or ())


class PcmMeter(Meter):
    """16-bit sound of a known rate."""

    def __init__(self, sample_rate: int, channels: int = 1, *, keep: bool = False) -> None:
        super().__init__(keep=keep)
        self.sample_rate, self.channels = sample_rate, channels

    def finish(self) -> tuple[list[float], list[float] | None, float]:
        frames = [total // (_SAMPLE_BYTES * self.channels) for total in accumulate(self.sizes)]
        durations = [(b - a) / self.sample_rate for a, b in zip([0, *frames], frames, strict=False)]
        # A read that completes no sample brings no sound.
        heard = [(t, d) for t, d in zip(self.arrivals_s, durations, strict=True) if d > 0]
        return [t for t, _ in heard], [d for _, d in heard], sum(durations)


class WavMeter(PcmMeter):
    """The header is parsed as it comes in, and does not count as sound."""

    def __init__(self, *, keep: bool = False) -> None:
        super().__init__(0, keep=keep)
        self.header: bytes | None = b""
        self.promised_bytes: int | None = None

    def feed(self, data: bytes, at_s: float) -> None:
        if self.header is not None:
            self.header += data
            rest = self._parse()
            if rest is None:
                if len(self.header) > _MAX_WAV_HEADER:
                    raise BadSound("no data chunk in the first 4 KB of what should be WAV")
                return
            self.header, data = None, rest
        super().feed(data, at_s)

    def _parse(self) -> bytes | None:
        """The sound after the header, or None while the header is incomplete."""
        head = self.header or b""
        if not b"RIFF".startswith(head[:4]) or (len(head) >= 12 and head[8:12] != b"WAVE"):
            raise BadSound(f"asked for WAV, the body begins with {head[:12]!r}")
        at = 12
        while len(head) >= at + 8:
            name, size = struct.unpack_from("<4sI", head, at)
            if name == b"data":
                if not self.sample_rate:
                    raise BadSound("the WAV has no format before its data")
                self.promised_bytes = size if 0 < size < _UNKNOWN_BYTES else None
                return head[at + 8 :]
            if name == b"fmt " and len(head) >= at + 24:
                code, channels, rate, _, _, bits = struct.unpack_from("<HHIIHH", head, at + 8)
                if bits != 8 * _SAMPLE_BYTES or code not in (1, 0xFFFE) or not channels or not rate:
                    raise BadSound(f"the WAV is format {code} with {bits} bits; only 16-bit PCM can be measured")
                self.sample_rate, self.channels = rate, channels
            at += 8 + size + (size & 1)
        return None

    def finish(self) -> tuple[list[float], list[float] | None, float]:
        if self.header is not None:
            if self.header:
                raise CutSound("the body ends inside the WAV header")
            return [], [], 0.0
        if self.promised_bytes is not None and sum(self.sizes) < self.promised_bytes:
            raise CutSound(f"the WAV promises {self.promised_bytes:,} bytes, {sum(self.sizes):,} came")
        return super().finish()


class CompressedMeter(Meter):
    """Keeps mp3, opus, aac or flac, and decodes it at the end."""

    def __init__(self, form: str, *, keep: bool = False) -> None:
        super().__init__(keep=True)
        self.form = form

    def finish(self) -> tuple[list[float], list[float] | None, float]:
        if not self.sizes:
            return [], [], 0.0
        import av  # only compressed sound needs it

        ends = list(accumulate(self.sizes))
        seconds = [0.0] * len(ends)
        total_samples, placed = 0, True
        try:
            with av.open(BytesIO(self.sound), "r") as container:
                stream = container.streams.audio[0]
                self.sample_rate = stream.rate
                for packet in container.demux(stream):
                    samples = sum(frame.samples for frame in packet.decode())
                    total_samples += samples
                    if packet.pos is not None and packet.size:
                        read = min(bisect_left(ends, packet.pos + packet.size), len(ends) - 1)
                        seconds[read] += samples / self.sample_rate
                    elif samples and packet.size:
                        placed = False
        except (av.FFmpegError, IndexError) as e:
            raise BadSound(f"the body cannot be decoded as {self.form}: {e}") from e
        audio_s = total_samples / self.sample_rate
        heard = [(t, d) for t, d in zip(self.arrivals_s, seconds, strict=True) if d > 0]
        if not placed or not heard:
            return self.arrivals_s, None, audio_s
        return [t for t, _ in heard], [d for _, d in heard], audio_s


def open_meter(asked: str, headers: Mapping[str, str], sample_rate: int, *, sse: bool, keep: bool) -> Meter:
    """The meter for what the server says that it sends; raises `BadSound` if that is not what was asked for."""
    content_type, _, parameters = headers.get("content-type", "").lower().partition(";")
    said = _CONTENT_FORMATS.get(content_type.strip())
    if not sse:
        if said is None and content_type.strip() not in ("", "application/octet-stream", "binary/octet-stream"):
            raise BadSound(f"asked for {asked}, the answer is {content_type.strip()}")
        if said is not None and said != asked:
            raise BadSound(f"asked for {asked}, the answer is {content_type.strip()}")
    if asked == "wav":
        return WavMeter(keep=keep)
    if asked != "pcm":
        return CompressedMeter(asked, keep=keep)
    rate, channels = headers.get("x-sample-rate", _rate_of(parameters)), headers.get("x-channels")
    if not all(value is None or (value.isdecimal() and int(value)) for value in (rate, channels)):
        raise BadSound(f"the headers tell of a sample rate {rate!r} and {channels!r} channels")
    return PcmMeter(int(rate or sample_rate), int(channels or 1), keep=keep)


def _rate_of(parameters: str) -> str | None:
    pairs = (p.partition("=") for p in parameters.split(";"))
    return next((value.strip() for key, _, value in pairs if key.strip() == "rate"), None)
