"""How the listeners of a replica fare now, in figures that Ray carries to where replicas are added and removed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

from sonant.engine.telemetry import EngineStats
from sonant.serving.channel.engine_link import EngineLink
from sonant.serving.observability.engine_report import Counts

GAPS, PROMISE = "gap_share", "max_first_audio_s"


class ListenerLoad:
    """Polled by one caller: each answer covers the time since the last."""

    def __init__(self, link: EngineLink, max_first_audio_s: float) -> None:
        self.link, self.max_first_audio_s = link, max_first_audio_s
        self._seen = (0, 0)  # chunks in all, and those that came late

    async def figures(self) -> dict[str, float]:
        """The engine's state, the share of chunks that came too late since the last call, and the promised time to
        first sound; nothing while there is no engine."""
        report = await self.link.report()
        if report is None:
            return {}
        chunks, late = _chunks(report.tallies["frames_ahead"])
        before, self._seen = self._seen, (chunks, late)
        if chunks < before[0]:  # A new engine has begun at zero.
            before = (0, 0)
        new = chunks - before[0]
        share = (late - before[1]) / new if new else 0.0
        return {**{name: float(value) for name, value in report.stats.items()}, GAPS: share,
                PROMISE: self.max_first_audio_s}  # fmt: skip


def stats_of(figures: Mapping[str, float]) -> EngineStats:
    """Turn the figures back into the engine's state. Ray has averaged them over time, so counts are rounded."""
    values = {}
    for f in fields(EngineStats):
        value = figures[f.name]
        values[f.name] = round(value) if f.type == "int" else value
    return EngineStats(**values)  # type: ignore[arg-type]


def _chunks(ahead: Counts) -> tuple[int, int]:
    """The number of chunks in all, and of those that found their listener out of sound: with no frame ahead."""
    return sum(ahead.counts), ahead.counts[ahead.bounds.index(0.0)]
