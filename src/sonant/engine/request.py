"""The life of a request inside the engine. Only the methods here change it.

    WAITING → PREFILL → DECODING → DRAINING → DONE
                 │         ⇅            │
                 │       PARKED         │                      (PARKED: what was in its row lies aside, see parking.py)
                 └─────────┴──── abort ─┴→ LEAVING → DONE     (LEAVING: launched steps still use its row)

A parked request keeps its blocks. Steps that were launched before may still come back: they book frames and emit
sound, and may tell that it has ended: then it goes on as DRAINING, or, if all of it is there, is done without a row.

Steps are decode steps, frames are what they complete: with a delay pattern the first `delay_steps` complete none.
`launched` runs ahead of what the host has seen: frames up to `frames_launched` are on the device, of those the codec
has been given `vocoded`, and `collected` have come back. Only `total`, known once a stop came back, says which of them
are speech.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import Protocol

import numpy as np

from sonant.engine.blocks import Allocation
from sonant.models.prompt import Prompt
from sonant.models.status import Status
from sonant.types import AudioChunk, FinishReason, Frames, SpeechRequest

RUNNING = int(Status.RUNNING)  # what nearly every record says, so that it is worth a name that is found quickly


class State(Enum):
    WAITING = auto()
    PREFILL = auto()
    DECODING = auto()
    DRAINING = auto()
    PARKED = auto()
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
    delay_steps: int = 0
    queued_s: float = 0.0  # when the step thread was given it: a later part of a long text waits for those before it
    since_s: float = 0.0  # when it began to wait for a row: as it was queued, or parked
    first_audio_s: float | None = None
    heard_s: float = 0.0  # sound that the listener got before this request's own
    state: State = State.WAITING
    row: int = -1
    allocation: Allocation | None = None
    admitted_s: float = 0.0  # when it got its blocks
    row_s: float = 0.0  # when it got the row that it has
    tenure_at: int = 0  # steps launched when it has something to show for that row, and may be parked
    prefilled: int = 0
    preroll: int = 0  # next reference frame for the codec; -1: it has heard them all
    launched: int = 0
    frames_launched: int = 0
    vocoded: int = 0
    primed: int = 0  # steps that have come back and completed no frame, being before the first
    collected: int = 0
    emitted: int = 0
    total: int | None = None
    reason: FinishReason = FinishReason.STOP
    frames: list[Frames] = field(default_factory=list)  # collected but not yet emitted with their sound
    steps_in_flight: int = 0
    abort_requested: bool = False
    first_step_s: float | None = None  # when its first decode step had come back
    step_s: float | None = None  # from one decode step to the next, its mean; None: not at its end, or it had but one
    tries: int = 0  # that went wrong before this one
    held: list[AudioChunk] = field(default_factory=list)  # made, but not to be heard before the whole is known
    step_limit: int = field(init=False)  # decode steps that may be launched

    def __post_init__(self) -> None:
        # the step after the last frame tells a stop from a cut
        self.step_limit = self.prompt.max_frames + self.delay_steps + 1

    # What follows from it

    @property
    def prefill_length(self) -> int:
        return self.prompt.length - 1

    @property
    def positions(self) -> int:
        """The most positions it can come to hold in the cache."""
        return self.prefill_length + self.step_limit

    @property
    def has_steps_left(self) -> bool:
        return self.state is State.DECODING and self.launched < self.step_limit

    @property
    def complete(self) -> bool:
        over = self.state is State.DRAINING or self.state is State.PARKED
        return over and self.total is not None and self.emitted >= self.total

    @property
    def on_trial(self) -> bool:
        """Whether it may yet turn out to have gone wrong: nobody is to hear of it before. A listener cannot wait."""
        may_fail = self.prompt.bad_from is not None and self.tries < len(self.prompt.retries)
        return may_fail and not self.speech.live

    @property
    def went_wrong(self) -> bool:
        bad_from = self.prompt.bad_from
        return self.on_trial and bad_from is not None and (self.total or 0) >= bad_from

    # Before its row

    def enqueue(self) -> None:
        self.queued_s = self.since_s = time.monotonic()

    def continue_stream(self, first_audio_s: float | None, heard_s: float) -> None:
        """Its listener began to hear at `first_audio_s` and has been given so much; None: they wait anew."""
        self.first_audio_s, self.heard_s = first_audio_s, heard_s

    def hear(self, heard_s: float) -> None:
        """Its listener has been given so much before it, by now."""
        self.heard_s = heard_s

    def be_heard(self, now_s: float) -> None:
        """Its first sound has reached this end of a channel; later calls change nothing."""
        if self.first_audio_s is None:
            self.first_audio_s = now_s

    # Its row

    def admit(self, row: int, allocation: Allocation, tenure: int, now_s: float) -> None:
        """`tenure` is how many steps are launched for it before the row may go to another."""
        self.allocation, self.state, self.admitted_s = allocation, State.PREFILL, now_s
        self.prefilled = allocation.reused_tokens
        self._sit(row, tenure, now_s)

    def park(self, now_s: float) -> None:
        assert self.state is State.DECODING
        self.row, self.state, self.since_s = -1, State.PARKED, now_s

    def resume(self, row: int, tenure: int, now_s: float) -> None:
        assert self.state is State.PARKED
        self.state = State.DECODING if self.total is None else State.DRAINING
        self._sit(row, tenure, now_s)

    def _sit(self, row: int, tenure: int, now_s: float) -> None:
        self.row, self.row_s, self.tenure_at = row, now_s, self.launched + tenure

    # Planned, launched and collected

    def plan_prefill(self, tokens: int) -> tuple[int, int]:
        """The next so many positions [start, end)."""
        start, self.prefilled = self.prefilled, self.prefilled + tokens
        return start, self.prefilled

    def preroll_up_to(self, next_frame: int) -> None:
        """The codec has been given its reference up to that frame; -1: all of it, and decoding begins."""
        self.preroll = next_frame
        if next_frame < 0:
            self.state = State.DECODING

    def plan_step(self) -> None:
        self.launched += 1
        if self.launched > self.delay_steps:
            self.frames_launched += 1

    def plan_codec(self, frames: int) -> None:
        self.vocoded += frames

    def enter_step(self) -> None:
        self.steps_in_flight += 1

    def leave_step(self) -> None:
        self.steps_in_flight -= 1

    def book(self, status: int, frame: Frames) -> bool:
        """What a decode step came to, and whether it is the first. The clock is read for that one, and for the last."""
        if self.total is not None:
            return False  # it was launched before the stop was known
        first = self.first_step_s is None
        if first:
            self.first_step_s = time.monotonic()
        if status == RUNNING or status == Status.LAST:
            self.frames.append(frame.copy())
            self.collected += 1
        if status != RUNNING:
            if status == Status.PRIMING:
                self.primed += 1
            else:
                self._end(Status(status))
        return first

    def _end(self, status: Status) -> None:
        self.total = self.collected
        self.reason = FinishReason.LENGTH if status is Status.CAPPED else FinishReason.STOP
        if self.state is State.DECODING:
            self.state = State.DRAINING
        assert self.first_step_s is not None
        more_steps = self.primed + self.collected - (status is Status.LAST)  # than the first
        if more_steps:
            self.step_s = (time.monotonic() - self.first_step_s) / more_steps

    def audible(self, first: int, frames: int) -> int:
        """How many of the codec's frames from `first` on are speech that somebody waits for."""
        if self.state is State.LEAVING:
            return 0
        return frames if self.total is None else max(0, min(frames, self.total - first))

    def emit(self, count: int) -> Frames:
        """The next frames, whose sound is there."""
        taken, self.frames = self.frames[:count], self.frames[count:]
        self.emitted += count
        if self.first_audio_s is None:
            self.first_audio_s = time.monotonic()
        return np.stack(taken)

    def hold(self, chunk: AudioChunk) -> None:
        self.held.append(chunk)

    # Its end

    def retry(self) -> None:
        """Wait anew, with the next try's values; what was made is forgotten."""
        again = replace(self.prompt, staged={**self.prompt.staged, **self.prompt.retries[self.tries]})
        fresh = Request(self.speech, again, self.sink, self.arrival_s, self.delay_steps, tries=self.tries + 1)
        kept = {name: getattr(self, name) for name in ("queued_s", "since_s", "abort_requested")}
        vars(self).update(vars(fresh) | kept)

    def release_held(self) -> list[AudioChunk]:
        held, self.held = self.held, []
        return held

    def abort(self) -> bool:
        """Whether this is news: nobody waits for it any more."""
        news = self.state is not State.DONE and not self.abort_requested
        self.abort_requested = self.abort_requested or news
        return news

    def leave(self) -> None:
        self.state = State.LEAVING

    def finish(self) -> None:
        self.state = State.DONE
