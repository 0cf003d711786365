"""The engine's figures as a front end shows them: counters, histograms and the GPU's own, in one message."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

import msgspec

from sonant.engine.telemetry import STEP_PHASES, PagedTotals, Tally

if TYPE_CHECKING:
    from sonant.engine.engine import Engine
    from sonant.serving.channel.engine_port import EnginePort


@dataclass(frozen=True)
class Counts:
    """A histogram: how many values lie at or below each bound and above the last, then the rest; and their sum."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float


@dataclass(frozen=True, kw_only=True)
class EngineReport:
    stats: dict[str, int | float]
    parkings: int
    warm_share: float
    frame_s: float
    phase_s: dict[str, Counts]
    tallies: dict[str, Counts]
    gpu: dict[str, float] | None
    front_ends: int
    broken_channels: int
    sessions: int
    paged: PagedTotals = field(default_factory=PagedTotals)
    host_weight_bytes: int = 0
    loaded_s: float = 0.0  # when the engine was, on the monotonic clock, which all processes of a machine share


class EngineReporter:
    """Makes reports, in the engine's process."""

    def __init__(self, engine: Engine) -> None:
        from sonant.serving.observability.gpu import GpuReader

        self.engine = engine
        self._gpu = GpuReader(engine.device)
        self._loaded_s = time.monotonic()

    def json(self, port: EnginePort) -> bytes:
        engine, telemetry = self.engine, self.engine.telemetry
        report = EngineReport(
            stats=asdict(engine.stats()),
            parkings=telemetry.parkings,
            warm_share=engine.warm_share,
            frame_s=engine.spec.frame_s,
            phase_s={phase: _counts(telemetry.phase_s[phase]) for phase in STEP_PHASES},
            tallies={name: _counts(tally) for name, tally in vars(telemetry).items() if isinstance(tally, Tally)},
            gpu=self._gpu.read(),
            front_ends=len(port.peers),
            broken_channels=port.broken,
            sessions=port.admission.sessions,
            paged=telemetry.paged,
            host_weight_bytes=engine.host_weight_bytes,
            loaded_s=self._loaded_s,
        )
        return msgspec.json.encode(report)


def _counts(tally: Tally) -> Counts:
    return Counts(tally.bounds, tuple(tally.counts), tally.total)
