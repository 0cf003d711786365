"""The metrics of several replicas as one page: the same families, each sample labelled with its replica."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families


def merged(pages: Mapping[str, bytes]) -> bytes:
    """`pages` by replica."""
    families: dict[str, Metric] = {}
    for replica, page in sorted(pages.items()):
        for family in text_string_to_metric_families(page.decode()):
            whole = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
            whole.samples += [s._replace(labels={**s.labels, "replica": replica}) for s in family.samples]
    registry = CollectorRegistry()
    registry.register(_Families(families))
    return generate_latest(registry)


class _Families:
    def __init__(self, families: Mapping[str, Metric]) -> None:
        self.families = families

    def collect(self) -> list[Metric]:
        return list(self.families.values())
