"""What the engine counts of its steps adds up to what it did."""

from __future__ import annotations

import time

import numpy as np
import pytest

from engine.conftest import MakeEngine
from engine.families import TEXTS, frames_each
from sonant.engine.blocks import Allocation
from sonant.engine.ledger import Ledger
from sonant.engine.request import Request
from sonant.engine.telemetry import STEP_PHASES, Tally, Telemetry
from sonant.models.prompt import Prompt
from sonant.models.status import Status
from sonant.types import AudioChunk, FinishReason, SpeechRequest


def test_a_tally_counts_at_or_below_each_bound() -> None:
    tally = Tally((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 3.0):
        tally.add(value)
    assert tally.counts == [2, 1, 1] and tally.total == 6.0


def test_every_phase_of_a_request_is_counted(make_engine: MakeEngine) -> None:
    engine = make_engine()
    engine.speak("hello the world", seed=1, max_frames=20)
    telemetry, steps = engine.telemetry, engine.stats().steps
    assert all(sum(telemetry.phase_s[phase].counts) > 0 for phase in STEP_PHASES)
    assert sum(telemetry.phase_s["plan"].counts) == sum(telemetry.phase_s["wait"].counts) == steps
    assert telemetry.rows.total == sum(telemetry.rows.counts)  # one row in each step
    assert sum(telemetry.frames_ahead.counts) == 0  # a file has no listener


def test_a_phase_with_another_between_its_parts_is_one() -> None:
    telemetry = Telemetry()
    telemetry.begin()
    parts_s = [telemetry.took("plan", goes_on=True)]
    prefill_s = telemetry.took("prefill")
    whole_s = telemetry.took("plan")
    assert whole_s > parts_s[0] and sum(telemetry.phase_s["plan"].counts) == 1
    assert telemetry.phase_s["plan"].total == whole_s and telemetry.phase_s["prefill"].total == prefill_s
    assert telemetry.took("plan") < time.perf_counter() and sum(telemetry.phase_s["plan"].counts) == 2


def test_what_a_step_full_of_prompts_takes_is_known_after_one(make_engine: MakeEngine) -> None:
    for prefill_tokens, known in ((8, True), (4096, False)):
        engine = make_engine(prefill_tokens=prefill_tokens)
        began_s = time.monotonic()
        engine.speak("hello the world", seed=1, max_frames=4)
        assert (0 < engine.telemetry.full_prefill_s.value < time.monotonic() - began_s) == known


def test_frames_ahead_are_counted_for_listeners_after_their_first_chunk(make_engine: MakeEngine) -> None:
    engine = make_engine()
    chunks = list(engine.stream("hello the world", seed=1, max_frames=20))
    assert sum(engine.telemetry.frames_ahead.counts) == len(chunks) - 1


def test_every_request_tells_its_first_step_and_its_time_a_step(make_any: MakeEngine) -> None:
    engine = make_any()
    began_s = time.monotonic()
    spoken = [stream.result() for stream in [engine.stream(TEXTS[n], seed=n, max_frames=20) for n in range(3)]]
    took_s = time.monotonic() - began_s
    first, between = engine.telemetry.first_step_s, engine.telemetry.time_per_step_s
    assert sum(first.counts) == sum(between.counts) == len(spoken)
    assert 0 < first.total < len(spoken) * took_s
    assert 0 < between.total < sum(took_s / max(1, len(s.frames) - 1) for s in spoken)


def test_parts_of_a_long_text_arrive_when_their_turn_comes(make_engine: MakeEngine) -> None:
    engine = make_engine(segment_chars=20, **frames_each(20))
    began_s = time.monotonic()
    engine.stream("hello the world. hello the world. hello the world. hello the world.").result()
    took_s = time.monotonic() - began_s
    engine.close()
    first = engine.telemetry.first_step_s
    assert sum(first.counts) > 2
    assert first.total < took_s  # parts arrive one after the other, not with the text


def test_an_aborted_request_has_no_time_a_step(make_engine: MakeEngine) -> None:
    engine = make_engine()
    with engine.stream("hello the world", seed=1, max_frames=100) as stream:
        next(iter(stream))
    engine.close()
    assert sum(engine.telemetry.first_step_s.counts) == 1
    assert sum(engine.telemetry.time_per_step_s.counts) == 0


class Nowhere:
    def push(self, chunk: AudioChunk) -> None: ...
    def finish(self, reason: FinishReason) -> None: ...
    def fail(self, error: Exception) -> None: ...


@pytest.mark.parametrize(
    ("statuses", "step_s"),
    [
        ([Status.RUNNING, Status.RUNNING, Status.STOPPED], 0.5),
        ([Status.RUNNING, Status.RUNNING, Status.LAST], 0.5),
        ([Status.PRIMING, Status.PRIMING, Status.RUNNING, Status.CAPPED], 1 / 3),
        ([Status.PRIMING, Status.STOPPED], 1.0),
        ([Status.STOPPED], None),
        ([Status.LAST], None),
        ([Status.RUNNING, Status.RUNNING], None),
    ],
)
def test_a_step_takes_the_time_between_the_first_and_the_last(statuses: list[Status], step_s: float | None) -> None:
    keys = np.zeros((5, 1), np.int32)
    prompt = Prompt(length=5, keys=keys, staged={}, max_frames=9, payload=None)
    request, ledger = Request(SpeechRequest(text="x"), prompt, Nowhere(), 0.0), Ledger()
    request.admit(ledger, 0, Allocation([], 0, []), 1, 0.0)
    times_s = [10.0, *[10.5] * (len(statuses) - 2), 11.0][: len(statuses)]
    firsts = []
    for status, now_s in zip(statuses, times_s, strict=True):
        booked = ledger.book(np.array([request.place]), np.array([int(status)]), now_s)
        firsts.append(len(booked.first) == 1)
        if len(booked.ends):
            request.end(status, now_s)
    assert firsts == [True] + [False] * (len(statuses) - 1)
    assert request.step_s == (None if step_s is None else pytest.approx(step_s))
