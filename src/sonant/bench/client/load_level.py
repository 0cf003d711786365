"""A load level is a load and its results: the figures that the field reports, computed from its samples.

Latencies are of requests that succeeded; failures are counted, never averaged away. Underrun is the silence heard by a
listener that starts to play at the first chunk; it equals the pre-buffer that would have avoided all of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from sonant.bench.client.load import Load
from sonant.bench.client.sample import Sample

if TYPE_CHECKING:  # its module needs the bench extra, and this one does not
    from sonant.bench.client.worker_pool import Measured

GAPS_S = (0.05, 0.1, 0.2)  # the field's C50, C100 and C200
AUDIBLE_S = 0.1  # an underrun over this counts in the underrun rate
CLIENT_ERROR_S = 0.002  # above this at p99, the client is part of the result


@dataclass(frozen=True)
class Spread:
    mean: float
    p50: float
    p90: float
    p99: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread | None:
        if not values:
            return None
        p50, p90, p99 = np.percentile(values, [50, 90, 99])
        return cls(float(np.mean(values)), float(p50), float(p90), float(p99), float(max(values)))


@dataclass(frozen=True)
class ClientError:
    """How late the client itself was in stamping what arrived, and in sending what was due."""

    stamp_p50_s: float
    stamp_p99_s: float
    stamp_most_s: float
    start_p99_s: float

    @property
    def limited(self) -> bool:
        return max(self.stamp_p99_s, self.start_p99_s) > CLIENT_ERROR_S

    @classmethod
    def of(cls, errors_s: Sequence[float], samples: Sequence[Sample]) -> ClientError | None:
        stamps = Spread.of(errors_s)
        starts = Spread.of([s.late_s for s in samples])
        if stamps is None:
            return None
        return cls(stamps.p50, stamps.p99, stamps.most, starts.p99 if starts else 0.0)


@dataclass(frozen=True)
class Summary:
    requests: int
    ok: int
    failures: Mapping[str, int]
    ttfp_s: Spread | None
    e2el_s: Spread | None
    rtf: Spread | None
    underrun_s: Spread | None  # None if nothing was streamed, or the format does not tell
    underrun_rate: float | None  # share of streams with more than 100 ms of underrun
    gap_free: Mapping[str, float]  # by a number of ms: share of streams with no more underrun
    underruns: int | None  # how often listeners ran out of sound
    chunk_gap_s: Spread | None
    one_piece: int  # streams that came whole in their first chunk, where continuity tells nothing
    audio_s: float
    audio_s_per_s: float
    requests_per_s: float


@dataclass(frozen=True)
class LoadLevel:
    load: Load
    wall_s: float
    samples: list[Sample] = field(repr=False)
    client: ClientError | None
    server_metrics: Mapping[str, Any] | None = None  # how the server's own metrics changed
    interrupted: bool = False
    origin_s: float = 0.0  # the level's start, on the samples' clock

    @classmethod
    def of(cls, measured: Measured, server_metrics: Mapping[str, Any] | None = None) -> LoadLevel:
        client = ClientError.of(measured.errors_s, measured.samples)
        return cls(
            load=measured.load,
            wall_s=measured.wall_s,
            samples=measured.samples,
            client=client,
            server_metrics=server_metrics,
            interrupted=measured.interrupted,
            origin_s=measured.origin_s,
        )

    @cached_property
    def good(self) -> list[Sample]:
        return [s for s in self.samples if s.ok]

    @cached_property
    def summary(self) -> Summary:
        good = self.good
        heard = [h for h in (s.heard for s in good) if h is not None]
        underruns_s = [h.gap_s for h in heard]
        audio_s = sum(s.audio_s for s in good)
        wall_s = self.wall_s or float("inf")
        return Summary(
            requests=len(self.samples),
            ok=len(good),
            failures=dict(Counter(s.kind for s in self.samples if not s.ok)),
            ttfp_s=Spread.of([s.ttfp_s for s in good]),
            e2el_s=Spread.of([s.end_s for s in good]),
            rtf=Spread.of([s.rtf for s in good]),
            underrun_s=Spread.of(underruns_s),
            underrun_rate=_share([u > AUDIBLE_S for u in underruns_s]),
            gap_free={
                f"{1e3 * g:g}": share for g in GAPS_S if (share := _share([u <= g for u in underruns_s])) is not None
            },
            underruns=sum(h.gaps for h in heard) if heard else None,
            chunk_gap_s=Spread.of([gap for s in good if s.streamed for gap in s.chunk_gaps_s]),
            one_piece=sum(s.streamed and len(s.chunk_starts_s) == 1 for s in good),
            audio_s=audio_s,
            audio_s_per_s=audio_s / wall_s,
            requests_per_s=len(good) / wall_s,
        )


def _share(truths: Sequence[bool]) -> float | None:
    return sum(truths) / len(truths) if truths else None
