"""How certain a difference is, by resampling the data again and again.

Requests of one run are not independent: they share prompts, and a machine that was slow for a while was slow for all of
them. So whole prompts are resampled, and whole stretches of time, and the wider of the two intervals counts.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt

_RESAMPLES = 4000
_BLOCKS = 6  # stretches of time in a run: long ones, as machines are slow for a while
_LEAST_BLOCKS = 4
_TRIM = 0.2  # cut off at each end, so that one stuck request does not move the typical value

Array = npt.NDArray[np.float64]
Statistic = Callable[[Array], Array]  # one figure for each row


@dataclass(frozen=True)
class Interval:
    value: float
    low: float
    high: float

    def widest(self, other: Interval) -> Interval:
        return Interval(self.value, min(self.low, other.low), max(self.high, other.high))


def mean(values: Array) -> Array:
    result: Array = values.mean(axis=-1)
    return result


def trimmed_mean(values: Array) -> Array:
    """The mean of each row without its smallest and largest fifth."""
    cut = int(_TRIM * values.shape[-1])
    ordered = np.sort(values, axis=-1)
    result: Array = ordered[..., cut : values.shape[-1] - cut].mean(axis=-1)
    return result


def paired_ratio(
    before: Sequence[tuple[str, float]], after: Sequence[tuple[str, float]], confidence: float, seed: int = 0
) -> Interval | None:
    """Typical relative change from before to after (0.05: five percent more), prompt against the same prompt.

    Both are (prompt, value) in order of time, values above 0. None when they share fewer than eight prompts.
    """
    sides = [_by_prompt(before), _by_prompt(after)]
    shared = sorted(sides[0].keys() & sides[1].keys())
    if len(shared) < 8:
        return None
    random = np.random.default_rng(seed)
    differences = np.array([np.mean(sides[1][p]) - np.mean(sides[0][p]) for p in shared])
    resampled = trimmed_mean(differences[random.integers(len(shared), size=(_RESAMPLES, len(shared)))])
    by_prompt = _interval(float(trimmed_mean(differences)), resampled, confidence, len(shared))
    by_time = _by_time(before, after, sides, set(shared), confidence, random)
    both = by_prompt if by_time is None else by_prompt.widest(Interval(by_prompt.value, by_time.low, by_time.high))
    return Interval(*(float(np.expm1(v)) for v in (both.value, both.low, both.high)))


def unpaired(
    before: Sequence[float],
    after: Sequence[float],
    statistic: Statistic,
    confidence: float,
    *,
    relative: bool,
    seed: int = 0,
) -> Interval | None:
    """Change of any statistic of a run, resampled in stretches of time. None with fewer than eight values a side."""
    if min(len(before), len(after)) < 8:
        return None
    random = np.random.default_rng(seed)
    sides = []
    for values in (before, after):
        array = np.asarray(values, np.float64)
        picks = _resample_time(len(array), random)
        sides.append((float(statistic(array[None])[0]), statistic(array[picks])))
    (old, olds), (new, news) = sides
    if relative:
        if old <= 0 or not (olds > 0).all():
            return None
        return _interval(new / old - 1, news / olds - 1, confidence, 2 * _BLOCKS - 1)
    return _interval(new - old, news - olds, confidence, 2 * _BLOCKS - 1)


def _by_prompt(rows: Sequence[tuple[str, float]]) -> dict[str, list[float]]:
    groups: dict[str, list[float]] = defaultdict(list)
    for prompt, value in rows:
        groups[prompt].append(float(np.log(value)))
    return groups


def _by_time(
    before: Sequence[tuple[str, float]],
    after: Sequence[tuple[str, float]],
    sides: list[dict[str, list[float]]],
    shared: set[str],
    confidence: float,
    random: np.random.Generator,
) -> Interval | None:
    """The interval of the change in residuals, values less their prompt's mean, resampled in stretches of time."""
    prompt_mean = {p: (np.mean(sides[0][p]) + np.mean(sides[1][p])) / 2 for p in shared}
    resampled, centre = [], []
    for rows in (before, after):
        rest = np.array([np.log(value) - prompt_mean[prompt] for prompt, value in rows if prompt in shared])
        if len(rest) < 2 * _LEAST_BLOCKS:
            return None
        # Residuals are too small, since the prompts' means come from the same data.
        repeats = len(rest) / len(shared)
        shrunk = np.sqrt(2 * repeats / (2 * repeats - 1))
        middle = float(trimmed_mean(rest))
        resampled.append(middle + shrunk * (trimmed_mean(rest[_resample_time(len(rest), random)]) - middle))
        centre.append(middle)
    return _interval(centre[1] - centre[0], resampled[1] - resampled[0], confidence, 2 * _BLOCKS - 1)


def _resample_time(count: int, random: np.random.Generator) -> npt.NDArray[np.int64]:
    """Indices [resamples, count]: random stretches of a run, joined to its length."""
    blocks = max(_LEAST_BLOCKS, min(_BLOCKS, count // 4))
    length = -(-count // blocks)
    starts = random.integers(count, size=(_RESAMPLES, blocks))
    picks: npt.NDArray[np.int64] = (starts[:, :, None] + np.arange(length)).reshape(_RESAMPLES, -1)[:, :count] % count
    return picks


def _interval(value: float, resampled: npt.NDArray[Any], confidence: float, units: int) -> Interval:
    """`units` is the number of independent stretches or prompts of which each resample consists."""
    tail = 50 * (1 - confidence)
    low, high = np.percentile(resampled, [tail, 100 - tail])
    widen = _widening(confidence, units - 1)
    return Interval(value, value + widen * (float(low) - value), value + widen * (float(high) - value))


def _widening(confidence: float, freedom: int) -> float:
    """How much wider an interval must be as its spread comes from few samples: Student's t over the normal."""
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    t = z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
    return math.sqrt((freedom + 1) / freedom) * t / z
