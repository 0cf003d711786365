"""The simulation of replicas: it must reproduce what was measured, and keep what always holds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sonant.bench.scale.engine_times import H200_1_7B, EngineTimes
from sonant.bench.scale.fleet import Fleet, Load
from sonant.bench.scale.shared_host import Carrier, HostTimes, Session, SharedHost, Worker

# docs/bench.md: streams that start at once, first sound p50 and p99 in ms, seconds of sound a second.
MEASURED = ((1, 7.8, 7.8, 27.8), (16, 17.0, 20.0, 306.1), (64, 33.9, 44.5, 806.2), (128, 72.8, 95.7, 1189.9),
            (256, 143.1, 191.4, 1550.2))  # fmt: skip
PLAIN = EngineTimes(
    frame_s=0.08, steps=((1, 0.01), (5, 0.03)), prompt_s=0.005, prompts=4, start_s=0.001, rows=8, batch=8
)


@pytest.mark.parametrize(("streams", "p50_ms", "p99_ms", "audio_s_per_s"), MEASURED)
def test_it_says_what_an_h200_did_within_a_fifth(
    streams: int, p50_ms: float, p99_ms: float, audio_s_per_s: float
) -> None:
    said = Fleet(H200_1_7B, 1).run(Load(listeners=streams, frames=125, seconds=1.0, at_once=True))
    assert 1e3 * said.first_quantile_s(0.5) == pytest.approx(p50_ms, rel=0.2)
    assert 1e3 * said.first_quantile_s(0.99) == pytest.approx(p99_ms, rel=0.2)
    assert said.audio_s_per_s == pytest.approx(audio_s_per_s, rel=0.2)


def test_it_holds_what_was_held_and_makes_what_was_made_when_nobody_waits() -> None:
    held = Fleet(H200_1_7B, 1).run(Load(listeners=768, frames=125, seconds=20.0))
    assert held.gap_share == 0 and held.first_quantile_s(1.0) < 0.5
    saturated = replace(H200_1_7B, rows=256, batch=256)
    made = Fleet(saturated, 1).run(Load(listeners=512, frames=125, seconds=1.0, at_once=True))
    assert made.audio_s_per_s == pytest.approx(1651.3, rel=0.2)


def test_times_of_a_step_lie_on_the_lines_between_what_was_measured() -> None:
    assert [PLAIN.step_s(rows, 0) for rows in (0, 1, 3, 5, 7)] == pytest.approx([0.0, 0.01, 0.02, 0.03, 0.04])
    assert PLAIN.step_s(1, 2) == pytest.approx(0.02)


def test_one_listener_alone_is_added_up_by_hand() -> None:
    said = Fleet(PLAIN, 1).run(Load(listeners=1, frames=10, seconds=1.0, at_once=True))
    assert said.first_s == pytest.approx((0.01 + 0.005 + 0.001,))
    assert said.audio_s_per_s == pytest.approx(10 * 0.08 / (10 * 0.01 + 0.005)) and said.gap_share == 0


def test_three_replicas_do_three_times_as_much_unless_they_share_their_cores() -> None:
    def made(replicas: int, listeners: int, cores: int | None = None) -> float:
        load = Load(listeners=listeners, frames=50, seconds=30.0, closed=True)
        host = None if cores is None else HostTimes(cores=cores)
        return Fleet(PLAIN, replicas, host=host).run(load).audio_s_per_s

    one = made(1, 4)
    assert made(3, 12) == pytest.approx(3 * one, rel=0.05)
    assert made(3, 12, cores=3) == pytest.approx(3 * one, rel=0.05)
    assert made(3, 12, cores=2) == pytest.approx(2 * one, rel=0.1)


def host_of(cores: int, *, credit_s: float = 0.0, move_every_s: float = 1e9) -> SharedHost:
    return SharedHost(HostTimes(cores=cores, turn_s=0.004, credit_s=credit_s, move_every_s=move_every_s))


def ended(host: SharedHost) -> None:
    while (next_s := host.next_s()) is not None:
        host.go_to(next_s)


def test_workers_share_a_core_evenly_and_none_is_faster_than_a_core() -> None:
    """Three workers have a third of the core each, then two have half each, then one has all of it."""
    host, done = host_of(1), []
    for name, work_s in (("a", 0.5), ("b", 1.0), ("c", 1.5)):
        host.do(Worker(), work_s, lambda now_s, name=name: done.append((name, now_s)))
    ended(host)
    assert [name for name, _ in done] == ["a", "b", "c"]
    assert [now_s for _, now_s in done] == pytest.approx([1.5, 2.5, 3.0], abs=0.012)


def test_threads_of_one_session_share_what_one_session_has() -> None:
    """An engine's two threads together get no more of a core than another engine's single thread."""
    host, done, session = host_of(1), [], Session()
    for name, of in (("a", session), ("b", session), ("c", Session())):
        host.do(Worker(of), 1.0, lambda now_s, name=name: done.append((name, now_s)))
    ended(host)
    assert dict(done) == pytest.approx({"c": 2.0, "a": 3.0, "b": 3.0}, abs=0.012)


def test_who_waits_stays_with_its_core_until_another_has_nothing_to_do() -> None:
    """Of three workers on two cores one has a core to itself; when it is done, its core takes one of the others."""
    host, done = host_of(2), []
    for name, work_s in (("a", 1.0), ("b", 0.6), ("c", 1.0)):
        host.do(Worker(), work_s, lambda now_s, name=name: done.append((name, now_s)))
    ended(host)
    # b is done at 0.6, when a and c have had 0.3 each.
    assert dict(done) == pytest.approx({"b": 0.6, "a": 1.3, "c": 1.3}, abs=0.012)


def test_one_who_waits_is_moved_now_and_then_so_that_none_is_the_slowest_for_ever() -> None:
    host, done = host_of(2, move_every_s=0.05), []
    for _ in range(3):
        host.do(Worker(), 1.0, done.append)
    ended(host)
    assert done == pytest.approx([1.5, 1.5, 1.5], rel=0.1)


def test_who_wakes_takes_the_core_at_once_if_it_has_had_less_and_else_at_the_end_of_a_turn() -> None:
    """The front end takes 2 ms from 6 ms on, and wakes again at 9 ms. With credit for its sleep it counts as having had
    less than the engine."""
    for credit_s, done_s in ((0.002, 0.0095), (0.0, 0.0125)):
        host, done, front = host_of(1, credit_s=credit_s), [], Worker()
        host.do(Worker(), 0.1, lambda now_s: None)
        host.go_to(0.006)
        host.do(front, 0.002, done.append)
        host.go_to(0.008)
        host.go_to(0.009)
        host.do(front, 0.0005, done.append)
        ended(host)
        assert done == pytest.approx([0.008, done_s])


def test_who_wakes_where_a_core_is_free_waits_for_nobody() -> None:
    host, done = host_of(2), []
    host.do(Worker(), 0.1, lambda now_s: None)
    host.go_to(0.001)
    host.do(Worker(), 0.0005, done.append)
    ended(host)
    assert done == pytest.approx([0.0015])


def test_who_slept_has_no_more_of_the_cores_afterwards_than_who_worked() -> None:
    host, done = host_of(1), []
    busy, sleeper = Worker(), Worker()
    host.do(busy, 1.0, lambda now_s: host.do(sleeper, 0.5, lambda now_s: done.append(("sleeper", now_s))))
    host.do(busy, 0.5, lambda now_s: done.append(("busy", now_s)))
    ended(host)
    assert [now_s for _, now_s in done] == pytest.approx([2.0, 2.0], abs=0.012)


def test_what_a_worker_is_given_is_done_in_order_and_at_once_if_it_takes_nothing() -> None:
    host, worker, done = host_of(1), Worker(), []
    for name, work_s in (("a", 0.5), ("b", 0.0), ("c", 0.25)):
        host.do(worker, work_s, lambda now_s, name=name: done.append((name, now_s)))
    ended(host)
    assert done == [("a", 0.5), ("b", 0.5), ("c", 0.75)]


def test_on_a_shared_machine_one_listener_is_added_up_by_hand() -> None:
    """Each worker has a core: times of client, proxy, front end, channel, prompt, step and of the way back add up."""
    host = HostTimes(
        cores=5, client=Carrier(request_s=0.003, chunk_s=0.0004), proxy=Carrier(request_s=0.0002, chunk_s=0.0001),
        front=Carrier(request_s=0.002, chunk_s=0.0005), channel=Carrier(request_s=0.0003, chunk_s=0.0006),
    )  # fmt: skip
    said = Fleet(PLAIN, 1, host=host).run(Load(listeners=1, frames=10, seconds=1.0, at_once=True))
    there_s, back_s = 0.003 + 0.0002 + 0.002 + 0.0003, 0.0004 + 0.0001 + 0.0005 + 0.0006
    assert said.first_s == pytest.approx((there_s + 0.005 + 0.01 + back_s + 0.001,))
    assert said.audio_s_per_s == pytest.approx(10 * 0.08 / (there_s + 0.005 + 10 * 0.01 + back_s))


def test_what_carries_the_sound_takes_its_share_of_the_cores() -> None:
    def made(chunk_s: float) -> float:
        load = Load(listeners=6, frames=50, seconds=30.0, closed=True)
        host = HostTimes(cores=2, client=Carrier(chunk_s=chunk_s))
        return Fleet(PLAIN, 3, host=host).run(load).audio_s_per_s

    bare = made(0.0)
    # 2.0 * 0.08 / bare are the core-seconds of a frame on the two cores; a chunk now costs a quarter of that on top.
    assert made(0.25 * 2.0 * 0.08 / bare) == pytest.approx(bare / 1.25, rel=0.05)


def test_chunks_grow_with_what_a_listener_has_in_hand() -> None:
    """As in the engine's scheduler: one frame at first, then half of what is buffered, and last all that is left."""
    engine = replace(PLAIN, chunks=(1, 2, 4, 8, 16))
    assert [engine.chunk_of(0.08 * frames) for frames in (-12.5, 0, 3.9, 4, 7.9, 8, 100)] == [1, 1, 1, 2, 2, 4, 16]
    assert [engine.last_chunk(left) for left in (1, 3, 9, 16, 40)] == [1, 4, 16, 16, 16]


def test_the_codec_is_paid_in_the_steps_that_it_is_in() -> None:
    """Steps take no time here, so all that was sent is still buffered: chunks of 1, 1, 1, 1, 2, 2, 2, and the rest."""
    engine = replace(PLAIN, steps=((1, 0.0), (2, 0.0)), prompt_s=0.0, codec_s=0.001, codec_frame_s=0.0001)
    growing = replace(engine, chunks=(1, 2, 4, 8, 16))
    load = Load(listeners=1, frames=13, seconds=1.0, at_once=True)
    one_by_one, grown = (13 * 0.08 / Fleet(times, 1).run(load).audio_s_per_s for times in (engine, growing))
    assert one_by_one == pytest.approx(13 * 0.0011)
    assert grown == pytest.approx(8 * 0.001 + 14 * 0.0001, abs=1e-4)


def test_the_step_that_draws_the_end_is_paid_and_ends_the_stream() -> None:
    engine = replace(PLAIN, last_steps=1)
    said = Fleet(engine, 1).run(Load(listeners=1, frames=10, seconds=1.0, at_once=True))
    assert said.audio_s_per_s == pytest.approx(10 * 0.08 / (11 * 0.01 + 0.005))


def test_who_finds_no_row_waits_and_too_slow_a_step_is_heard() -> None:
    crowd = Fleet(PLAIN, 1).run(Load(listeners=16, frames=10, seconds=1.0, at_once=True))
    assert crowd.first_quantile_s(0.9) > 10 * PLAIN.step_s(8, 0) > crowd.first_quantile_s(0.1)
    slow = replace(PLAIN, steps=((1, 0.1), (2, 0.1)))
    assert Fleet(slow, 1).run(Load(listeners=1, frames=10, seconds=1.0, at_once=True)).gap_share == 1.0


def test_more_rows_than_a_batch_go_to_those_who_need_sound() -> None:
    narrow = replace(PLAIN, rows=8, batch=2, steps=((1, 0.02), (2, 0.02)))
    said = Fleet(narrow, 1).run(Load(listeners=6, frames=20, seconds=1.0, at_once=True))
    assert said.first_quantile_s(1.0) < 20 * 0.02, "the last was heard before the first was through"


def test_the_same_seed_says_the_same() -> None:
    load = Load(listeners=20, frames=20, seconds=10.0)
    assert Fleet(PLAIN, 2, seed=3).run(load) == Fleet(PLAIN, 2, seed=3).run(load)
