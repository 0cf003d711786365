"""The simulation of replicas: what it must reproduce of what was measured, and what can never be otherwise."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sonant.bench.scale.engine_times import H200_1_7B, EngineTimes
from sonant.bench.scale.fleet import Fleet, Load
from sonant.bench.scale.shared_host import HostTimes, SharedHost, Worker

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


def test_workers_share_cores_evenly_and_none_is_faster_than_a_core() -> None:
    """On two cores: three have two thirds of one each, and all of one when a third of them is through."""
    host, done = SharedHost(2.0), []
    for name, work_s in (("a", 1.0), ("b", 2.0), ("c", 3.0)):
        host.do(Worker(), work_s, lambda now_s, name=name: done.append((name, now_s)))
    while (next_s := host.next_s()) is not None:
        host.go_to(next_s)
    assert [name for name, _ in done] == ["a", "b", "c"]
    assert [now_s for _, now_s in done] == pytest.approx([1.5, 2.5, 3.5])


def test_what_a_worker_is_given_is_done_in_order_and_at_once_if_it_takes_nothing() -> None:
    host, worker, done = SharedHost(1.0), Worker(), []
    for name, work_s in (("a", 0.5), ("b", 0.0), ("c", 0.25)):
        host.do(worker, work_s, lambda now_s, name=name: done.append((name, now_s)))
    while (next_s := host.next_s()) is not None:
        host.go_to(next_s)
    assert done == [("a", 0.5), ("b", 0.5), ("c", 0.75)]


def test_on_a_shared_machine_one_listener_is_added_up_by_hand() -> None:
    """Each worker has a core: the proxy, the front end, prompt and step, and the way back; then frame after frame."""
    host = HostTimes(
        cores=4.0, front_request_s=0.002, front_frame_s=0.0005, client_request_s=0.003, client_frame_s=0.0004
    )
    said = Fleet(PLAIN, 1, host=host).run(Load(listeners=1, frames=10, seconds=1.0, at_once=True))
    assert said.first_s == pytest.approx((0.003 + 0.002 + 0.005 + 0.01 + 0.0005 + 0.0004 + 0.001,))
    whole_s = 0.003 + 0.002 + 0.005 + 10 * 0.01 + 0.0005 + 0.0004
    assert said.audio_s_per_s == pytest.approx(10 * 0.08 / whole_s)


def test_what_carries_the_sound_takes_its_share_of_the_cores() -> None:
    def made(frame_s: float) -> float:
        load = Load(listeners=6, frames=50, seconds=30.0, closed=True)
        return Fleet(PLAIN, 3, host=HostTimes(cores=2.0, client_frame_s=frame_s)).run(load).audio_s_per_s

    bare = made(0.0)
    # Two cores made one frame in so many core-seconds; each now costs a quarter of that on top.
    assert made(0.25 * 2.0 * 0.08 / bare) == pytest.approx(bare / 1.25, rel=0.05)


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
