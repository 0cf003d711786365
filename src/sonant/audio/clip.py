"""Reference clips as callers hand them over: a path, a file's bytes, or an array with its rate.

Whatever comes in, either mono float32 at the requested rate comes out, or a `BadAudio` that says what to correct.
Length is judged from the header before anything is decoded: a ten-hour file costs no more than a bad one. What
libsndfile does not know, M4A and WebM among the rest, is left to libav where that is installed.
"""

from __future__ import annotations

import math
import operator
import os
import re
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sonant.audio import libav_clip
from sonant.errors import BadAudio
from sonant.types import Samples

Source = str | Path | bytes | tuple[npt.NDArray[Any], int]

MIN_RATE_HZ = 8_000  # the telephone's; below it there is no voice left to clone
MAX_RATE_HZ = 192_000
MAX_CHANNELS = 8
# This is -80 dBFS. Dithered 16-bit silence stays below (two steps of 2^-15); the softest usable speech is far above.
SILENT_PEAK = 1e-4
# Floats may overshoot 1 a little; a peak of ten means 16-bit numbers that nobody divided by 32768.
MAX_PEAK = 10.0
_UNKNOWN_FRAMES = 1 << 62  # libsndfile says 2^63 - 1 for a stream whose length was never written
_UNKNOWN_BYTES = 0x7FFF0000  # writers that cannot seek back leave 2^31 or 2^32, less a header, as the size
_UNKNOWN_TO_LIBSNDFILE = (1, 4)  # its codes for a format, and for an encoding in a known one
_STATED_SHORTFALL = 0.95  # a container's length has the encoder's padding in it, of a tenth of a second at most
_MIXED_AT_ONCE = 1 << 18  # frames
_SHORTFALL = 0.99  # sizes that are off by a header's worth are common and harmless


def read_clip(source: Source, *, sample_rate: int, min_s: float = 0.5, max_s: float = 60.0) -> Samples:
    """Mono float32 at `sample_rate`, or `BadAudio`."""
    if isinstance(source, tuple):
        samples, rate_hz = _from_array(source, min_s, max_s)
        name = "The clip"
    elif isinstance(source, bytes):
        name = "The clip"
        if not source:
            raise BadAudio("The clip is empty (0 bytes): was the upload cut off?")
        samples, rate_hz = _decode(BytesIO(source), name, min_s, max_s)
    elif isinstance(source, str | Path):
        name = _shorten(str(source))
        samples, rate_hz = _decode(_existing_file(source, name), name, min_s, max_s)
    else:
        raise BadAudio(
            "A clip is a path, the bytes of an audio file, or a pair (samples, sample_rate), "
            f"not {type(source).__name__}"
        )
    _check_sound(samples, name)
    return _resample(samples, rate_hz, sample_rate)


def _existing_file(source: str | Path, name: str) -> str:
    if str(source).startswith(("http://", "https://", "data:")):
        raise BadAudio(f"{name} is a URL: fetch it yourself and pass the bytes")
    path = Path(source)
    try:
        if not path.exists():
            raise BadAudio(f"{name} does not exist: give the path of an audio file on this machine")
        if not path.is_file():
            raise BadAudio(f"{name} is not a file: give the path of an audio file")
        if path.stat().st_size == 0:
            raise BadAudio(f"{name} is empty (0 bytes): record or export it again")
        if not os.access(path, os.R_OK):
            raise BadAudio(f"{name} cannot be read: permission denied")
    except BadAudio:  # a ValueError too
        raise
    except (OSError, ValueError) as e:  # a folder we may not enter, a name too long or with a null byte
        raise BadAudio(f"{name} cannot be read: {getattr(e, 'strerror', None) or e}") from e
    return str(path)


def _decode(file: str | BytesIO, name: str, min_s: float, max_s: float) -> tuple[Samples, int]:
    import soundfile as sf  # here, since training and benchmarks run on machines that have no sound libraries

    try:
        with sf.SoundFile(file) as sound:
            frames, rate_hz = sound.frames, sound.samplerate
            if frames > _UNKNOWN_FRAMES:
                raise BadAudio(f"{name} does not say how long it is: save it again as WAV, not as a stream")
            _check_whole(sound.extra_info, name)
            _check_shape(name, frames, sound.channels, rate_hz, min_s, max_s)
            samples = _mixed(sound, frames)
    except BadAudio:
        raise
    # TypeError is soundfile's answer to a name that ends in .raw.
    except (sf.SoundFileError, TypeError) as e:
        kind = libav_clip.kind_of(_start(file))
        # For codecs in Ogg other than Vorbis and Opus, such as Speex, error codes are of many kinds.
        if kind != "ogg" and getattr(e, "code", None) not in _UNKNOWN_TO_LIBSNDFILE:
            kind = None
        if kind is not None and libav_clip.is_installed():
            return _decode_other(file, kind, name, min_s, max_s)
        reason = getattr(e, "error_string", str(e)).strip().rstrip(".")
        known = "WAV, FLAC, OGG, MP3, M4A or WebM" if libav_clip.is_installed() else "WAV, FLAC, OGG or MP3"
        more = "" if kind is None else " M4A, WebM and others are read where av is installed (pip install av)."
        raise BadAudio(
            f"{name} cannot be decoded as audio ({reason}): is it whole, and {known}?{more} "
            "Other formats: ffmpeg -i clip.wma clip.wav"
        ) from e
    if len(samples) < _SHORTFALL * frames:
        raise BadAudio(
            f"{name} ends early: its header says {frames / rate_hz:.2f} s, {len(samples) / rate_hz:.2f} s "
            "could be decoded; fetch or export it again"
        )
    return samples, rate_hz


def _mixed(sound: Any, frames: int) -> Samples:
    """At most so many frames, mixed down a piece at a time: a minute of all channels at the highest rate is 370 MB,
    which as silence is a FLAC of 90 KB."""
    pieces: list[Samples] = [np.zeros(0, np.float32)]
    for start in range(0, frames, _MIXED_AT_ONCE):
        channels = sound.read(min(_MIXED_AT_ONCE, frames - start), dtype="float32", always_2d=True)
        pieces.append(channels.mean(axis=1))
        if not len(channels):
            break
    return np.concatenate(pieces)


def _decode_other(file: str | BytesIO, kind: str, name: str, min_s: float, max_s: float) -> tuple[Samples, int]:
    data = file.getvalue() if isinstance(file, BytesIO) else Path(file).read_bytes()
    try:
        clip = libav_clip.decode(data, kind, most_s=max_s, most_channels=MAX_CHANNELS, most_hz=MAX_RATE_HZ)
    except libav_clip.NotDecoded as e:
        raise BadAudio(f"{name} cannot be decoded as audio ({e}): is it whole, and does it play elsewhere?") from None
    frames = len(clip.samples)
    if frames == 0 and clip.stated_s is not None and clip.stated_s > max_s:
        raise BadAudio(f"{name} is {clip.stated_s:.1f} s long: cut it to {max_s:g} s or less")
    if frames > max_s * clip.rate_hz:
        raise BadAudio(f"{name} is over {max_s:g} s long: cut it to {max_s:g} s or less")
    _check_shape(name, frames, clip.channels, clip.rate_hz, min_s, max_s)
    if clip.stated_s is not None and frames < _STATED_SHORTFALL * clip.stated_s * clip.rate_hz:
        raise BadAudio(
            f"{name} ends early: it says that it has {clip.stated_s:.2f} s, {frames / clip.rate_hz:.2f} s could be "
            "decoded; fetch or export it again"
        )
    return clip.samples, clip.rate_hz


def _start(file: str | BytesIO) -> bytes:
    """The first bytes, which are enough to tell the file's kind."""
    if isinstance(file, BytesIO):
        return file.getbuffer()[:16].tobytes()
    with open(file, "rb") as opened:
        return opened.read(16)


def _check_whole(libsndfile_log: str, name: str) -> None:
    """libsndfile reads what is left of a cut-off WAV or AIFF, and says so nowhere but in its log."""
    for line in re.finditer(r": (\d+) \(should be (\d+)\)", libsndfile_log):
        promised, there = int(line[1]), int(line[2])
        if there < _SHORTFALL * promised and promised < _UNKNOWN_BYTES:
            raise BadAudio(
                f"{name} is cut off: its header promises {promised:,} bytes and {there:,} are there; "
                "fetch or export it again"
            )


def _from_array(source: tuple[Any, ...], min_s: float, max_s: float) -> tuple[Samples, int]:
    if len(source) != 2 or not isinstance(source[0], np.ndarray):
        raise BadAudio("A clip in memory is a pair: a NumPy array of samples, and their sample rate")
    array, rate = source
    try:
        rate_hz = operator.index(rate)
    except TypeError:
        raise BadAudio(f"The clip's sample rate is {rate!r}: give whole Hz, such as 24000") from None
    if array.ndim not in (1, 2):
        raise BadAudio(f"The clip's array has {array.ndim} dimensions: give [samples] or [samples, channels]")
    channels = array.shape[1] if array.ndim == 2 else 1
    if channels > MAX_CHANNELS >= len(array):
        raise BadAudio(f"The clip's array is {list(array.shape)}: give [samples, channels], the transpose")
    _check_shape("The clip", len(array), channels, rate_hz, min_s, max_s)
    samples = _to_float(array)
    return (samples.mean(axis=1) if samples.ndim == 2 else samples), rate_hz


def _to_float(array: npt.NDArray[Any]) -> Samples:
    kind, bits = array.dtype.kind, 8 * array.dtype.itemsize
    if kind == "f":
        with np.errstate(over="ignore"):  # what overflows becomes inf, which has its own message
            return array.astype(np.float32)
    if kind in "iu" and bits <= 32:
        full_scale = float(1 << (bits - 1))
        middle = full_scale if kind == "u" else 0.0
        return ((array.astype(np.float64) - middle) / full_scale).astype(np.float32)
    # This refuses 64-bit integers too: nearly always they are smaller ones widened by accident, so no scale is right.
    raise BadAudio(f"The clip's samples are {array.dtype}: give float32 in -1..1, or int16 or int32 at full scale")


def _check_shape(name: str, frames: int, channels: int, rate_hz: int, min_s: float, max_s: float) -> None:
    if not MIN_RATE_HZ <= rate_hz <= MAX_RATE_HZ:
        raise BadAudio(
            f"{name} has a sample rate of {rate_hz} Hz: between {MIN_RATE_HZ} and {MAX_RATE_HZ} is supported"
        )
    if not 1 <= channels <= MAX_CHANNELS:
        raise BadAudio(f"{name} has {channels} channels: mix it down to mono or stereo")
    if frames == 0:
        raise BadAudio(f"{name} holds no samples: record or export it again")
    duration_s = frames / rate_hz
    if duration_s < min_s:
        raise BadAudio(f"{name} is {duration_s:.2f} s long: at least {min_s:g} s of speech is needed")
    if duration_s > max_s:
        raise BadAudio(f"{name} is {duration_s:.1f} s long: cut it to {max_s:g} s or less")


def _check_sound(samples: Samples, name: str) -> None:
    if not np.isfinite(samples).all():
        bad = int(np.count_nonzero(~np.isfinite(samples)))
        raise BadAudio(f"{name} has {bad:,} samples that are NaN or infinite: export it again")
    low, high = float(samples.min()), float(samples.max())
    if (high - low) / 2 < SILENT_PEAK:  # half the span, not the peak: a constant offset makes no sound
        raise BadAudio(f"{name} is silent (in mono it spans {high - low:.1g} of 2): record it again")
    if max(high, -low) > MAX_PEAK:
        raise BadAudio(f"{name} reaches {max(high, -low):.0f} where full scale is 1: divide 16-bit values by 32768")


def _resample(samples: Samples, rate_hz: int, sample_rate: int) -> Samples:
    if rate_hz == sample_rate:
        return samples
    import soxr

    resampled = soxr.resample(samples, rate_hz, sample_rate, quality="HQ")
    # It is the length that the official code's resampler gives, down to its rounding of the ratio, since one sample
    # more can be one frame more.
    length = math.ceil(len(samples) * (sample_rate / rate_hz))
    return np.pad(resampled[:length], (0, max(0, length - len(resampled))))


def _shorten(name: str) -> str:
    """The end of a long name: what was meant as base64 may be megabytes, and the end of a path says most."""
    return name if len(name) <= 200 else f"…{name[-200:]}"
