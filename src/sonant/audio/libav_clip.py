"""Clips that libsndfile does not know: what phones and browsers record, M4A and WebM above all.

libav decodes them, where `av` is installed, in a process of its own that ends with them: see `libav_decoder`. The kind
of file is told from its first bytes here, so that what is none of these costs no process.
"""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from sonant.types import Samples

_TIMEOUT_S = 30.0
_PASSED_OVER = 1 << 16  # bytes of the decoder's output that are searched for the end of its first line
# libav's names of the demuxers, by an offset in the file and the bytes there. None of them opens another file.
_KINDS: tuple[tuple[int, bytes, str], ...] = (
    (4, b"ftyp", "mov"),  # M4A, MP4, MOV, 3GP
    (4, b"moov", "mov"),
    (4, b"mdat", "mov"),
    (4, b"wide", "mov"),
    (0, b"\x1a\x45\xdf\xa3", "matroska"),  # WebM, MKA
    (0, b"\xff\xf1", "aac"),
    (0, b"\xff\xf9", "aac"),
    (0, b"#!AMR", "amr"),
    (0, b"\x30\x26\xb2\x75\x8e\x66\xcf\x11", "asf"),  # WMA
    (0, b"OggS", "ogg"),  # Speex, and FLAC in old files
    (0, b"caff", "caf"),  # AAC, as iOS writes it
    (0, b"FLV", "flv"),
    (0, b"wvpk", "wv"),
    (0, b"TTA1", "tta"),
    (0, b"MAC ", "ape"),
)


class NotDecoded(Exception):
    """Why a clip was not decoded, as the end of a sentence."""


class Decoded:
    """Mono samples, up to a frame more than was asked for; `stated_s` is the length that the file states."""

    def __init__(self, samples: Samples, rate_hz: int, channels: int, stated_s: float | None) -> None:
        self.samples, self.rate_hz, self.channels, self.stated_s = samples, rate_hz, channels, stated_s


def kind_of(start: bytes) -> str | None:
    """libav's name for the kind of file, if it is one that is read here."""
    return next((name for place, mark, name in _KINDS if start[place:].startswith(mark)), None)


def is_installed() -> bool:
    return find_spec("av") is not None


def decode(data: bytes, kind: str, *, most_s: float, most_channels: int, most_hz: int) -> Decoded:
    """Decode the file's first audio stream. Decoding stops as soon as it is longer than `most_s`; of one with more
    channels, or a higher sample rate, nothing is decoded."""
    script = str(Path(__file__).with_name("libav_decoder.py"))
    command = [sys.executable, "-P", script, kind, str(most_s), str(most_channels), str(most_hz)]
    try:
        answer = subprocess.run(command, input=data, capture_output=True, timeout=_TIMEOUT_S, check=False).stdout
    except subprocess.TimeoutExpired:
        raise NotDecoded(f"it takes over {_TIMEOUT_S:g} s") from None
    except OSError as e:
        raise NotDecoded(f"the decoder did not start: {e.strerror}") from e
    end = answer.find(b"\n", 0, _PASSED_OVER)
    if end < 0:
        raise NotDecoded("the decoder took too much memory or failed")
    facts = json.loads(answer[:end])
    if "error" in facts:
        raise NotDecoded(str(facts["error"])[:200])
    channels = facts["channels"]
    return Decoded(_mono(memoryview(answer)[end + 1 :], channels), facts["rate"], channels, facts["stated_s"])


def _mono(frames: memoryview, channels: int) -> Samples:
    parts: list[Samples] = [np.zeros(0, np.float32)]
    place = 0
    while place + 4 <= len(frames):
        (samples,) = struct.unpack_from("<i", frames, place)
        place += 4
        if samples == -1:
            return np.concatenate(parts)
        size = 4 * channels * samples
        if samples < 0 or place + size > len(frames):
            break
        parts.append(np.frombuffer(frames[place : place + size], "<f4").reshape(channels, samples).mean(axis=0))
        place += size
    raise NotDecoded("it is damaged")
