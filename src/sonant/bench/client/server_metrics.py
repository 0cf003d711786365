"""How the server's Prometheus metrics change over a load level.

A client sees only when bytes arrive. Steps, tokens and queues, which explain why, are known to the server.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sonant.bench.client.fetch import fetch
from sonant.bench.client.target import Target
from sonant.histogram import quantile

Key = tuple[str, str, float | None]  # (series, suffix of the sample's name, a bucket's upper bound)


@dataclass(frozen=True)
class Scrape:
    """All series' values at one time. A series is a family with its labels: `steps{phase="prefill"}`."""

    kinds: Mapping[str, str]  # from a series to counter, gauge, histogram, …
    values: Mapping[Key, float]


def scrape(target: Target) -> Scrape | None:
    """The metrics as they are now; None if the server has none, or they cannot be parsed."""
    page = fetch(target, "/metrics")
    if page is None:
        return None
    try:
        return parse(page.decode("utf-8"))
    except UnicodeDecodeError:
        return None


def parse(text: str) -> Scrape | None:
    from prometheus_client.parser import text_string_to_metric_families

    kinds: dict[str, str] = {}
    values: dict[Key, float] = {}
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                suffix = sample.name.removeprefix(family.name)
                if suffix == "_created":
                    continue
                labels = ",".join(f'{k}="{v}"' for k, v in sorted(sample.labels.items()) if k != "le")
                series = f"{family.name}{{{labels}}}" if labels else family.name
                kinds[series] = family.type
                values[series, suffix, float(sample.labels["le"]) if suffix == "_bucket" else None] = sample.value
    except ValueError:  # not Prometheus' format
        return None
    return Scrape(kinds, values) if kinds else None


def difference(before: Scrape | None, after: Scrape | None, wall_s: float) -> dict[str, Any] | None:
    """Series that changed: counters with their rate, histograms with mean and quantiles, gauges with the last value."""
    if before is None or after is None:
        return None
    moved: dict[str, Any] = {}
    for name, kind in after.kinds.items():
        if kind in ("histogram", "summary"):
            entry = _histogram(name, before, after)
        elif kind == "counter":
            entry = _counter(name, before, after, wall_s)
        else:
            entry = _gauge(name, before, after, wall_s)
        if entry is not None:
            moved[name] = entry
    return moved


def _delta(before: Scrape, after: Scrape, key: Key) -> float:
    return after.values.get(key, 0.0) - before.values.get(key, 0.0)


def _counter(name: str, before: Scrape, after: Scrape, wall_s: float) -> dict[str, Any] | None:
    suffix = "_total" if (name, "_total", None) in after.values else ""
    grown = _delta(before, after, (name, suffix, None))
    return {"kind": "counter", "grown": grown, "per_s": grown / wall_s} if grown and wall_s else None


def _gauge(name: str, before: Scrape, after: Scrape, wall_s: float) -> dict[str, Any] | None:
    """A gauge that changed. Some servers use gauges as counters, so its growth is given as a rate too."""
    now, grown = after.values.get((name, "", None)), _delta(before, after, (name, "", None))
    if now is None or not grown:
        return None
    return {"kind": "gauge", "now": now, "grown": grown, "per_s": grown / wall_s if wall_s else None}


def _histogram(name: str, before: Scrape, after: Scrape) -> dict[str, Any] | None:
    count = _delta(before, after, (name, "_count", None))
    if count <= 0:
        return None
    total = _delta(before, after, (name, "_sum", None))
    bounds = [b for family, suffix, b in after.values if family == name and suffix == "_bucket" and b is not None]
    buckets = {bound: _delta(before, after, (name, "_bucket", bound)) for bound in bounds}
    entry: dict[str, Any] = {"kind": "histogram", "count": count, "mean": total / count}
    for share in (0.5, 0.99):
        entry[f"p{100 * share:g}"] = quantile(buckets, share)
    return entry
