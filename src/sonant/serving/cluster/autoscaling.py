"""How many replicas there should be: enough that a burst would still be heard in time, and no listener runs out of
sound.

Ray's controller calls this every few seconds, with what each replica has reported of its listeners
(`listener_load.py`), and keeps to the bounds and delays of the deployment's own settings.

The number of requests says little: a hundred long texts that are far ahead of their listeners lend their rows. What
counts is the time to first sound that the engine predicts. A replica takes long to start, so the prediction looks
ahead: what if a quarter of the rows were wanted at once? And before one is removed: what if the others had its
listeners as well?
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sonant.serving.cluster.listener_load import GAPS, PROMISE, stats_of

if TYPE_CHECKING:
    from ray.serve.config import AutoscalingContext

BURST_SHARE = 0.25  # of the rows
LATE_SHARE = 0.5  # of the promised time to first sound: what a burst may take
EARLY_SHARE = 0.25  # … and what it may take with one replica fewer
GAPS_UP, GAPS_DOWN = 0.01, 0.001  # share of chunks whose listener had run out of sound
_MOST_GROWTH = 2.0  # factor, at a time

Figures = Mapping[str, float]


def replicas_wanted(context: AutoscalingContext) -> tuple[int, dict[str, Any]]:
    """Ray's autoscaling policy; in a Serve config: `sonant.serving.cluster.autoscaling:replicas_wanted`."""
    told = _by_replica(context.aggregated_metrics or {})
    return wanted(context.current_num_replicas, told), {}


def wanted(replicas: int, told: Sequence[Figures]) -> int:
    """Replicas that have reported nothing yet are assumed to be as loaded as the others."""
    if not told:
        return replicas
    pressure = sum(_pressure(figures) for figures in told) / len(told)
    if pressure > 1:
        return math.ceil(replicas * min(pressure, _MOST_GROWTH))
    if replicas > 1 and all(_could_take_more(figures, replicas - 1) for figures in told):
        return replicas - 1
    return replicas


def _pressure(figures: Figures) -> float:
    """Over 1: a burst would wait too long, or sound runs out."""
    stats = stats_of(figures)
    late = stats.first_sound_s(math.ceil(BURST_SHARE * stats.rows)) / (LATE_SHARE * figures[PROMISE])
    return max(late, figures[GAPS] / GAPS_UP)


def _could_take_more(figures: Figures, others: int) -> bool:
    """Whether a replica could take its part of the listeners of one that is removed, and a burst on top."""
    stats = stats_of(figures)
    more = math.ceil((stats.running + stats.parked) / others + BURST_SHARE * stats.rows)
    return figures[GAPS] <= GAPS_DOWN and stats.first_sound_s(more) <= EARLY_SHARE * figures[PROMISE]


def _by_replica(metrics: Mapping[str, Mapping[Any, float]]) -> list[Figures]:
    replicas = {replica for values in metrics.values() for replica in values}
    whole = [{name: values[r] for name, values in metrics.items() if r in values} for r in replicas]
    return [figures for figures in whole if len(figures) == len(metrics)]
