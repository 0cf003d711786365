"""Speech gets faster or slower by exactly the factor asked for, at the same pitch, and chunks leave no trace."""

from __future__ import annotations

import numpy as np
import pytest

from sonant.audio.speed import SpeedChanger
from sonant.errors import BadRequest

RATE = 24000
FRAME = 1920  # samples of a codec frame, 80 ms
SPEEDS = [0.25, 0.5, 0.8, 1.0, 1.1, 1.5, 2.0, 3.0, 4.0]


def change(samples: np.ndarray, speed: float, chunk: int = FRAME, rate: int = RATE) -> np.ndarray:
    changer = SpeedChanger(rate, speed)
    out = [changer.push(samples[i : i + chunk]) for i in range(0, len(samples), chunk)]
    return np.concatenate([np.zeros(0, np.float32), *out, changer.flush()])


def tone(hz: float, seconds: float = 2.0, rate: int = RATE) -> np.ndarray:
    return (0.5 * np.sin(2 * np.pi * hz * np.arange(round(seconds * rate)) / rate)).astype(np.float32)


def voice(seconds: float = 2.0, start_hz: float = 90, end_hz: float = 220, pauses: bool = True) -> np.ndarray:
    """A made-up voice: glottal pulses whose pitch glides up, and breath."""
    t = np.arange(round(seconds * RATE)) / RATE
    phase = 2 * np.pi * np.cumsum(np.linspace(start_hz, end_hz, len(t))) / RATE
    pulses = sum(np.sin(k * phase) / k for k in range(1, 25))
    breath = np.random.default_rng(3).standard_normal(len(t))
    gate = np.sin(2 * np.pi * 1.5 * t) > -0.8 if pauses else 1.0
    return ((0.2 * pulses + 0.01 * breath) * gate).astype(np.float32)


def main_frequency_hz(samples: np.ndarray, rate: int = RATE) -> float:
    middle = samples[len(samples) // 10 : -len(samples) // 10]
    size = 1 << 20
    return float(np.argmax(np.abs(np.fft.rfft(middle * np.hanning(len(middle)), size)))) * rate / size


def pitch_hz(frame: np.ndarray) -> float:
    correlation = np.correlate(frame, frame, "full")[len(frame) - 1 :]
    shortest, longest = RATE // 300, RATE // 60
    return RATE / (shortest + int(np.argmax(correlation[shortest:longest])))


@pytest.mark.parametrize("speed", SPEEDS)
@pytest.mark.parametrize("hz", [80, 110, 220, 440, 1000, 3000])
def test_a_tone_keeps_its_pitch_and_level(speed: float, hz: int) -> None:
    changed = change(tone(hz), speed)
    assert main_frequency_hz(changed) == pytest.approx(hz, rel=0.005)
    whole_hops = changed[2400:-2400][: (len(changed) - 4800) // 480 * 480].reshape(-1, 480)
    levels = np.sqrt((whole_hops**2).mean(axis=1)) / (0.5 / np.sqrt(2))
    assert levels.min() > 0.9 and levels.max() < 1.1  # where a seam does not match, the signals would cancel


@pytest.mark.parametrize("rate", [8000, 16000, 48000])
def test_other_sample_rates_sound_the_same(rate: int) -> None:
    changed = change(tone(220, rate=rate), 1.5, rate=rate)
    assert main_frequency_hz(changed, rate) == pytest.approx(220, rel=0.005)


@pytest.mark.parametrize("speed", [0.5, 0.8, 1.25, 2.0])
def test_a_gliding_voice_keeps_its_melody(speed: float) -> None:
    changed = change(voice(4.0, 100, 200, pauses=False), speed)
    for at_s in (0.5, 1.1, 1.8, 2.5, 3.2):
        begin = round(at_s / speed * RATE)
        in_the_input_s = at_s + 0.025 * speed
        assert pitch_hz(changed[begin : begin + RATE // 20]) == pytest.approx(100 + 25 * in_the_input_s, rel=0.03)


@pytest.mark.parametrize("speed", [*SPEEDS, 0.333, 1.0001, 2.718])
@pytest.mark.parametrize("samples", [1, 100, 481, 1920, 30_001])
def test_the_length_is_that_of_the_speed(speed: float, samples: int) -> None:
    changed = change(voice()[:samples], speed)
    assert len(changed) == round(samples / speed)


@pytest.mark.parametrize("speed", SPEEDS)
def test_chunks_do_not_change_the_sound(speed: float) -> None:
    samples = voice()
    whole = change(samples, speed, len(samples))
    for chunk in (61, 480, 1000, FRAME, 9999):
        np.testing.assert_array_equal(change(samples, speed, chunk), whole, err_msg=f"chunk {chunk}")


@pytest.mark.parametrize("speed", SPEEDS)
def test_the_first_frame_gives_sound_at_once(speed: float) -> None:
    assert len(SpeedChanger(RATE, speed).push(voice()[:FRAME])) >= 480


@pytest.mark.parametrize("speed", [0.25, 1.5, 4.0])
def test_little_is_held(speed: float) -> None:
    changer, samples, given = SpeedChanger(RATE, speed), voice(4.0), 0
    for begin in range(0, len(samples) - FRAME, FRAME):
        given += len(changer.push(samples[begin : begin + FRAME]))
        assert begin + FRAME - given * speed <= 0.06 * RATE + 480 * speed  # a hop of output, and 60 ms of input
        assert len(changer.input) < 0.1 * RATE + 2 * FRAME


def test_speed_1_is_the_identity_and_holds_nothing() -> None:
    changer, samples = SpeedChanger(RATE, 1.0), voice()
    np.testing.assert_array_equal(changer.push(samples[:7]), samples[:7])
    np.testing.assert_array_equal(changer.push(samples[7:]), samples[7:])
    assert not len(changer.flush())


@pytest.mark.parametrize("speed", [0.5, 2.0])
def test_silence_stays_silent_and_loudness_stays_bounded(speed: float) -> None:
    assert not np.any(change(np.zeros(RATE, np.float32), speed))
    samples = voice()
    assert np.abs(change(samples, speed)).max() <= np.abs(samples).max() * 1.001  # crossfades do not amplify


@pytest.mark.parametrize("speed", [0.24, 4.01, 0.0, -1.0, float("nan"), float("inf")])
def test_other_speeds_are_refused_with_the_range(speed: float) -> None:
    with pytest.raises(BadRequest, match=r"from 0.25 to 4"):
        SpeedChanger(RATE, speed)


@pytest.mark.parametrize("speed", [1.0, 2.0])
def test_the_end_is_an_end(speed: float) -> None:
    changer = SpeedChanger(RATE, speed)
    changer.push(voice())
    changer.flush()
    assert not len(changer.flush())
    with pytest.raises(ValueError, match="flushed"):
        changer.push(voice())
