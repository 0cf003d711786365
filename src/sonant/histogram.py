"""Quantiles of histograms that are kept as in Prometheus: as the number of observations at or below each bound."""

from __future__ import annotations

import math
from collections.abc import Mapping

Buckets = Mapping[float, float]  # upper bound → how many observations lay at or below it


def quantile(buckets: Buckets, share: float) -> float | None:
    """The value that `share` of the observations do not exceed, taken as evenly spread within a bucket.

    Beyond the largest finite bound the value is not known, and that bound is returned. None if nothing was observed.
    """
    bounds = sorted(buckets)
    total = buckets[bounds[-1]] if bounds else 0.0
    if total <= 0:
        return None
    rank, below_bound, below = share * total, 0.0, 0.0
    for bound in bounds:
        if buckets[bound] >= rank and buckets[bound] > below:
            if math.isinf(bound):
                return below_bound
            return below_bound + (bound - below_bound) * (rank - below) / (buckets[bound] - below)
        below_bound, below = bound, buckets[bound]
    return below_bound
