"""Floats become 16-bit numbers without bias, wrapping or noise, and WAV headers say what follows them."""

from __future__ import annotations

from io import BytesIO

import numpy as np
import pytest
import soundfile as sf

from sonant.audio.pcm import growing_wav_header, pcm16, wav_header
from sonant.errors import EngineError


def test_sound_that_was_16_bit_comes_back_unchanged() -> None:
    every = np.arange(-32768, 32768, dtype=np.int16)
    np.testing.assert_array_equal(pcm16(every.astype(np.float32) / 32768), every)


def test_steps_are_rounded_to_the_nearest() -> None:
    steps = np.array([0.49, 0.51, -0.49, -0.51, 1.5, 2.5, -0.5], np.float32)
    np.testing.assert_array_equal(pcm16(steps / 32768), [0, 1, 0, -1, 2, 2, 0])


def test_what_is_too_loud_is_clipped_and_never_wraps() -> None:
    loud = np.array([1.0, 0.99999, 1.5, 1e30, -1.0, -1.5, -1e30], np.float32)
    np.testing.assert_array_equal(pcm16(loud), [32767, 32767, 32767, 32767, -32768, -32768, -32768])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_is_a_fault_of_the_model(bad: float) -> None:
    with pytest.raises(EngineError, match="NaN or infinite"):
        pcm16(np.array([0.0, bad], np.float32))


def test_bytes_are_little_endian() -> None:
    assert pcm16(np.array([1 / 32768, -1.0], np.float32)).tobytes() == b"\x01\x00\x00\x80"


@pytest.mark.parametrize("rate", [8000, 24000, 48000])
def test_headers_are_read_back(rate: int) -> None:
    data = pcm16(np.linspace(-0.5, 0.5, 1000, dtype=np.float32))
    for header in (wav_header(rate, len(data)), growing_wav_header(rate)):
        assert len(header) == 44
        read, read_rate = sf.read(BytesIO(header + data.tobytes()), dtype="int16")
        assert read_rate == rate
        np.testing.assert_array_equal(read, data)


def test_sizes_are_exact_or_unknown() -> None:
    exact, growing = wav_header(24000, 100), growing_wav_header(24000)
    assert (exact[4:8], exact[40:44]) == ((236).to_bytes(4, "little"), (200).to_bytes(4, "little"))
    assert growing[4:8] == growing[40:44] == b"\xff" * 4


def test_a_length_that_no_header_can_hold_is_refused() -> None:
    with pytest.raises(ValueError, match="do not fit"):
        wav_header(24000, 2**31)
