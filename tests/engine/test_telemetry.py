"""What the engine tells of its steps adds up to what it did."""

from __future__ import annotations

from engine.conftest import MakeEngine
from sonant.engine.telemetry import STEP_PHASES, Tally


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
    assert telemetry.rows.total == sum(telemetry.rows.counts)  # one row, each time
    assert sum(telemetry.frames_ahead.counts) == 0  # nobody listened


def test_frames_ahead_are_counted_for_listeners_after_their_first_chunk(make_engine: MakeEngine) -> None:
    engine = make_engine()
    chunks = list(engine.stream("hello the world", seed=1, max_frames=20))
    assert sum(engine.telemetry.frames_ahead.counts) == len(chunks) - 1
