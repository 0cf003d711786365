"""Clips that libsndfile does not know: what phones and browsers record, M4A and WebM above all.

libav decodes them, where `av` is installed, in a process of its own that ends with them: see `libav_decoder`. The kind
of file is told from its first bytes here, so that what is none of these costs no process.
"""

from __future__ import annotations

import json
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from subprocess import DEVNULL, PIPE
from typing import IO

import numpy as np

from sonant.types import Samples

_SCRIPT = Path(__file__).with_name("libav_decoder.py")
_TIMEOUT_S = 30.0
_LONGEST_HEAD = 1 << 16  # bytes
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
    command = [sys.executable, "-P", str(_SCRIPT), kind, str(most_s), str(most_channels), str(most_hz)]
    try:
        process = subprocess.Popen(command, stdin=PIPE, stdout=PIPE, stderr=DEVNULL)
    except OSError as e:
        raise NotDecoded(f"the decoder did not start: {e.strerror}") from e
    with process, _killed_after(_TIMEOUT_S, process) as late:
        assert process.stdin is not None and process.stdout is not None
        try:
            with suppress(BrokenPipeError), process.stdin as given:  # it reads all before it answers, or has failed
                given.write(data)
            return _answer(process.stdout, most_s)
        except NotDecoded:
            if late.is_set():
                raise NotDecoded(f"it takes over {_TIMEOUT_S:g} s") from None
            raise
        finally:
            process.kill()


@contextmanager
def _killed_after(seconds: float, process: subprocess.Popen[bytes]) -> Iterator[threading.Event]:
    """Kill the process then; the event says whether that time came."""
    late = threading.Event()

    def end() -> None:
        late.set()
        process.kill()

    clock = threading.Timer(seconds, end)
    clock.daemon = True
    clock.start()
    try:
        yield late
    finally:
        clock.cancel()


def _answer(output: IO[bytes], most_s: float) -> Decoded:
    head = output.readline(_LONGEST_HEAD)
    if not head.endswith(b"\n"):
        raise NotDecoded("the decoder took too much memory or failed")
    facts = json.loads(head)
    if "error" in facts:
        raise NotDecoded(str(facts["error"])[:200])
    rate_hz, channels = facts["rate"], facts["channels"]
    return Decoded(_mono(output, channels, most_s * rate_hz), rate_hz, channels, facts["stated_s"])


def _mono(output: IO[bytes], channels: int, most: float) -> Samples:
    """The frames mixed down as they come: all channels of a whole clip at once may be hundreds of megabytes."""
    parts: list[Samples] = [np.zeros(0, np.float32)]
    kept = 0
    while len(length := output.read(4)) == 4:
        (samples,) = struct.unpack("<i", length)
        if samples == -1:
            return np.concatenate(parts)
        size = 4 * channels * samples
        if samples < 0 or kept > most or len(frame := output.read(size)) < size:
            break
        parts.append(np.frombuffer(frame, "<f4").reshape(channels, samples).mean(axis=0))
        kept += samples
    raise NotDecoded("it is damaged")
