"""Recordings from phones and browsers are read like other clips, within the same bounds, or refused in a sentence."""

from __future__ import annotations

import random
import struct
import subprocess
import sys
import time
import tracemalloc
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest

from clips import SAMPLE_RATE, reference_clip
from sonant.audio import clip as clip_module
from sonant.audio import libav_clip
from sonant.audio.clip import read_clip
from sonant.errors import BadAudio

av = pytest.importorskip("av")

FORMATS = {
    "M4A": ("ipod", "aac", False),
    "WebM": ("webm", "libopus", False),
    "MP4 with a video": ("mp4", "aac", True),
    "Matroska with a video": ("matroska", "aac", True),
    "ADTS": ("adts", "aac", False),
    "MOV": ("mov", "pcm_s16le", False),
    "WavPack": ("wv", "wavpack", False),
    "FLAC in Ogg": ("ogg", "flac", False),
}


def recording(form: str, codec: str, video: bool = False, seconds: float = 1.7, channels: int = 1) -> bytes:
    out = BytesIO()
    with av.open(out, "w", format=form) as container:
        sound = container.add_stream(codec, rate=48_000, layout="mono" if channels == 1 else "stereo")
        if video:
            picture = container.add_stream("mpeg4", rate=10)
            picture.width = picture.height = 64
            picture.pix_fmt = "yuv420p"
            for n in range(int(10 * seconds)):
                frame = av.VideoFrame.from_ndarray(np.full((64, 64, 3), n % 256, np.uint8), format="rgb24")
                frame.pts = n
                container.mux(picture.encode(frame))
            container.mux(picture.encode(None))
        samples, _ = reference_clip(seconds, 48_000)
        for start in range(0, len(samples), 960):
            piece = np.stack([samples[start : start + 960]] * channels)
            frame = av.AudioFrame.from_ndarray(piece, format="fltp", layout=sound.layout.name)
            frame.sample_rate, frame.pts = 48_000, start
            container.mux(sound.encode(frame))
        container.mux(sound.encode(None))
    return out.getvalue()


@pytest.fixture(scope="module")
def m4a() -> bytes:
    return recording("ipod", "aac")


@pytest.fixture(scope="module")
def webm() -> bytes:
    return recording("webm", "libopus")


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many samples the decoder gave of each clip."""
    counts: list[int] = []
    real = libav_clip.decode

    def counted(*args: object, **limits: object) -> libav_clip.Decoded:
        found = real(*args, **limits)  # type: ignore[arg-type]
        counts.append(len(found.samples))
        return found

    monkeypatch.setattr(clip_module.libav_clip, "decode", counted)
    return counts


def refusal(data: bytes, **limits: float) -> str:
    with pytest.raises(BadAudio) as caught:
        read_clip(data, sample_rate=SAMPLE_RATE, **limits)
    message = str(caught.value)
    assert len(message) < 300 and "\n" not in message and "Traceback" not in message
    return message


@pytest.mark.parametrize("name", FORMATS)
def test_it_is_read(name: str) -> None:
    heard = read_clip(recording(*FORMATS[name]), sample_rate=SAMPLE_RATE)
    said, _ = reference_clip()
    assert heard.dtype == np.float32 and abs(len(heard) - len(said)) < 0.05 * SAMPLE_RATE
    lags = [np.corrcoef(heard[lag : lag + 30_000], said[:30_000])[0, 1] for lag in range(0, 1_500, 4)]
    assert max(lags) > 0.95, "it is not the same sound"


def test_channels_are_averaged_and_a_path_will_do(tmp_path: Path) -> None:
    (tmp_path / "voice.m4a").write_bytes(recording("ipod", "aac", channels=2))
    assert 0.3 < np.abs(read_clip(tmp_path / "voice.m4a", sample_rate=SAMPLE_RATE)).max() < 0.9


def test_a_clip_of_as_many_channels_as_are_read_is_read() -> None:
    out, rate_hz = BytesIO(), 48_000
    with av.open(out, "w", format="matroska") as container:
        sound = container.add_stream("flac", rate=rate_hz, layout="7.1")
        sound.codec_context.format = "s16"
        samples = (16_000 * reference_clip(1.0, rate_hz)[0]).astype(np.int16)
        for start in range(0, rate_hz, 4096):
            piece = np.repeat(samples[start : start + 4096], 8)[None]
            frame = av.AudioFrame.from_ndarray(piece, format="s16", layout="7.1")
            frame.sample_rate, frame.pts = rate_hz, start
            container.mux(sound.encode(frame))
        container.mux(sound.encode(None))
    heard = read_clip(out.getvalue(), sample_rate=rate_hz)
    np.testing.assert_array_equal(heard, samples / np.float32(32768))


def test_its_length_is_judged(m4a: bytes, webm: bytes) -> None:
    for data in (m4a, webm):
        assert "s long: cut it to 1 s or less" in refusal(data, max_s=1.0)
        assert "s long: at least 3 s" in refusal(data, min_s=3.0)


def test_decoding_stops_at_the_longest_clip(kept: list[int]) -> None:
    """The container does not state its length, so decoding stops once it has as much as may be kept."""
    data = recording("adts", "aac", seconds=15.0)
    assert "over 2 s long: cut it to 2 s or less" in refusal(data, max_s=2.0)
    assert kept[0] < 2.1 * 48_000


def test_a_rate_that_no_clip_has_is_refused_before_anything_is_decoded(kept: list[int]) -> None:
    """A minute at eight million samples a second would be gigabytes, from a file of some kilobytes."""
    out = BytesIO()
    with av.open(out, "w", format="wv") as container:
        sound = container.add_stream("wavpack", rate=8_000_000, layout="mono")
        for n in range(4):
            frame = av.AudioFrame.from_ndarray(np.zeros((1, 131_072), np.int16), format="s16p", layout="mono")
            frame.sample_rate, frame.pts = 8_000_000, n * 131_072
            container.mux(sound.encode(frame))
        container.mux(sound.encode(None))
    assert "a sample rate of 8000000 Hz" in refusal(out.getvalue())
    assert kept == [0]


@pytest.mark.parametrize("kept", [0.01, 0.3, 0.6, 0.9])
def test_half_of_it_is_refused(m4a: bytes, webm: bytes, kept: float) -> None:
    for data in (m4a, webm):
        message = refusal(data[: int(kept * len(data))])
        assert any(reason in message for reason in ("is it whole", "ends early", "at least 0.5 s")), message


def test_a_file_that_lies_about_its_size_takes_nobodys_memory(m4a: bytes) -> None:
    """The file claims a hundred million samples in one chunk; libav makes an index of them, 24 bytes for each."""
    lie = bytearray(m4a)
    sizes, chunks = m4a.index(b"stsz"), m4a.index(b"stsc")
    lie[sizes + 8 : sizes + 16] = struct.pack(">II", 10, 100_000_000)
    lie[chunks + 8 : chunks + 24] = struct.pack(">IIII", 1, 1, 0x7FFFFFFF, 1)
    began = time.monotonic()
    refusal(bytes(lie))
    assert time.monotonic() - began < 5


@pytest.mark.parametrize(
    ("does", "why"),
    [
        ("raise SystemExit(1)", "took too much memory or failed"),
        ("import time; time.sleep(60)", "it takes over 0.5 s"),
        ("import sys, time; sys.stdin.buffer.read(); time.sleep(60)", "it takes over 0.5 s"),
        ("import sys\nsys.stdin.buffer.read()\nwhile True: sys.stdout.buffer.write(bytes(9999))", "too much memory"),
        (
            "import sys; sys.stdin.buffer.read(); out = sys.stdout.buffer\n"
            'out.write(b\'{"rate": 8000, "channels": 1, "stated_s": null}\\n\')\n'
            'while True: out.write((2000).to_bytes(4, "little") + bytes(8000))',
            "it is damaged",
        ),
    ],
)
def test_a_decoder_that_dies_hangs_or_never_ends_is_given_up(
    m4a: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, does: str, why: str
) -> None:
    (tmp_path / "decoder.py").write_text(does)
    monkeypatch.setattr(libav_clip, "_SCRIPT", tmp_path / "decoder.py")
    monkeypatch.setattr(libav_clip, "_TIMEOUT_S", 0.5 if "0.5 s" in why else 20.0)
    assert why in refusal(m4a * (1 + (1 << 20) // len(m4a)))  # more than a pipe holds


def test_all_channels_of_a_long_clip_are_never_held_at_once() -> None:
    """A minute of silence in eight channels is a file of some kilobytes, and hundreds of megabytes of samples."""
    out, rate_hz, piece = BytesIO(), 192_000, 8192
    with av.open(out, "w", format="matroska") as container:
        sound = container.add_stream("flac", rate=rate_hz, layout="7.1")
        sound.codec_context.format = "s16"
        for start in range(0, 20 * rate_hz, piece):
            frame = av.AudioFrame.from_ndarray(np.zeros((1, 8 * piece), np.int16), format="s16", layout="7.1")
            frame.sample_rate, frame.pts = rate_hz, start
            container.mux(sound.encode(frame))
        container.mux(sound.encode(None))
    tracemalloc.start()
    try:
        assert "is silent" in refusal(out.getvalue(), max_s=60.0)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < 60 << 20  # the mix is 15 MB, all channels are 123


def test_a_file_without_sound_is_refused() -> None:
    out = BytesIO()
    with av.open(out, "w", format="mp4") as container:
        picture = container.add_stream("mpeg4", rate=10)
        picture.width = picture.height = 64
        picture.pix_fmt = "yuv420p"
        container.mux(picture.encode(av.VideoFrame.from_ndarray(np.zeros((64, 64, 3), np.uint8), format="rgb24")))
        container.mux(picture.encode(None))
    assert "there is no sound in it" in refusal(out.getvalue())


def test_what_is_no_recording_costs_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libav_clip, "decode", lambda *_, **__: pytest.fail("a process was started"))
    for data in (b"#EXTM3U\nhttp://127.0.0.1/x.wav\n", b"ffconcat version 1.0\nfile /etc/passwd\n", bytes(1000), b"R"):
        assert "WAV, FLAC, OGG, MP3, M4A or WebM" in refusal(data)


def test_where_av_is_missing_it_says_so(m4a: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libav_clip, "is_installed", lambda: False)
    assert "pip install av" in refusal(m4a)


def test_damage_never_breaks_it(m4a: bytes, webm: bytes) -> None:
    for seed in range(5):
        dice = random.Random(seed)
        damaged = bytearray(dice.choice([m4a, webm]))
        for _ in range(5):
            damaged[dice.randrange(8, 2000)] = dice.randrange(256)
        try:
            assert np.isfinite(read_clip(bytes(damaged), sample_rate=SAMPLE_RATE)).all()
        except BadAudio as e:
            assert len(str(e)) < 300


@pytest.mark.skipif(sys.platform != "linux", reason="limits of a process are Linux's to tell")
def test_the_decoder_bounds_itself_and_prints_no_traceback() -> None:
    script = str(Path(libav_clip.__file__).with_name("libav_decoder.py"))
    command = [sys.executable, "-P", script, "mov", "60", "8", "192000"]
    ran = subprocess.run(command, input=b"no", capture_output=True, check=True)
    assert ran.stdout.startswith(b'{"error"') and ran.stderr == b""
    look = f"import runpy, resource; runpy.run_path({script!r})['_limit_self'](); print(resource.getrlimit(9)[0])"
    assert int(subprocess.run([sys.executable, "-c", look], capture_output=True, check=True).stdout) < 1 << 30
