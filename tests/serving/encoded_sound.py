"""Sound to encode, and what libav and the formats' own length fields make of the result."""

from __future__ import annotations

import struct
from io import BytesIO

import av
import numpy as np
import soxr

from sonant.serving.encode import open_encoder

RATE = 24000


def voice(seconds: float = 1.5, rate: int = RATE, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    t = np.arange(round(seconds * rate)) / rate
    phase = 2 * np.pi * np.cumsum(130 + 20 * seed + 30 * np.sin(2 * np.pi * 0.7 * t)) / rate
    harmonics = sum(np.sin(k * phase + k) / k**1.2 for k in range(1, 20))
    loudness = np.sqrt(np.clip(np.sin(2 * np.pi * 2.3 * t), 0, 1))
    return (0.15 * loudness * harmonics + 0.005 * rng.standard_normal(len(t))).astype(np.float32)


def encode(format: str, samples: np.ndarray, chunks: list[int], rate: int = RATE) -> list[bytes]:
    """Return what each push gave, and last what `finish` gave."""
    encoder = open_encoder(format, rate)
    return [*(encoder.push(piece) for piece in np.split(samples, np.cumsum(chunks))), encoder.finish()]


def decode(format: str, data: bytes, rate: int = RATE) -> np.ndarray:
    """Return float samples at `rate`, decoded by libav."""
    if format == "pcm":
        return np.frombuffer(data, "<i2") / np.float32(32768)
    with av.open(BytesIO(data), format="ogg" if format == "opus" else format) as container:
        frames = [frame.to_ndarray().reshape(-1) for frame in container.decode(audio=0)]
        decoded_rate = container.streams.audio[0].rate
    samples = np.concatenate([np.zeros(0, frames[0].dtype if frames else np.float32), *frames])
    samples = samples / np.float32(32768) if samples.dtype == np.int16 else samples
    return samples if decoded_rate == rate else soxr.resample(samples, decoded_rate, rate)


def packets(format: str, data: bytes) -> list[bytes]:
    """Cut `data` by the format's own length fields: it must be whole packets, nothing before, between or after."""
    out = []
    while data:
        if format == "mp3":
            sync, kind, rates = struct.unpack(">BBB", data[:3])
            assert (sync, kind & 0xFE) == (0xFF, 0xF2), "MPEG-2 layer III"
            assert (rates >> 2) & 3 == 1, "24 kHz"
            kbit = (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160)[rates >> 4]
            length = 72 * kbit * 1000 // RATE + (rates >> 1 & 1)
        elif format == "aac":
            assert data[0] == 0xFF and data[1] & 0xF6 == 0xF0
            length = (data[3] & 3) << 11 | data[4] << 3 | data[5] >> 5
        else:
            assert data[:5] == b"OggS\0"
            length = 27 + data[26] + sum(data[27 : 27 + data[26]])
        assert len(data) >= length
        out.append(data[:length])
        data = data[length:]
    return out


def ogg_checksum(page: bytes) -> int:
    crc = 0
    for byte in page[:22] + bytes(4) + page[26:]:
        crc ^= byte << 24
        for _ in range(8):
            crc = (crc << 1 ^ 0x04C11DB7 if crc & 0x80000000 else crc << 1) & 0xFFFFFFFF
    return crc


def snr_db(samples: np.ndarray, decoded: np.ndarray) -> float:
    return float(10 * np.log10(np.sum(samples**2) / np.sum((samples - decoded) ** 2)))
