"""A reference clip is read whatever its form, or refused with a reason."""

from __future__ import annotations

import random
import struct
import tracemalloc
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile as sf

from clips import SAMPLE_RATE, reference_clip
from sonant.audio.clip import Source, read_clip
from sonant.errors import BadAudio
from sonant.types import Samples

TONE, _ = reference_clip(1.0)


def read(source: Source, **limits: float) -> Samples:
    return read_clip(source, sample_rate=SAMPLE_RATE, **limits)  # type: ignore[arg-type]


def as_file(samples: np.ndarray, format: str = "WAV", subtype: str | None = None, rate_hz: int = SAMPLE_RATE) -> bytes:
    file = BytesIO()
    sf.write(file, samples, rate_hz, format=format, subtype=subtype)
    return file.getvalue()


def refusal(source: Any, **limits: float) -> str:
    with pytest.raises(BadAudio) as caught:
        read(source, **limits)
    return str(caught.value)


# --- clips that are read


def test_a_path_a_string_bytes_and_an_array_give_the_same_clip(tmp_path: Path) -> None:
    path = tmp_path / "stimme ü.wav"
    path.write_bytes(as_file(TONE, subtype="FLOAT"))
    for source in (path, str(path), path.read_bytes(), (TONE, SAMPLE_RATE)):
        clip = read(source)
        assert clip.dtype == np.float32
        np.testing.assert_array_equal(clip, TONE)


@pytest.mark.parametrize(("format", "error"), [("WAV", 1e-4), ("FLAC", 1e-4), ("OGG", 0.05), ("MP3", 0.05)])
def test_common_formats_are_read(format: str, error: float) -> None:
    clip = read(as_file(TONE, format))
    assert np.abs(clip[: len(TONE)] - TONE[: len(clip)]).max() < error


@pytest.mark.parametrize("dtype", ["uint8", "int16", "uint16", "int32", "float16", "float64", ">i2"])
def test_samples_of_any_type_are_brought_to_full_scale_one(dtype: str) -> None:
    kind = np.dtype(dtype)
    if kind.kind == "f":
        stored = TONE.astype(kind)
    else:
        full_scale = 2.0 ** (8 * kind.itemsize - 1)
        stored = (TONE * (full_scale - 1) + (full_scale if kind.kind == "u" else 0)).astype(kind)
    np.testing.assert_allclose(read((stored, SAMPLE_RATE)), TONE, atol=0.02 if kind.itemsize == 1 else 1e-3)


def test_channels_are_averaged() -> None:
    stereo = np.stack([TONE, 0.5 * TONE], axis=1)
    np.testing.assert_allclose(read((stereo, SAMPLE_RATE)), 0.75 * TONE, atol=1e-6)
    np.testing.assert_allclose(read(as_file(stereo, subtype="FLOAT")), 0.75 * TONE, atol=1e-6)


@pytest.mark.parametrize("rate_hz", [8_000, 16_000, 44_100, 48_000, 192_000])
def test_other_rates_are_resampled(rate_hz: int) -> None:
    t = np.arange(rate_hz) / rate_hz
    clip = read((0.5 * np.sin(2 * np.pi * 440 * t), rate_hz))
    expected = 0.5 * np.sin(2 * np.pi * 440 * np.arange(len(clip)) / SAMPLE_RATE)
    # The official resampler rounds to 24001 from 44.1 kHz, and one sample more can mean one frame more.
    assert len(clip) == (24_001 if rate_hz == 44_100 else 24_000)
    np.testing.assert_allclose(clip[2000:-2000], expected[2000:-2000], atol=1e-3)


def test_the_callers_array_is_left_alone_and_not_shared() -> None:
    mine = TONE.copy()
    read((mine, SAMPLE_RATE))[:] = 0
    np.testing.assert_array_equal(mine, TONE)


def test_a_wav_that_was_written_to_a_pipe_is_read() -> None:
    wav = bytearray(as_file(TONE))
    size = wav.index(b"data") + 4
    wav[4:8] = wav[size : size + 4] = b"\xff" * 4
    assert len(read(bytes(wav))) == len(TONE)


def test_soft_speech_is_not_silence() -> None:
    assert len(read((TONE * 0.002, SAMPLE_RATE))) == len(TONE)


# --- clips that are refused


def test_what_is_not_there_or_no_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.wav").touch()
    assert "does not exist" in refusal(tmp_path / "nothing.wav")
    assert "not a file" in refusal(tmp_path)
    assert "empty (0 bytes)" in refusal(tmp_path / "empty.wav")
    assert "empty (0 bytes)" in refusal(b"")
    assert "cannot be read" in refusal("a" * 5000)
    refusal("nul\0byte.wav")
    assert "pass the bytes" in refusal("https://example.com/voice.wav")
    assert "not NoneType" in refusal(None)


def test_a_string_of_megabytes_is_not_repeated_in_the_message() -> None:
    assert len(refusal("QUJD" * 500_000)) < 500


@pytest.mark.parametrize("name", ["notes.wav", "notes.raw", "notes.m4a", "notes"])
def test_a_text_file_is_refused_with_the_formats_that_work(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("Not a sound in here. " * 100)
    message = refusal(tmp_path / name)
    assert name in message
    assert "WAV, FLAC, OGG, MP3, M4A or WebM" in message


# Not OGG: its header holds no length, so a truncated file is a valid, shorter clip.
@pytest.mark.parametrize("format", ["WAV", "FLAC", "MP3", "AIFF"])
@pytest.mark.parametrize("kept", [0.01, 0.3, 0.8])
def test_a_truncated_file_is_refused(format: str, kept: float) -> None:
    whole = as_file(np.tile(TONE, 4), format)
    message = refusal(whole[: int(kept * len(whole))])
    assert any(reason in message for reason in ("cut off", "ends early", "is it whole"))


def test_too_short_and_sampleless_clips_are_refused() -> None:
    assert "no samples" in refusal((np.zeros(0, np.float32), SAMPLE_RATE))
    assert "no samples" in refusal(as_file(np.zeros(0, np.float32)))
    assert "0.10 s long: at least 0.5 s" in refusal((TONE[:2400], SAMPLE_RATE))
    assert "0.10 s long: at least 0.5 s" in refusal(as_file(TONE[:2400]))
    assert "at least 3 s" in refusal((TONE, SAMPLE_RATE), min_s=3.0)


def test_a_ten_hour_file_is_refused_before_a_sample_is_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = 10 * 3600 * 8000
    pcm_u8_mono = struct.pack("<IHHIIHH", 16, 1, 1, 8000, 8000, 1, 8)
    head = b"RIFF" + struct.pack("<I", 36 + size) + b"WAVEfmt " + pcm_u8_mono
    path = tmp_path / "audiobook.wav"
    with path.open("wb") as file:
        file.write(head + b"data" + struct.pack("<I", size))
        file.truncate(44 + size)  # sparse: takes no room on disk

    monkeypatch.setattr(sf.SoundFile, "read", lambda *_, **__: pytest.fail("decoded"))
    assert "36000.0 s long: cut it to 60 s or less" in refusal(path)


def test_many_channels_at_a_high_rate_take_little_more_memory_than_their_mix() -> None:
    """A FLAC of silence is a thousandth of what it decodes to."""
    out = BytesIO()
    sf.write(out, np.zeros((20 * 192_000, 8), np.int16), 192_000, format="FLAC")
    tracemalloc.start()
    try:
        with pytest.raises(BadAudio, match="silent"):
            read_clip(out.getvalue(), sample_rate=SAMPLE_RATE)
        assert tracemalloc.get_traced_memory()[1] < 60 << 20  # all channels: 123 MB; their mix, in two copies: 31 MB
    finally:
        tracemalloc.stop()


def test_a_ten_hour_array_is_refused_before_it_is_copied() -> None:
    hours = np.broadcast_to(np.int16(1), (10 * 3600 * SAMPLE_RATE, 2))
    assert "36000.0 s long" in refusal((hours, SAMPLE_RATE))


def test_the_limits_themselves_are_allowed() -> None:
    assert len(read((TONE, SAMPLE_RATE), min_s=1.0, max_s=1.0)) == len(TONE)


def test_a_flac_that_hides_its_length_is_refused() -> None:
    flac = bytearray(as_file(TONE, "FLAC"))
    flac[21] &= 0xF0  # the 36 bits of STREAMINFO that count the samples
    flac[22:26] = bytes(4)
    assert "does not say how long it is" in refusal(bytes(flac))


@pytest.mark.parametrize("silence", [0.0, 3e-5, -3e-5])
def test_silence_is_refused(silence: float) -> None:
    noise = np.random.default_rng(0).uniform(-1, 1, SAMPLE_RATE) * silence
    assert "silent" in refusal((noise, SAMPLE_RATE))
    assert "silent" in refusal((noise + 0.5, SAMPLE_RATE))  # a constant offset is no sound
    assert "silent" in refusal(as_file(noise))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_not_finite_are_refused(bad: float) -> None:
    samples = TONE.copy()
    samples[100] = bad
    assert "1 samples that are NaN or infinite" in refusal((samples, SAMPLE_RATE))
    assert "NaN or infinite" in refusal(as_file(samples, subtype="FLOAT"))


@pytest.mark.parametrize("rate_hz", [0, -24_000, 100, 10**9, 24_000.5, float("nan"), None, "24000"])
def test_absurd_rates_are_refused(rate_hz: Any) -> None:
    assert "sample rate" in refusal((TONE, rate_hz))


def test_a_file_with_an_absurd_rate_is_refused() -> None:
    assert "1000 Hz" in refusal(as_file(TONE, rate_hz=1000))


def test_arrays_of_the_wrong_form_are_refused() -> None:
    assert "3 dimensions" in refusal((np.zeros((2, 3, 4), np.float32), SAMPLE_RATE))
    assert "0 dimensions" in refusal((np.array(1.0), SAMPLE_RATE))
    assert "transpose" in refusal((np.stack([TONE, TONE]), SAMPLE_RATE))
    assert "20 channels" in refusal((np.zeros((SAMPLE_RATE, 20), np.float32), SAMPLE_RATE))
    assert "pair" in refusal((TONE,))
    assert "pair" in refusal(([0.1, 0.2], SAMPLE_RATE))


@pytest.mark.parametrize("dtype", ["int64", "complex64", "bool", "object", "U1"])
def test_arrays_of_no_known_scale_are_refused(dtype: str) -> None:
    assert "give float32 in -1..1" in refusal((np.ones(SAMPLE_RATE).astype(dtype), SAMPLE_RATE))


def test_floats_at_integer_scale_are_refused() -> None:
    assert "divide 16-bit values by 32768" in refusal((TONE * 32767, SAMPLE_RATE))


@pytest.mark.parametrize("format", ["WAV", "FLAC", "OGG"])
def test_a_damaged_file_is_read_or_refused_but_never_breaks(format: str) -> None:
    whole = as_file(TONE, format)
    for seed in range(100):
        dice = random.Random(seed)
        damaged = bytearray(whole)
        for _ in range(dice.randint(1, 5)):
            damaged[dice.randrange(min(200, len(damaged)))] = dice.randrange(256)
        try:
            clip = read(bytes(damaged))
        except BadAudio:
            continue
        except Exception as e:
            pytest.fail(f"seed {seed}: {e!r}")
        assert clip.ndim == 1
        assert np.isfinite(clip).all(), f"seed {seed}"
