"""How fast the engine itself is: streams through the public API, no network in between.

Every request runs for a fixed number of frames, so random weights measure the same work as real ones. The floor
beside each figure is the time it takes only to read the weights once a frame at the device's copy bandwidth.
"""

from __future__ import annotations

import asyncio
import platform
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import torch

from sonant.audio.continuity import Continuity, continuity
from sonant.engine.engine import Engine
from sonant.types import Sampling

TEXT = "The quick brown fox jumps over the lazy dog while seven wise owls watch from the old oak tree."


@dataclass(frozen=True)
class StreamResult:
    first_audio_s: float
    total_s: float
    audio_s: float
    continuity: Continuity

    @property
    def real_time_factor(self) -> float:
        return self.total_s / self.audio_s


@dataclass(frozen=True)
class Level:
    streams: int
    wall_s: float
    frame_ms: float  # wall time for each frame step, codec included
    floor_ms: float
    first_audio_p50_ms: float
    first_audio_p99_ms: float
    rtf_p50: float
    rtf_p99: float
    audio_s_per_s: float
    streams_with_gaps: int
    worst_prebuffer_ms: float


@dataclass(frozen=True)
class Report:
    device: str
    torch: str
    python: str
    copy_gb_per_s: float
    weight_gb_per_frame: float
    memory_gb: float
    frames: int
    levels: list[Level]

    def to_json(self) -> dict[str, object]:
        return asdict(self)


async def _one(engine: Engine, frames: int, seed: int) -> StreamResult:
    started = time.monotonic()
    arrivals: list[float] = []
    durations: list[float] = []
    async for chunk in engine.stream(TEXT, seed=seed, max_frames=frames, sampling=Sampling()):
        arrivals.append(time.monotonic() - started)
        durations.append(len(chunk.samples) / chunk.sample_rate)
    return StreamResult(arrivals[0], arrivals[-1], sum(durations), continuity(arrivals, durations))


async def _level(engine: Engine, streams: int, frames: int) -> tuple[float, list[StreamResult]]:
    started = time.monotonic()
    results = await asyncio.gather(*(_one(engine, frames, seed) for seed in range(streams)))
    return time.monotonic() - started, results


def copy_bandwidth(device: torch.device) -> float:
    """Bytes a second of a large copy, read and written, the ceiling that weights are read at."""
    size = (1 << 30) if device.type == "cuda" else (1 << 27)
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    best = float("inf")
    for _ in range(5):
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        start = time.perf_counter()
        target.copy_(source)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        best = min(best, time.perf_counter() - start)
    return 2 * size / best


def percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def run(engine: Engine, streams: Sequence[int], frames: int, warmup_frames: int = 8) -> Report:
    bandwidth = copy_bandwidth(engine.device)
    weight_bytes = engine.model.spec.frame_weight_bytes
    levels = []
    for count in streams:
        asyncio.run(_level(engine, count, warmup_frames))
        wall_s, results = asyncio.run(_level(engine, count, frames))
        first = [r.first_audio_s for r in results]
        rtf = [r.real_time_factor for r in results]
        levels.append(
            Level(
                streams=count,
                wall_s=wall_s,
                frame_ms=1e3 * wall_s / frames,
                floor_ms=1e3 * weight_bytes / bandwidth,
                first_audio_p50_ms=1e3 * percentile(first, 0.5),
                first_audio_p99_ms=1e3 * percentile(first, 0.99),
                rtf_p50=percentile(rtf, 0.5),
                rtf_p99=percentile(rtf, 0.99),
                audio_s_per_s=sum(r.audio_s for r in results) / wall_s,
                streams_with_gaps=sum(r.continuity.gaps > 0 for r in results),
                worst_prebuffer_ms=1e3 * max(r.continuity.prebuffer_s for r in results),
            )
        )
    cuda = engine.device.type == "cuda"
    return Report(
        device=torch.cuda.get_device_name(engine.device) if cuda else platform.processor() or platform.machine(),
        torch=torch.__version__,
        python=platform.python_version(),
        copy_gb_per_s=bandwidth / 1e9,
        weight_gb_per_frame=weight_bytes / 1e9,
        memory_gb=torch.cuda.max_memory_allocated(engine.device) / 1e9 if cuda else 0.0,
        frames=frames,
        levels=levels,
    )


def table(report: Report) -> str:
    head = (
        f"{report.device}, torch {report.torch}: copy {report.copy_gb_per_s:,.0f} GB/s, "
        f"{report.weight_gb_per_frame:.2f} GB of weights a frame, {report.frames} frames a request, "
        f"memory {report.memory_gb:.1f} GB"
    )
    columns = "streams  ms/frame   floor  first p50/p99 ms      RTF p50/p99   audio-s/s   with gaps  pre-buffer ms"
    lines = [
        f"{v.streams:7d} {v.frame_ms:9.2f} {v.floor_ms:7.2f} {v.first_audio_p50_ms:9.1f}/{v.first_audio_p99_ms:<8.1f}"
        f" {v.rtf_p50:7.3f}/{v.rtf_p99:<7.3f} {v.audio_s_per_s:9.1f} {v.streams_with_gaps:11d}"
        f" {v.worst_prebuffer_ms:13.1f}"
        for v in report.levels
    ]
    return "\n".join([head, columns, *lines])
