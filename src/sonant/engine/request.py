"""The life of a request inside the engine. Only the methods here change it, and the step's counting in `ledger.py`.

    WAITING → PREFILL → DECODING → DRAINING → DONE
                 │         ⇅            │
                 │       PARKED         │                      (PARKED: what was in its row lies aside, see parking.py)
                 └─────────┴──── abort ─┴→ LEAVING → DONE     (LEAVING: launched steps still use its row)

A parked request keeps its blocks. Steps that were launched before may still come back: they book frames, emit sound,
and may bring its end. Then it goes on as DRAINING, or is done without a row if all its sound is there.

Steps are decode steps, frames are what they complete: with a delay pattern the first `delay_steps` complete none.
`launched` runs ahead of what the host has seen: `frames_launched` are on the device; of these the codec has been given
`vocoded`, and `collected` have come back. Only `total`, known once a stop came back, tells which of them are speech.

From its admission to its end a request has a place in the ledger. What steps count is stored there only (`Counted`);
of what else they look at, it has copies (`Shown`).
"""

from __future__ import annotations

import time
from dataclasses import replace
from enum import IntEnum
from typing import Protocol

import numpy as np

from sonant.engine.blocks import Allocation
from sonant.engine.ledger import Counted, Ledger, Shown
from sonant.models.prompt import Prompt
from sonant.models.status import Status
from sonant.types import AudioChunk, FinishReason, Frames, SpeechRequest


class State(IntEnum):
    WAITING = 0
    PREFILL = 1
    DECODING = 2
    DRAINING = 3
    PARKED = 4
    LEAVING = 5
    DONE = 6


class Sink(Protocol):
    """Where a request's sound goes. Called on the step thread: must not block."""

    def push(self, chunk: AudioChunk) -> None: ...
    def finish(self, reason: FinishReason) -> None: ...
    def fail(self, error: Exception) -> None: ...


class Request:
    launched, vocoded, emitted, steps_in_flight = Counted(), Counted(), Counted(), Counted()
    primed = Counted()  # steps that have come back and completed no frame, being before the first
    collected = Counted()
    state: Shown[State] = Shown()
    row: Shown[int] = Shown()
    row_s: Shown[float] = Shown()  # when it got its row
    tenure_at: Shown[int] = Shown()  # how many steps must be launched before it may lend that row
    since_s: Shown[float] = Shown()  # when it began to wait for a row: queued or parked
    first_audio_s: Shown[float | None] = Shown(lambda s: float("-inf") if s is None else s)
    heard_s: Shown[float] = Shown()  # sound that the listener got before this request's own
    total: Shown[int | None] = Shown(lambda total: -1 if total is None else total)
    abort_requested: Shown[bool] = Shown()
    _shown = (state, row, row_s, tenure_at, since_s, first_audio_s, heard_s, total, abort_requested)

    def __init__(
        self,
        speech: SpeechRequest,
        prompt: Prompt,
        sink: Sink,
        arrival_s: float,
        delay_steps: int = 0,
        *,
        keeps_frames: bool = True,
        tries: int = 0,
    ) -> None:
        """`keeps_frames`: chunks come with their frames. `tries`: how many went wrong before this one."""
        self.ledger: Ledger | None = None
        self.place = -1
        self.speech, self.prompt, self.sink = speech, prompt, sink
        self.arrival_s, self.delay_steps, self.keeps_frames, self.tries = arrival_s, delay_steps, keeps_frames, tries
        self.queued_s = self.since_s = 0.0  # when the step thread got it: a later part of a long text waits before that
        self.state, self.row, self.row_s, self.tenure_at = State.WAITING, -1, 0.0, 0
        self.first_audio_s, self.heard_s, self.total, self.abort_requested = None, 0.0, None, False
        self.allocation: Allocation | None = None
        self.admitted_s = 0.0  # when it got its blocks
        self.prefilled = 0
        self.preroll = 0  # next reference frame for the codec; -1: it was given all
        self.reason = FinishReason.STOP
        self.frames: list[Frames] = []  # collected but not yet emitted with their sound
        self.step_s: float | None = None  # the mean from one decode step to the next, set at its end if it had two
        self.held: list[AudioChunk] = []  # made while `on_trial`
        self.step_limit = prompt.max_frames + delay_steps + 1  # the step after the last frame tells a stop from a cut

    # Derived values

    @property
    def live(self) -> bool:
        return self.speech.live

    @property
    def priority(self) -> int:
        return self.speech.priority

    @property
    def playback_speed(self) -> float:
        return self.speech.playback_speed

    @property
    def variant(self) -> int:
        return self.prompt.variant

    @property
    def prefill_length(self) -> int:
        return self.prompt.length - 1

    @property
    def positions(self) -> int:
        """The most positions it can come to hold in the cache."""
        return self.prefill_length + self.step_limit

    @property
    def frames_launched(self) -> int:
        return max(0, self.launched - self.delay_steps)

    @property
    def has_steps_left(self) -> bool:
        return self.state is State.DECODING and self.launched < self.step_limit

    @property
    def complete(self) -> bool:
        over = self.state is State.DRAINING or self.state is State.PARKED
        return over and self.total is not None and self.emitted >= self.total

    @property
    def on_trial(self) -> bool:
        """Whether its sound is held back, since it may go wrong and be made anew. A listener cannot wait for that."""
        may_fail = self.prompt.bad_from is not None and self.tries < len(self.prompt.retries)
        return may_fail and not self.speech.live

    @property
    def went_wrong(self) -> bool:
        bad_from = self.prompt.bad_from
        return self.on_trial and bad_from is not None and (self.total or 0) >= bad_from

    def dry_s(self, first_audio_s: float, frame_s: float) -> float:
        """When its listener, who began to hear at `first_audio_s`, will have heard all that was vocoded."""
        return first_audio_s + (self.heard_s + self.vocoded * frame_s) / self.playback_speed

    # Before its row

    def enqueue(self) -> None:
        self.queued_s = self.since_s = time.monotonic()

    def continue_stream(self, first_audio_s: float | None, heard_s: float) -> None:
        """Its listener began to hear at `first_audio_s` and has been given so much; None: they wait anew."""
        self.first_audio_s, self.heard_s = first_audio_s, heard_s

    def hear(self, heard_s: float) -> None:
        """Its listener has been given so much before it by now. For any thread: the step thread will show it."""
        vars(self)["heard_s"] = heard_s

    def show_heard(self) -> None:
        self.heard_s = self.heard_s

    def be_heard(self, now_s: float) -> None:
        """Its first sound has reached this end of a channel; later calls change nothing."""
        if self.first_audio_s is None:
            self.first_audio_s = now_s

    # Its row

    def admit(self, ledger: Ledger, row: int, allocation: Allocation, tenure: int, now_s: float) -> None:
        """`tenure` is how many steps are launched for it before the row may go to another."""
        self.allocation, self.state, self.admitted_s = allocation, State.PREFILL, now_s
        self.prefilled = allocation.reused_tokens
        self._sit(row, tenure, now_s)
        self.ledger, self.place = ledger, ledger.enter(self)
        for shown in self._shown:
            shown.show(self)

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
        """Take the next `tokens` positions: [start, end)."""
        start, self.prefilled = self.prefilled, self.prefilled + tokens
        return start, self.prefilled

    def preroll_up_to(self, next_frame: int) -> None:
        """The codec has been given its reference up to that frame; -1: all of it, and decoding begins."""
        self.preroll = next_frame
        if next_frame < 0:
            self.state = State.DECODING

    def keep(self, frame: Frames) -> None:
        """Keep a completed frame, to be emitted with its sound."""
        self.frames.append(frame.copy())

    def end(self, status: Status, now_s: float) -> None:
        """The last of its steps that counts has come back."""
        assert self.ledger is not None
        self.total = self.collected
        self.reason = FinishReason.LENGTH if status is Status.CAPPED else FinishReason.STOP
        if self.state is State.DECODING:
            self.state = State.DRAINING
        more_steps = self.primed + self.collected - (status is Status.LAST)  # than the first
        if more_steps:
            self.step_s = (now_s - float(self.ledger.first_step_s[self.place])) / more_steps

    def audible(self, first: int, frames: int) -> int:
        """How many of the codec's frames from `first` on are speech that somebody waits for."""
        if self.state is State.LEAVING:
            return 0
        return frames if self.total is None else max(0, min(frames, self.total - first))

    def emit(self, count: int) -> Frames:
        """The next frames, whose sound is there; empty ones unless `keeps_frames`."""
        self.emitted += count
        if self.first_audio_s is None:
            self.first_audio_s = time.monotonic()
        if not self.keeps_frames:
            return np.empty((count, 0), np.int32)
        taken, self.frames = self.frames[:count], self.frames[count:]
        return np.stack(taken)

    def hold(self, chunk: AudioChunk) -> None:
        self.held.append(chunk)

    # Its end

    def retry(self) -> None:
        """Wait anew with the next try's values, and forget what was made. The promised time to a row was kept."""
        again = replace(self.prompt, staged={**self.prompt.staged, **self.prompt.retries[self.tries]})
        speech = replace(self.speech, first_audio_within_s=None)
        fresh = Request(
            speech, again, self.sink, self.arrival_s, self.delay_steps, keeps_frames=self.keeps_frames,
            tries=self.tries + 1,
        )  # fmt: skip
        kept = {name: getattr(self, name) for name in ("queued_s", "since_s", "abort_requested")}
        vars(self).update(vars(fresh) | kept)

    def release_held(self) -> list[AudioChunk]:
        held, self.held = self.held, []
        return held

    def abort(self) -> bool:
        """Nobody waits for it any more. False: that was known, or it is over."""
        news = self.state is not State.DONE and not self.abort_requested
        self.abort_requested = self.abort_requested or news
        return news

    def leave(self) -> None:
        self.state = State.LEAVING

    def finish(self) -> None:
        """Its end: its place, if it had one, is free again."""
        self.state = State.DONE
        if self.ledger is not None:
            self.ledger.leave(self.place)
            self.ledger, self.place = None, -1
