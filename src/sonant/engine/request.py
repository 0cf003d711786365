"""The life of a request inside the engine.

    WAITING → PREFILL → SPEAKING → DRAINING → DONE
                 └─────────┴──── abort ─┴→ LEAVING → DONE     (LEAVING: launched steps still use its row)

Counters are of frames. `launched` runs ahead of what the host has seen: frames up to `launched` are on the
device, of those the codec has been given `voiced`, and `collected` have come back as codes. Only `total`, known
once a stop came back, says which of them are speech.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Protocol

from sonant.engine.blocks import Allocation
from sonant.models.base import Ints, Prompt
from sonant.types import AudioChunk, FinishReason, SpeechRequest


class Phase(Enum):
    WAITING = auto()
    PREFILL = auto()
    SPEAKING = auto()
    DRAINING = auto()
    LEAVING = auto()
    DONE = auto()


class Sink(Protocol):
    """Where a request's sound goes. Called on the step thread: must not block."""

    def push(self, chunk: AudioChunk) -> None: ...
    def finish(self, reason: FinishReason) -> None: ...
    def fail(self, error: Exception) -> None: ...


@dataclass(eq=False)
class Request:
    speech: SpeechRequest
    prompt: Prompt
    sink: Sink
    arrival_s: float
    first_audio_s: float | None = None  # set beforehand for a later part of a text already playing
    heard_s: float = 0.0  # sound that the listener got before this request's own
    phase: Phase = Phase.WAITING
    row: int = -1
    allocation: Allocation | None = None
    prefilled: int = 0
    preroll: int = 0  # next reference frame for the codec; -1: it has heard them all
    launched: int = 0
    voiced: int = 0
    collected: int = 0
    emitted: int = 0
    total: int | None = None
    reason: FinishReason = FinishReason.STOP
    codes: list[Ints] = field(default_factory=list)  # collected but not yet emitted with their sound
    steps_in_flight: int = 0
    abort_requested: bool = False

    @property
    def prefill_length(self) -> int:
        return self.prompt.length - 1

    @property
    def positions(self) -> int:
        """The most positions it can come to hold in the cache."""
        return self.prompt.length + self.prompt.max_frames

    @property
    def has_frames_to_draw(self) -> bool:
        # the draw after the last frame tells a stop from a cut
        return self.phase is Phase.SPEAKING and self.launched <= self.prompt.max_frames

    @property
    def complete(self) -> bool:
        return self.phase is Phase.DRAINING and self.total is not None and self.emitted >= self.total
