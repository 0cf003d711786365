"""A quantile computed from buckets is as close to the true one as the buckets allow."""

from __future__ import annotations

import math
import random

from sonant.histogram import quantile


def test_a_quantile_lies_in_the_bucket_of_the_true_one() -> None:
    bounds = (0.01, 0.05, 0.1, 0.5, 1.0, math.inf)
    for seed in range(50):
        values = sorted(random.Random(seed).expovariate(5) for _ in range(1 + seed * 3))
        buckets = {bound: float(sum(v <= bound for v in values)) for bound in bounds}
        for share in (0.5, 0.99):
            true = values[max(0, math.ceil(share * len(values)) - 1)]
            found = quantile(buckets, share)
            low = max((b for b in bounds if b < true), default=0.0)
            high = min(b for b in bounds if b >= true)
            assert found is not None and low <= found <= min(high, 1.0), f"seed {seed}"
    assert quantile({}, 0.5) is None and quantile({1.0: 0.0, math.inf: 0.0}, 0.5) is None


def test_within_a_bucket_observations_are_taken_as_evenly_spread() -> None:
    assert quantile({1.0: 0.0, 2.0: 10.0, math.inf: 10.0}, 0.25) == 1.25
    assert quantile({1.0: 5.0, 2.0: 5.0, math.inf: 10.0}, 0.9) == 2.0  # no more is known than that it is larger
