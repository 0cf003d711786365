"""The decoder's own process: a file on stdin, its sound on stdout. Run as a script, by `libav_clip`.

libav reads what strangers send, and its demuxers trust what a file says of its own size: a kilobyte can ask for
gigabytes. Here that, or a crash, ends a process that does nothing else. Its memory and time are limited, and it opens
nothing: the file's kind is determined before, so that no playlist or script is ever followed.

The output is a line of JSON, {"rate", "channels", "stated_s"} or {"error"}; then for each frame its length in samples
(int32) and the channels' float32 samples, one channel after the other; at the end -1, or -2 if decoding failed.
"""

from __future__ import annotations

import io
import json
import struct
import sys
from typing import Any, BinaryIO

_MEMORY_BYTES = 640 << 20  # of address space, of which Python and libav take a fifth
_CPU_S = 20
_MAX_EMPTY = 2000  # packets in a row without any sound: five seconds of the shortest there are
_MAX_STREAMS = 32
_PADDING_S = 0.2  # that encoders add, and a container may count
# Only audio codecs, and only those that recorders write: libav knows hundreds, and opens any that a file names.
_CODECS = frozenset({
    "aac", "aac_latm", "alac", "mp3", "mp3float", "mp2", "mp2float", "mp1", "mp1float", "opus", "libopus", "vorbis",
    "libvorbis", "flac", "speex", "libspeex", "ac3", "eac3", "amrnb", "amrwb", "libopencore_amrnb",
    "libopencore_amrwb", "wmav1", "wmav2", "wmapro", "wmavoice", "wavpack", "ape", "tta", "adpcm_ms", "adpcm_ima_wav",
    "adpcm_ima_qt", "gsm", "gsm_ms", "pcm_u8", "pcm_s8", "pcm_s16le", "pcm_s16be", "pcm_s24le", "pcm_s24be",
    "pcm_s32le", "pcm_s32be", "pcm_f32le", "pcm_f32be", "pcm_f64le", "pcm_f64be", "pcm_alaw", "pcm_mulaw",
})  # fmt: skip


def main(demuxer: str, most_s: float, most_channels: int, most_hz: int) -> None:
    _limit_self()
    import av  # after the limits

    out = sys.stdout.buffer
    try:
        _decode(av, io.BytesIO(sys.stdin.buffer.read()), demuxer, most_s, most_channels, most_hz, out)
    except (av.FFmpegError, ValueError, MemoryError, OverflowError) as e:
        _head(out, error=getattr(e, "strerror", None) or str(e) or type(e).__name__)
        out.write(struct.pack("<i", -2))


def _decode(
    av: Any, file: BinaryIO, demuxer: str, most_s: float, most_channels: int, most_hz: int, out: BinaryIO
) -> None:
    allowed = {"protocol_whitelist": "none", "codec_whitelist": ",".join(_CODECS), "max_streams": str(_MAX_STREAMS)}
    with av.open(file, format=demuxer, options=allowed) as container:
        if not container.streams.audio:
            raise ValueError("there is no sound in it")
        stream = container.streams.audio[0]
        for other in container.streams:
            if other.index != stream.index:
                other.discard = av.stream.Discard.all
        if stream.codec_context.name not in _CODECS:
            raise ValueError(f"its sound is {stream.codec_context.name}, which is not read")
        sound = _frames(av, container, stream)
        first = next(sound, None)
        if first is None:
            raise ValueError("there is no sound in it")
        rate, channels = first.sample_rate, first.layout.nb_channels
        stated_s = _stated_s(demuxer, container, stream)
        _head(out, rate=rate, channels=channels, stated_s=stated_s)
        # `most_s` bounds the samples only at a rate that is bounded too, and a file may state any.
        if rate > most_hz or not 1 <= channels <= most_channels or (stated_s or 0.0) > most_s + _PADDING_S:
            out.write(struct.pack("<i", -1))
            return
        left = most_s * rate
        for frame in _with(first, sound):
            out.write(struct.pack("<i", frame.samples))
            # PyAV looks for a null behind the planes, and libav puts none behind eight.
            for plane in frame.planes[:channels]:
                out.write(memoryview(plane)[: 4 * frame.samples])
            left -= frame.samples
            if left < 0:
                break
        out.write(struct.pack("<i", -1))


def _frames(av: Any, container: Any, stream: Any) -> Any:
    """Frames of float32, with each channel's samples apart; layout and rate are the first frame's throughout."""
    as_float = None
    empty = 0
    for packet in container.demux(stream):
        frames = packet.decode()
        empty = 0 if frames else empty + 1
        if empty > _MAX_EMPTY:
            raise ValueError("there is no sound in it")
        for frame in frames:
            if as_float is None:
                as_float = av.AudioResampler(format="fltp", layout=frame.layout, rate=frame.sample_rate)
            yield from as_float.resample(frame)


def _stated_s(demuxer: str, container: Any, stream: Any) -> float | None:
    """The length that the file states for its sound; None: it states none, or only an estimate."""
    if demuxer == "mov" and stream.duration is not None:
        return float(stream.duration * stream.time_base)
    if demuxer == "matroska" and container.duration is not None and len(container.streams) == 1:
        return float(container.duration) / 1e6
    return None


def _with(first: Any, rest: Any) -> Any:
    yield first
    yield from rest


def _head(out: BinaryIO, **facts: object) -> None:
    out.write(json.dumps(facts).encode() + b"\n")


def _limit_self() -> None:
    if sys.platform == "win32":
        return
    import resource

    for what, most in ((resource.RLIMIT_AS, _MEMORY_BYTES), (resource.RLIMIT_CPU, _CPU_S), (resource.RLIMIT_CORE, 0)):
        hard = resource.getrlimit(what)[1]
        resource.setrlimit(what, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
