"""Joined parts have no step at the seam, lose no sample, and are untouched elsewhere."""

from __future__ import annotations

import numpy as np
import pytest

from sonant.audio.join import FADE_S, Joiner

RATE = 24000
FADE = round(FADE_S * RATE)


def join(parts: list[np.ndarray], chunk: int) -> np.ndarray:
    joiner, out = Joiner(RATE), []
    for n, part in enumerate(parts):
        out += [joiner.push(part[i : i + chunk]) for i in range(0, len(part), chunk)]
        out.append(joiner.end() if n == len(parts) - 1 else joiner.seam())
    return np.concatenate(out)


@pytest.mark.parametrize("chunk", [1, 7, 100, 1920, 10_000])
@pytest.mark.parametrize("length", [50, FADE, 5000])
def test_loud_parts_meet_in_silence(chunk: int, length: int) -> None:
    parts = [np.full(length, level, np.float32) for level in (0.9, -0.9, 0.9)]
    joined = join(parts, chunk)
    assert len(joined) == 3 * length
    for seam in (length, 2 * length):
        assert np.abs(np.diff(joined[seam - 1 : seam + 1])).max() < 0.01
    if length > 2 * FADE:
        middle = joined[length + FADE : 2 * length - FADE]
        np.testing.assert_array_equal(middle, np.full_like(middle, -0.9))
        assert joined[0] == np.float32(0.9) and joined[-1] == np.float32(0.9)
