"""A request's speech is its own: neighbours, order, aborts and reuse of memory do not change it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clips import reference_clip
from engine.conftest import MakeEngine
from engine.families import QWEN3_TTS, TOY, Family, same, same_frames
from sonant import Engine, EngineConfig, FinishReason, Sampling, Speech
from sonant.engine.ledger import Column, Places
from sonant.errors import Aborted
from waiting import until


@pytest.mark.parametrize("steps_ahead", [0, 1])
def test_seven_neighbours_change_nothing(make_any: MakeEngine, family: Family, steps_ahead: int) -> None:
    engine = make_any(max_rows=8, steps_ahead=steps_ahead)
    alone = [engine.speak(**{**family.request(n), "live": True}) for n in range(8)]
    together = [engine.stream(**family.request(n)) for n in range(8)]
    for expected, stream in zip(alone, together, strict=True):
        same(expected, stream.result())


def test_who_shares_calls_of_the_codec_as_on_a_gpu_is_spoken_as_if_alone(
    make_any: MakeEngine, family: Family, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps are planned as if the time that sound takes were unknown, so that listeners and files wait for each other.
    Each request begins when the previous one is heard, so that calls have different sizes and can wait, however fast
    the machine is."""
    engine = make_any(max_rows=8, steps_ahead=1, chunk_s=(0.08, 0.16, 0.32))
    requests = [{**family.request(n), "max_frames": 8 + 3 * n} for n in range(8)]
    alone = [engine.speak(**{**request, "live": True}) for request in requests]
    monkeypatch.setattr(engine.loop.runner, "_learn", lambda *_: None)
    engine.telemetry.vocode_s.value = engine.telemetry.decode_s.value = 0.0
    batching, held = engine.loop.scheduler.codec_batching, []
    batching.patience_s, gathered = float("-inf"), batching._gathered

    def watched(places: Places, frames: Column, slacks_s: Column) -> Column:
        result = gathered(places, frames, slacks_s)
        held.append(bool((result < frames).any()))
        return result

    monkeypatch.setattr(batching, "_gathered", watched)
    streams = []
    for request in requests:
        streams.append(engine.stream(**request))
        until(lambda: streams[-1].first_audio_s is not None)
    for expected, stream in zip(alone, streams, strict=True):
        same(expected, stream.result())
    assert any(held)


def test_a_late_arrival_is_spoken_as_if_alone(make_any: MakeEngine, family: Family) -> None:
    engine = make_any(max_rows=4)
    late = {**family.request(3), "max_frames": 12}
    alone = engine.speak(**late)
    early = [engine.stream(**{**family.request(n), "max_frames": 30}) for n in range(3)]
    for stream in early:
        stream.read()
    same(alone, engine.stream(**late).result())
    for stream in early:
        stream.result()


def test_aborting_a_neighbour_in_mid_stream_changes_nothing(make_any: MakeEngine, family: Family) -> None:
    engine = make_any(max_rows=4, steps_ahead=1)
    wanted = {**family.request(1), "max_frames": 25}
    alone = engine.speak(**wanted)
    neighbours = [engine.stream(**{**family.request(n), "max_frames": 200}) for n in (0, 2)]
    stream = engine.stream(**wanted)
    for neighbour in neighbours:
        neighbour.read()
        neighbour.abort()
    reused = engine.stream(**family.request(5))  # takes a row that was just freed
    same(alone, stream.result())
    reused.result()
    for neighbour in neighbours:
        with pytest.raises(Aborted):
            neighbour.result()


def test_more_requests_than_rows_all_get_their_own_speech(make_any: MakeEngine, family: Family) -> None:
    engine = make_any(max_rows=2, max_batch=1, kv_tokens=160)
    alone = [engine.speak(**family.request(n, 8)) for n in range(6)]
    streams = [engine.stream(**family.request(n, 8)) for n in range(6)]
    for expected, stream in zip(alone, streams, strict=True):
        same(expected, stream.result())


def test_a_seed_decides_and_no_seed_varies(any_engine: Engine) -> None:
    spoken = [any_engine.speak("hello the world", seed=s, max_frames=12).frames for s in (5, 5, 6, None, None)]
    np.testing.assert_array_equal(spoken[0], spoken[1])
    assert len({codes.tobytes() for codes in spoken[1:]}) == 4


def test_a_repeated_prefix_is_computed_once_and_spoken_the_same(make_engine: MakeEngine) -> None:
    engine = make_engine("base", block_tokens=4)
    voice = engine.clone(reference_clip(), "the user and the world")
    options = {"voice": voice, "seed": 3, "max_frames": 10}
    first = engine.speak("hello the world", **options)
    reused: list[int] = []
    allocate = engine.loop.pool.allocate

    def spy(*args: Any) -> Any:
        allocation = allocate(*args)
        reused.append(allocation.reused_tokens)
        return allocation

    engine.loop.pool.allocate = spy  # type: ignore[method-assign]
    same(first, engine.speak("hello the world", **options))
    engine.speak("speech and speech", **options)
    # For the same text all blocks but the last are reused; for another one role, header and reference text.
    assert reused[0] >= 28 and reused[1] >= 12


@cache
def _solo(family: Family, checkpoint: Path, n: int) -> Speech:
    with family.open({"custom": checkpoint}, EngineConfig()) as engine:
        return engine.speak(**family.request(n))


@dataclass(frozen=True)
class Traffic:
    """Some requests (which one, how long after the previous one, whether aborted at once), and an engine's options."""

    plan: list[tuple[int, int, bool]]
    rows: int
    batch: int
    prefill: int
    steps_ahead: int
    kv_tokens: int


traffic = st.builds(
    Traffic,
    plan=st.lists(st.tuples(st.integers(0, 11), st.integers(0, 3), st.booleans()), min_size=2, max_size=9),
    rows=st.integers(1, 4),
    batch=st.integers(1, 4),
    prefill=st.sampled_from([3, 16, 512]),
    steps_ahead=st.integers(0, 1),
    kv_tokens=st.sampled_from([160, 320, 4096]),
)


@given(traffic)
@settings(max_examples=8, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_random_arrivals_lengths_and_aborts(tiny_checkpoints: Mapping[str, Path], met: Traffic) -> None:
    speak_through(QWEN3_TTS, tiny_checkpoints, met)


@given(traffic)
@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_many_more_of_them_on_the_family_that_costs_little(tiny_checkpoints: Mapping[str, Path], met: Traffic) -> None:
    speak_through(TOY, tiny_checkpoints, met)


def speak_through(family: Family, tiny_checkpoints: Mapping[str, Path], met: Traffic) -> None:
    folder = tiny_checkpoints["custom"]
    config = EngineConfig(
        max_rows=met.rows,
        max_batch=met.batch,
        prefill_tokens=met.prefill,
        steps_ahead=met.steps_ahead,
        kv_tokens=met.kv_tokens,
        block_tokens=8,
    )
    with family.open(tiny_checkpoints, config) as engine:
        streams = []
        for n, pause, aborted in met.plan:
            streams.append((n, aborted, engine.stream(**family.request(n))))
            time.sleep(0.004 * pause)
            if aborted:
                streams[-1][2].abort()
        for n, aborted, stream in streams:
            if aborted:
                chunks = list(stream)
                assert stream.finish_reason in (FinishReason.ABORT, FinishReason.STOP, FinishReason.LENGTH)
                heard = [frame for c in chunks for frame in c.frames]
                alone = _solo(family, folder, n).frames[: len(heard)]
                same_frames(np.stack(heard) if heard else alone, alone)
            else:
                same(_solo(family, folder, n), stream.result())
        deadline = time.monotonic() + 5
        while engine.stats().running and time.monotonic() < deadline:
            time.sleep(0.002)
        stats = engine.stats()
        assert (stats.free_rows, stats.free_blocks) == (stats.rows, stats.blocks)


def test_uninitialised_memory_is_never_heard(make_any: MakeEngine, family: Family) -> None:
    """Speech is the same if row state and cache are full of NaN and invalid codes at the start."""
    clean = make_any(max_rows=3)
    expected = [clean.speak(**family.request(n)) for n in range(3)]
    dirty = make_any(max_rows=3)
    runner = dirty.loop.runner
    for kv in runner.kv.values():
        kv.fill_(float("nan"))
    for field in dirty.model.spec.state:
        if field.shape:  # a field without a shape is a counter, which a model sets when it is bound
            wild = {torch.bool: True, torch.int32: 2**30}.get(field.dtype, float("nan"))
            runner.rows.fields[field.name].fill_(wild)
    streams = [dirty.stream(**family.request(n)) for n in range(3)]
    for speech, stream in zip(expected, streams, strict=True):
        same(speech, stream.result())


def test_priority_goes_first_when_rows_are_short(make_any: MakeEngine, family: Family) -> None:
    engine = make_any(max_rows=1)
    running = engine.stream("hello the world", max_frames=20, seed=1)
    running.read()
    order: list[str] = []
    low = engine.stream("hello", max_frames=3, seed=1, priority=0)
    high = engine.stream("hello", max_frames=3, seed=1, priority=5)
    running.result()
    for name, stream in (("high", high), ("low", low)):
        stream.result()
        order.append(name)
    assert high._mailbox.ended_s < low._mailbox.ended_s  # type: ignore[operator]


def test_identical_settings_but_for_one_do_not_mix(engine: Engine) -> None:
    base = {"text": "hello the world", "voice": "ryan", "seed": 4, "max_frames": 12}
    variants = [
        {},
        {"sampling": Sampling(temperature=0.3)},
        {"sampling": Sampling(subtalker_temperature=3.0)},
        {"sampling": Sampling(repetition_penalty=2.0)},
        {"sampling": Sampling(do_sample=False)},
    ]
    alone = [engine.speak(**base, **v) for v in variants]
    together = [engine.stream(**base, **v) for v in variants]
    for expected, stream in zip(alone, together, strict=True):
        same(expected, stream.result())
    assert len({a.frames.tobytes() for a in alone}) == len(variants)
