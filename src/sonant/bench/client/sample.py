"""What is known about one request of a load test, and how that is stored.

Times are in seconds: `started_s` on the machine's monotonic clock, all others from the request's start.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from itertools import pairwise
from typing import Any

from sonant.audio.continuity import Continuity, continuity

SAME_CHUNK_S = 0.001  # reads closer than this are one chunk that the network split


class Failure(StrEnum):
    """Why a request does not count as speech."""

    CONNECT = "connect"  # refused, unreachable, or no TLS
    TIMEOUT = "timeout"
    STATUS = "status"  # an answer other than 200
    PROTOCOL = "protocol"  # not HTTP, not SSE, or not the sound that was asked for
    CUT = "cut"  # the answer broke off before its end
    EMPTY = "empty"  # 200 without a single sample
    SERVER = "server"  # an error event inside the stream
    STOPPED = "stopped"  # we hung up because the run was interrupted


@dataclass(frozen=True)
class Sample:
    prompt: str
    started_s: float
    late_s: float = 0.0  # how long after its due time an open-loop request was begun
    connect_s: float = 0.0
    first_byte_s: float | None = None  # when the body began, if only with the header of a sound file
    end_s: float = 0.0
    arrivals_s: tuple[float, ...] = ()  # when reads brought sound
    durations_s: tuple[float, ...] | None = ()  # how much sound each of them brought; None if the format does not tell
    audio_s: float = 0.0
    status: int | None = None
    failure: Failure | None = None
    detail: str = ""
    streamed: bool = True
    sample_rate: int = 0
    channels: int = 1
    sound: bytes = field(default=b"", repr=False)  # the body's sound as sent, when it was kept

    @property
    def ok(self) -> bool:
        return self.failure is None

    @property
    def kind(self) -> str:
        """How the failure is counted."""
        return f"status {self.status}" if self.failure is Failure.STATUS else str(self.failure)

    @property
    def ttfp_s(self) -> float:
        """Time to the first sound, not to a header."""
        return self.arrivals_s[0]

    @property
    def rtf(self) -> float:
        return self.end_s / self.audio_s

    @cached_property
    def heard(self) -> Continuity | None:
        """What a listener hears that starts to play at the first chunk; None if that is not known."""
        if not self.streamed or self.durations_s is None or not self.arrivals_s:
            return None
        return continuity(self.arrivals_s, self.durations_s)

    @property
    def chunk_starts_s(self) -> list[float]:
        starts: list[float] = []
        last = float("-inf")
        for at_s in self.arrivals_s:
            if at_s - last > SAME_CHUNK_S:
                starts.append(at_s)
            last = at_s
        return starts

    @property
    def chunk_gaps_s(self) -> list[float]:
        return [b - a for a, b in pairwise(self.chunk_starts_s)]

    def to_json(self, origin_s: float) -> dict[str, Any]:
        """`origin_s` is the level's start, which `started_s` is relative to in files."""
        heard = self.heard
        return {
            "prompt": self.prompt,
            "started_s": round(self.started_s - origin_s, 6),
            "late_s": round(self.late_s, 6),
            "connect_s": round(self.connect_s, 6),
            "first_byte_s": _rounded(self.first_byte_s),
            "ttfp_s": _rounded(self.ttfp_s if self.arrivals_s else None),
            "end_s": round(self.end_s, 6),
            "audio_s": round(self.audio_s, 6),
            "underrun_s": _rounded(heard.gap_s if heard else None),
            "underruns": heard.gaps if heard else None,
            "status": self.status,
            "failure": self.failure,
            "detail": self.detail,
            "streamed": self.streamed,
            "sample_rate": self.sample_rate,
            "arrivals_s": [round(t, 6) for t in self.arrivals_s],
            "durations_s": None if self.durations_s is None else [round(d, 6) for d in self.durations_s],
        }

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Sample:
        durations = row["durations_s"]
        return cls(
            prompt=row["prompt"],
            started_s=row["started_s"],
            late_s=row["late_s"],
            connect_s=row["connect_s"],
            first_byte_s=row["first_byte_s"],
            end_s=row["end_s"],
            arrivals_s=tuple(row["arrivals_s"]),
            durations_s=None if durations is None else tuple(durations),
            audio_s=row["audio_s"],
            status=row["status"],
            failure=Failure(row["failure"]) if row["failure"] else None,
            detail=row["detail"],
            streamed=row["streamed"],
            sample_rate=row["sample_rate"],
        )


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 6)
