"""What listeners of a replica feel now, in numbers that Ray carries to where replicas are added and taken away."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

from sonant.engine.telemetry import EngineStats
from sonant.serving.channel.engine_link import EngineLink
from sonant.serving.observability.engine_report import Counts

GAPS, PROMISE = "gap_share", "max_first_audio_s"


class ListenerLoad:
    """Asked again and again by one caller, who learns what has happened since the last time."""

    def __init__(self, link: EngineLink, max_first_audio_s: float) -> None:
        self.link, self.max_first_audio_s = link, max_first_audio_s
        self._seen = (0, 0)  # chunks in all, and those that came late

    async def figures(self) -> dict[str, float]:
        """The engine's state, the share of chunks that came too late, the promise; nothing while there is no engine."""
        report = await self.link.report()
        if report is None:
            return {}
        chunks, late = _chunks(report.tallies["frames_ahead"])
        before, self._seen = self._seen, (chunks, late)
        if chunks < before[0]:  # Another engine began at nothing.
            before = (0, 0)
        new = chunks - before[0]
        share = (late - before[1]) / new if new else 0.0
        return {**{name: float(value) for name, value in report.stats.items()}, GAPS: share,
                PROMISE: self.max_first_audio_s}  # fmt: skip


def stats_of(figures: Mapping[str, float]) -> EngineStats:
    """The engine's state again. What was averaged over time is rounded where it counts."""
    values = {}
    for f in fields(EngineStats):
        value = figures[f.name]
        values[f.name] = round(value) if f.type == "int" else value
    return EngineStats(**values)  # type: ignore[arg-type]


def _chunks(ahead: Counts) -> tuple[int, int]:
    """In all, and those of which the listener had run out: no frame was ahead."""
    return sum(ahead.counts), ahead.counts[ahead.bounds.index(0.0)]
