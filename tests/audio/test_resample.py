"""However sound is cut into chunks, it is resampled as if it were whole, and the first frame is heard at once."""

from __future__ import annotations

import numpy as np
import pytest
import soxr

from sonant.audio.resample import StreamResampler

RATES = [8000, 16000, 22050, 44100, 48000]
FRAME = 1920  # samples of a codec frame, 80 ms


def noise(samples: int) -> np.ndarray:
    return (0.2 * np.random.default_rng(7).standard_normal(samples)).astype(np.float32)


def resample(samples: np.ndarray, chunks: list[int], to_rate: int, from_rate: int = 24000) -> np.ndarray:
    resampler = StreamResampler(from_rate, to_rate)
    out = [resampler.push(piece) for piece in np.split(samples, np.cumsum(chunks))]
    return np.concatenate([*out, resampler.flush()])


@pytest.mark.parametrize("to_rate", RATES)
def test_chunks_do_not_change_the_sound(to_rate: int) -> None:
    samples = noise(24000 + 13)
    whole = soxr.resample(samples, 24000, to_rate, quality="HQ")
    rng = np.random.default_rng(to_rate)
    for chunks in ([FRAME] * 12, [1] * 3000, [7, 0, 997, 1] * 20, list(rng.integers(0, 4000, 8)), [20000], []):
        pieces = resample(samples, list(chunks), to_rate)
        assert len(pieces) == len(whole), f"chunks {chunks}"
        np.testing.assert_allclose(pieces, whole, atol=1e-6, err_msg=f"chunks {chunks}")


@pytest.mark.parametrize("from_rate", [8000, 16000, 48000])
def test_it_works_the_other_way_too(from_rate: int) -> None:
    samples = noise(from_rate)
    whole = soxr.resample(samples, from_rate, 24000, quality="HQ")
    np.testing.assert_allclose(resample(samples, [501] * 15, 24000, from_rate), whole, atol=1e-6)


@pytest.mark.parametrize(("to_rate", "heard_ms"), [(8000, 61), (16000, 61), (48000, 69), (24000, 80)])
def test_the_first_frame_gives_sound_at_once(to_rate: int, heard_ms: int) -> None:
    """The figures are those in the docstring of audio/resample.py."""
    assert len(StreamResampler(24000, to_rate).push(noise(FRAME))) / to_rate * 1e3 >= heard_ms


def test_the_same_rate_is_the_identity_and_holds_nothing() -> None:
    resampler, samples = StreamResampler(24000, 24000), noise(100)
    np.testing.assert_array_equal(resampler.push(samples), samples)
    assert not len(resampler.flush())


@pytest.mark.parametrize("to_rate", [8000, 24000, 48000])
def test_the_end_is_an_end(to_rate: int) -> None:
    resampler = StreamResampler(24000, to_rate)
    resampler.push(noise(10))
    resampler.flush()
    assert not len(resampler.flush())
    with pytest.raises(ValueError, match="flushed"):
        resampler.push(noise(10))


@pytest.mark.parametrize("to_rate", [8000, 48000])
def test_of_nothing_comes_nothing(to_rate: int) -> None:
    assert not len(resample(noise(0), [], to_rate))


@pytest.mark.parametrize("to_rate", RATES)
def test_a_tone_keeps_its_pitch_and_level(to_rate: int) -> None:
    tone = np.sin(2 * np.pi * 1000 * np.arange(24000) / 24000).astype(np.float32)
    expected = np.sin(2 * np.pi * 1000 * np.arange(to_rate) / to_rate)
    middle = slice(to_rate // 10, -to_rate // 10)
    np.testing.assert_allclose(resample(tone, [FRAME] * 12, to_rate)[middle], expected[middle], atol=1e-4)
