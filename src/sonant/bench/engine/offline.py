"""How fast the engine itself is: streams through the public API, no network in between.

Every request runs for a fixed number of frames, so random weights cause the same work as real ones. The floor beside
each figure is the time that reading the weights once a frame takes alone, at the device's copy bandwidth.
"""

from __future__ import annotations

import asyncio
import platform
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any

import torch

from sonant.bench.client.load_level import Spread
from sonant.bench.client.sample import Sample
from sonant.bench.engine.breakdown import Breakdown
from sonant.bench.engine.device_clock import copy_bandwidth
from sonant.bench.engine.listener import listen
from sonant.bench.engine.startup import Startup
from sonant.bench.engine.sustained_listeners import SustainedListeners
from sonant.bench.report.results import FORMAT
from sonant.engine.engine import Engine
from sonant.errors import EngineError

_WAVES = 2  # saturated requests for each row


@dataclass(frozen=True)
class StreamLevel:
    streams: int
    wall_s: float
    frame_ms: float  # wall time for each frame step, prefill and codec included
    floor_ms: float
    first_audio_p50_ms: float
    first_audio_p99_ms: float
    rtf_p50: float
    rtf_p99: float
    audio_s_per_s: float
    streams_with_gaps: int
    worst_prebuffer_ms: float
    memory_gb: float  # the peak so far: allocated on the device, or the process's memory on the CPU; 0: unknown


@dataclass(frozen=True)
class Saturated:
    """Requests for files, twice as many as rows: the engine's throughput when nothing must be in time."""

    rows: int
    requests: int
    wall_s: float
    audio_s_per_s: float


@dataclass
class OfflineReport:
    device: str
    torch: str
    python: str
    copy_gb_per_s: float
    weight_gb_per_frame: float
    frames: int
    made_at: str
    levels: list[StreamLevel] = field(default_factory=list)
    breakdowns: list[Breakdown] = field(default_factory=list)
    saturated: Saturated | None = None
    held: SustainedListeners | None = None
    startup: Startup | None = None

    @classmethod
    def on(cls, engine: Engine, frames: int) -> OfflineReport:
        cuda = engine.device.type == "cuda"
        return cls(
            device=torch.cuda.get_device_name(engine.device) if cuda else platform.processor() or platform.machine(),
            torch=torch.__version__,
            python=platform.python_version(),
            copy_gb_per_s=copy_bandwidth(engine.device) / 1e9,
            weight_gb_per_frame=engine.model.spec.frame_weight_bytes / 1e9,
            frames=frames,
            made_at=datetime.now(UTC).isoformat(timespec="seconds"),
        )

    def to_json(self) -> dict[str, Any]:
        data = asdict(self)
        for row, breakdown in zip(data["breakdowns"], self.breakdowns, strict=True):
            for part, timed in zip(row["parts"], breakdown.parts, strict=True):
                part["share_of_floor"] = timed.share
        return {"format": FORMAT, "kind": "offline", **data}


def run(
    engine: Engine,
    streams: Sequence[int],
    frames: int,
    warmup_frames: int = 8,
    on_level: Callable[[StreamLevel], None] = lambda level: None,
) -> OfflineReport:
    """Measure a level for each number of streams that start at once → the report of the whole run."""
    report = OfflineReport.on(engine, frames)
    for count in streams:
        _together(engine, count, warmup_frames, live=True)
        wall_s, samples = _together(engine, count, frames, live=True)
        report.levels.append(_level(engine, samples, wall_s, report))
        on_level(report.levels[-1])
    return report


def saturate(engine: Engine, frames: int) -> Saturated:
    rows = engine.stats().rows
    wall_s, samples = _together(engine, _WAVES * rows, frames, live=False)
    return Saturated(rows, len(samples), wall_s, sum(s.audio_s for s in samples) / wall_s)


def _together(engine: Engine, count: int, frames: int, *, live: bool) -> tuple[float, list[Sample]]:
    async def all_of_them() -> list[Sample]:
        return await asyncio.gather(*(listen(engine, frames, seed, live=live) for seed in range(count)))

    began_s = time.perf_counter()
    samples = asyncio.run(all_of_them())
    wall_s = time.perf_counter() - began_s
    if bad := next((s for s in samples if not s.ok), None):
        raise EngineError(f"one of {count} streams failed: {bad.detail}")
    return wall_s, samples


def _level(engine: Engine, samples: Sequence[Sample], wall_s: float, report: OfflineReport) -> StreamLevel:
    first, rtf = Spread.of([s.ttfp_s for s in samples]), Spread.of([s.rtf for s in samples])
    heard = [s.heard for s in samples if s.heard is not None]
    assert first is not None and rtf is not None
    audio_s = sum(s.audio_s for s in samples)
    steps = max(s.audio_s for s in samples) / engine.model.spec.frame_s  # fewer than asked for if the model stopped
    return StreamLevel(
        streams=len(samples),
        wall_s=wall_s,
        frame_ms=1e3 * wall_s / steps,
        floor_ms=1e3 * report.weight_gb_per_frame / report.copy_gb_per_s,
        first_audio_p50_ms=1e3 * first.p50,
        first_audio_p99_ms=1e3 * first.p99,
        rtf_p50=rtf.p50,
        rtf_p99=rtf.p99,
        audio_s_per_s=audio_s / wall_s,
        streams_with_gaps=sum(h.gaps > 0 for h in heard),
        worst_prebuffer_ms=1e3 * max(h.prebuffer_s for h in heard),
        memory_gb=_memory_gb(engine.device),
    )


def _memory_gb(device: torch.device) -> float:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 1e9
    if sys.platform == "win32":
        return 0.0
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak * (1 if sys.platform == "darwin" else 1024) / 1e9
