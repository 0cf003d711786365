"""One line a request, for operators: who asked for how much, with which voice, how soon it sounded, how it ended.

Handlers fill in the record in a request's state; whoever made it writes it when the request is over. It never holds a
word of what was to be spoken, nor an API key.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from typing import Any, Protocol

logger = logging.getLogger("sonant.requests")

# Machines request these every few seconds for ever, so they are logged only with `--log-level debug`.
_PROBES = frozenset({"/health", "/ready", "/metrics", "/v1/engine/stats"})
_FILES = "/page/"
_SHOWN_CHARS = 64  # of a voice's name
_PATH_CHARS = 100  # of a path that no route has


@dataclass
class RequestRecord:
    id: str
    client: str  # a key's mark, or an address
    route: str
    probe: bool = False
    traceparent: str | None = None
    tracestate: str | None = None
    started_ns: int = field(default_factory=time.time_ns)
    started_s: float = field(default_factory=time.monotonic)
    asked_voice: str | None = None  # valid or not
    # What handlers fill in; seconds are from the start
    status: int | None = None
    voice: str | None = None  # `asked_voice`, once it is known to be valid
    characters: int | None = None
    queued_s: float | None = None  # when the engine had the request
    first_sound_s: float | None = None
    audio_s: float | None = None
    outcome: str | None = None  # see `metrics.OUTCOMES`; for other routes ok, bad_request, refused, error
    seconds: float | None = None  # in all

    @property
    def now_s(self) -> float:
        return time.monotonic() - self.started_s

    @property
    def rtf(self) -> float | None:
        return self.seconds / self.audio_s if self.seconds is not None and self.audio_s else None

    def asks(self, fields: Any, characters: int) -> None:
        """Note what a speech body asks for, but not its text."""
        self.characters, self.asked_voice = characters, _voice(fields)

    def opened(self) -> None:
        """The engine has accepted the request, so its voice is valid."""
        self.voice, self.queued_s = self.asked_voice, self.now_s

    def sounded(self) -> None:
        if self.first_sound_s is None:
            self.first_sound_s = self.now_s

    def ended(self) -> None:
        self.seconds = self.now_s
        if self.outcome is None:
            self.outcome = _outcome(self.status)

    def shown(self) -> dict[str, str | int | float]:
        """The facts in the order of the line, without those that are not known."""
        facts: dict[str, str | int | float | None] = {
            "id": self.id,
            "client": self.client,
            "route": self.route,
            "status": self.status,
            "voice": self.voice,
            "characters": self.characters,
            "first_sound_s": _rounded(self.first_sound_s),
            "audio_s": _rounded(self.audio_s),
            "rtf": _rounded(self.rtf),
            "seconds": _rounded(self.seconds),
            "outcome": self.outcome,
        }
        return {name: value for name, value in facts.items() if value is not None}


class Tracer(Protocol):
    def trace(self, record: RequestRecord) -> None: ...

    def close(self) -> None: ...


class RequestLog:
    def __init__(self, tracer: Tracer | None = None) -> None:
        self.tracer = tracer
        self.cutting_off = False  # True: a shutdown cuts requests off, which is why they fail from now on

    def write(self, record: RequestRecord) -> None:
        record.ended()
        if self.cutting_off and record.outcome == "error":
            record.outcome = "shutdown"
        logger.log(logging.DEBUG if record.probe else logging.INFO, "request", extra={"request": record.shown()})
        if self.tracer is not None and not record.probe:
            self.tracer.trace(record)

    def close(self) -> None:
        if self.tracer is not None:
            self.tracer.close()


def is_probe(path: str) -> bool:
    return path in _PROBES or path.startswith(_FILES)


def route_name(scope: Any) -> str:
    """The route as it is written in the docs; a path that no route has is cut short."""
    method = scope.get("method", "WS")
    path = getattr(scope.get("route"), "path", None) or scope["path"][:_PATH_CHARS]
    return f"{method} {path}"


def _voice(fields: Any) -> str | None:
    if fields.speakers is not None:
        return f"{len(fields.speakers)} speakers"
    if fields.ref_audio is not None:
        return "clip"
    if fields.speaker_embedding is not None:
        return "embedding"
    name = getattr(fields.voice, "id", fields.voice)
    return name if name is None else str(name)[:_SHOWN_CHARS]


def _outcome(status: int | None) -> str:
    if status is None:
        return "client_gone"
    if status < 400:
        return "ok"
    if status in (429, 503):
        return "refused"
    return "bad_request" if status < 500 else "error"


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)
