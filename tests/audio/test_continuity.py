"""The simulated listener counts the gaps that a real one would hear."""

from __future__ import annotations

import pytest

from sonant.audio.continuity import continuity


@pytest.mark.parametrize(
    ("arrivals", "durations", "gaps", "gap_s", "prebuffer_s"),
    [
        ([], [], 0, 0.0, 0.0),
        ([0.5], [1.0], 0, 0.0, 0.0),
        ([0.5, 0.6, 2.0], [1.0, 1.0, 1.0], 0, 0.0, 0.0),
        ([0.0, 1.5], [1.0, 1.0], 1, 0.5, 0.5),
        ([0.0, 1.5, 3.0], [1.0, 1.0, 1.0], 2, 1.0, 1.0),
        ([0.0, 1.5, 1.6, 1.7], [1.0, 1.0, 1.0, 1.0], 1, 0.5, 0.5),
    ],
)
def test_gaps(arrivals: list[float], durations: list[float], gaps: int, gap_s: float, prebuffer_s: float) -> None:
    got = continuity(arrivals, durations)
    assert (got.gaps, pytest.approx(got.gap_s), pytest.approx(got.prebuffer_s)) == (gaps, gap_s, prebuffer_s)
