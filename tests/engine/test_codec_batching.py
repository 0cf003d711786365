"""Sound is made when it is needed, and on a GPU for as many rows at once as can wait for it."""

from __future__ import annotations

from collections import Counter

import pytest

from engine.test_scheduler import SPEC, make, speaking
from sonant.engine.codec_batching import PATIENCE_S, PATIENCE_STEPS
from sonant.engine.request import Request, State
from sonant.engine.scheduler import Scheduler

STEP_S = 0.01


def test_chunks_grow_with_what_the_listener_has_in_hand() -> None:
    scheduler = make()
    request = speaking(scheduler, 0.0, 0)
    request.first_audio_s = None
    sizes = []
    for step in range(40):
        plan = scheduler.plan(step * 0.01)
        if plan.codec:
            sizes += list(plan.codec)
            request.first_audio_s = request.first_audio_s or 0.0
    assert sizes[0] == 1
    assert sizes == sorted(sizes) and sizes[-1] >= 8


def test_a_slow_engine_keeps_to_small_chunks() -> None:
    scheduler = make()
    request = speaking(scheduler, 0.0, 1)
    sizes = [s for step in range(1, 20) for s in scheduler.plan(step * SPEC.frame_s).codec]
    assert sizes and set(sizes) == {1}
    assert request.vocoded == 20


def staggered_files(scheduler: Scheduler) -> list[Request]:
    """Eight files, each two frames ahead of the previous one."""
    files = [speaking(scheduler, 0.0, 0, live=False, arrival_s=n, frames=60) for n in range(8)]
    for n, request in enumerate(files):
        request.launched, request.vocoded = 2 * n, 0
    return files


def codec_calls(scheduler: Scheduler, steps: int, now_s: float = 0.0) -> list[int]:
    """How many frames each call of the codec has."""
    plans = (scheduler.plan(now_s) for _ in range(steps))
    return [sum(frames * len(places) for frames, places in plan.codec.items()) for plan in plans if plan.codec]


def test_files_wait_for_each_other_until_they_fill_a_call_of_the_codec() -> None:
    scheduler = make(codec_batch_s=6.4)  # four rows of the largest chunk
    files = staggered_files(scheduler)
    assert codec_calls(scheduler, 46) == [64] * 5
    assert all(request.launched >= 46 for request in files), "nobody stands still for it"


def test_of_few_files_half_are_enough() -> None:
    scheduler = make(codec_batch_s=14.4)  # nine rows
    staggered_files(scheduler)
    assert set(codec_calls(scheduler, 18)) == {4 * 16}


def test_files_go_along_with_a_listener_who_needs_sound() -> None:
    scheduler = make(codec_batch_s=6.4, max_rows=9)
    staggered_files(scheduler)
    listener = speaking(scheduler, 0.0, 1)
    assert codec_calls(scheduler, 1, SPEC.frame_s) == [16 + 1]  # one frame, and the only file that has sixteen by then
    assert listener.vocoded == 2


def test_a_file_that_has_ended_goes_with_the_next_call_and_alone_if_none_will_come() -> None:
    scheduler = make(codec_batch_s=6.4)
    files = staggered_files(scheduler)
    first = files[-1]
    first.state, first.total = State.DRAINING, first.launched
    scheduler.plan(0)
    assert first.vocoded == 0
    assert codec_calls(scheduler, 10) and first.vocoded >= first.total
    for request in files[:-1]:
        request.state, request.total = State.DRAINING, request.launched
    codec_calls(scheduler, 4)
    assert all(request.vocoded >= (request.total or 0) for request in files)


def crowd(count: int = 32, vocoded: int = 1) -> tuple[Scheduler, list[Request]]:
    """Listeners who began one after the other and have `vocoded` frames of 100 ms, on a GPU with short steps."""
    scheduler = make(blocks=10_000, max_rows=count + 4, codec_batch_s=100.0)
    scheduler.telemetry.step_s.add(STEP_S)
    listeners = [speaking(scheduler, 0.0, 0, arrival_s=n, frames=200) for n in range(count)]
    for n, request in enumerate(listeners):
        request.vocoded, request.launched = vocoded, vocoded + n % 15
    return scheduler, listeners


def test_listeners_who_began_at_any_time_share_calls_and_nobody_runs_dry() -> None:
    scheduler, listeners = crowd()
    calls, rows, least_s = Counter[int](), Counter[int](), 1.0
    for step in range(150):
        now_s = STEP_S * step
        least_s = min(least_s, *(scheduler.slack_s(r, now_s) for r in listeners))
        plan = scheduler.plan(now_s)
        for size, places in plan.codec.items():
            calls[size] += 1
            rows[size] += len(places)
    assert least_s > PATIENCE_S, "a step and more before they would run dry"
    assert max(calls) == 16 and rows[16] >= 8 * calls[16], "a quarter of all in a call, or more"
    assert sum(calls.values()) < 150 / 4
    assert all(request.launched >= 150 for request in listeners), "nobody stands still for it"


def test_who_has_little_in_hand_does_not_wait() -> None:
    scheduler, (poor, *_) = crowd(vocoded=10)
    poor.launched = poor.vocoded + 1
    poor.first_audio_s = PATIENCE_S + PATIENCE_STEPS * STEP_S - 10 * SPEC.frame_s
    before = poor.vocoded
    (call,) = scheduler.plan(0.001).codec.values()
    assert call.tolist() == [poor.place] and poor.vocoded > before


def test_a_first_sound_does_not_wait() -> None:
    scheduler, _ = crowd(vocoded=10)
    new = speaking(scheduler, 0.0, 0)
    new.first_audio_s, new.launched = None, 1
    plan = scheduler.plan(0.0)
    assert plan.first_sound and {size: p.tolist() for size, p in plan.codec.items()} == {1: [new.place]}


def test_whose_ring_is_nearly_full_does_not_wait_and_takes_others_along() -> None:
    scheduler, listeners = crowd(vocoded=100)
    for request in listeners:
        request.launched = request.vocoded + 10
    full, ready = listeners[:2]
    full.launched, ready.launched = full.vocoded + scheduler.sizes.ring - 3, ready.vocoded + 17
    assert {size: p.tolist() for size, p in scheduler.plan(0.0).codec.items()} == {16: [full.place, ready.place]}


def test_where_the_host_computes_nobody_waits() -> None:
    scheduler, listeners = crowd(vocoded=40)
    scheduler.telemetry.vocode_s.add(1e-6)
    listeners[0].launched = listeners[0].vocoded + 15  # this step adds one
    assert {size: p.tolist() for size, p in scheduler.plan(0.0).codec.items()} == {16: [listeners[0].place]}


def test_a_listener_who_has_ended_goes_with_a_call_that_takes_all_that_is_left() -> None:
    scheduler, (ended, full, poor, *_) = crowd(vocoded=100)
    ended.launched = ended.vocoded + 5
    ended.state, ended.total = State.DRAINING, ended.launched
    poor.first_audio_s, poor.launched = PATIENCE_S - 100 * SPEC.frame_s, poor.vocoded + 1
    assert [len(places) for places in scheduler.plan(0.0).codec.values()] == [1] and ended.vocoded == 100
    full.launched = full.vocoded + scheduler.sizes.ring - 3
    poor.launched = poor.vocoded
    assert 16 in scheduler.plan(0.0).codec and ended.vocoded >= ended.total


def test_a_file_that_has_ended_does_not_wait_for_ever_among_listeners_small_chunks() -> None:
    scheduler, listeners = crowd(8)
    file = speaking(scheduler, 0.0, 0, live=False, frames=100)
    file.launched = 20
    file.state, file.total = State.DRAINING, 20
    for step in range(40):
        for request in listeners:  # whose slack is always less than a frame
            request.first_audio_s, request.launched = 0.0, request.vocoded + 1
        sizes = set(scheduler.plan(listeners[0].vocoded * SPEC.frame_s - PATIENCE_S).codec)
        assert sizes <= {1, 2}, step
    assert file.vocoded >= 20


def slow_to_vocode() -> Scheduler:
    """A scheduler on a host that takes 0.03 s to decode, and 0.02 s for each frame's sound."""
    scheduler = make()
    scheduler.telemetry.decode_s.add(0.03)
    scheduler.telemetry.vocode_s.add(0.02)
    return scheduler


@pytest.mark.parametrize("live", [True, False])
def test_where_sound_takes_time_the_rich_get_no_more_than_the_poorest_can_wait_for(live: bool) -> None:
    scheduler = slow_to_vocode()
    poor, rich = speaking(scheduler, 0.0, 1), speaking(scheduler, 0.0, 40, frames=100, live=live)
    rich.launched, poor.vocoded, poor.launched = 40 + 16, 1, 2  # 16 frames take 0.32 s, and `poor` has 0.1 s of sound
    scheduler.plan(0.0)
    assert (poor.vocoded, rich.vocoded) == (2, 42)  # there would be time for three
    poor.vocoded, poor.launched = 5, 6
    scheduler.plan(0.0)
    assert rich.vocoded == 50  # 0.5 s, time for 23
    poor.vocoded = 12
    scheduler.plan(0.0)
    assert rich.vocoded == 50  # fewer than 16 are decoded
    rich.launched = 50 + 16
    scheduler.plan(0.0)
    assert rich.vocoded == 66


def test_the_first_sound_of_one_is_not_late_for_anothers_plenty() -> None:
    scheduler = slow_to_vocode()
    rich, new = speaking(scheduler, 0.0, 40, frames=100), speaking(scheduler, 0.0, 0)
    new.first_audio_s, new.launched, rich.launched = None, 1, 40 + 16
    plan = scheduler.plan(0.0)
    assert (new.vocoded, rich.vocoded) == (2, 40) and list(plan.codec) == [2]


@pytest.mark.parametrize(("others", "frames"), [(0, 1), (1, 2), (6, 4)])
def test_a_first_sound_lasts_for_two_steps_where_the_host_computes(others: int, frames: int) -> None:
    scheduler = slow_to_vocode()  # a step takes 0.05 s for one, 0.07 for two, 0.17 for seven; a frame lasts 0.1 s
    for _ in range(others):
        speaking(scheduler, 0.0, 40, frames=100).launched = 40
    new = speaking(scheduler, 0.0, 0)
    new.first_audio_s = None
    for launched in range(1, frames + 1):
        scheduler.plan(0.0)
        assert (new.launched, new.vocoded) == (launched, frames if launched == frames else 0)


@pytest.mark.parametrize("live", [True, False])
@pytest.mark.parametrize("ends", [True, False])
def test_nobody_waits_for_ever_where_somebody_is_always_poor(live: bool, ends: bool) -> None:
    scheduler = slow_to_vocode()
    poor, rich = speaking(scheduler, 0.0, 1, frames=100), speaking(scheduler, 0.0, 40, frames=100, live=live)
    rich.launched = 40 + 16
    if ends:
        rich.state, rich.total = State.DRAINING, 40 + 16
    for step in range(60):
        poor.vocoded, poor.launched = 1 + step, 2 + step  # has always less sound than a decode step takes
        scheduler.plan(0.1 * step + 0.08)
    assert rich.vocoded >= 56


@pytest.mark.parametrize("left", [1, 3, 16, 20])
def test_the_last_chunks_cover_all_that_is_left(left: int) -> None:
    scheduler = make()
    request = speaking(scheduler, 0.0, 10)
    request.state, request.total = State.DRAINING, 10 + left
    for _ in range(3):
        scheduler.plan(0)
    assert request.vocoded >= 10 + left
