"""Admission: the server takes requests that will be heard in time, and no client's crowd before all others."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import httpx
import pytest

from serving.conftest import Serve, Served, wait_for
from sonant.engine.telemetry import EngineStats
from sonant.errors import Overloaded
from sonant.serving.api.error_responses import Refused
from sonant.serving.limits.admission import OWN_SHARE, Admission, RateLimit, Ticket
from sonant.serving.options import ServeOptions

ROWS, TURN_S, START_S = 8, 2.0, 0.25
IDLE = EngineStats(
    running=0, waiting=0, free_rows=ROWS, rows=ROWS, free_blocks=9000, blocks=9000, steps=0,
    start_s=START_S, turn_s=TURN_S, whole_s=20.0,
)  # fmt: skip
FULL = replace(IDLE, running=ROWS, free_rows=0, free_blocks=8900)


def admission(**options: Any) -> Admission:
    return Admission(ServeOptions(**{"max_first_audio_s": 10.0, **options}))


def admitted(gate: Admission, client: str, stats: EngineStats, count: int, max_waiting: int = 1024) -> list[Ticket]:
    """Ask for `count` requests of a client at the same moment → the tickets of those that are taken."""
    tickets = []
    for _ in range(count):
        try:
            tickets.append(gate.admit(client, stats, max_waiting))
        except Refused as e:
            assert e.status == 429 and e.code == "overloaded" and e.retry_s >= 1
    return tickets


def test_a_batch_larger_than_a_minutes_requests_is_told_when_it_will_be_taken() -> None:
    rate = RateLimit(10)
    rate.take("a", 0.0, 5)
    with pytest.raises(Refused) as refused:
        rate.take("a", 0.0, 32)
    assert refused.value.retry_s == pytest.approx(30)
    rate.take("a", refused.value.retry_s, 32)  # more than the ten there can be, so the client owes the rest
    with pytest.raises(Refused) as refused:
        rate.take("a", 30.0)
    assert refused.value.retry_s == pytest.approx(23 * 6)


def test_first_sound_is_predicted_from_rows_the_queue_and_what_is_on_its_way() -> None:
    assert IDLE.first_sound_s() == IDLE.first_sound_s(ROWS - 1) == START_S
    assert IDLE.first_sound_s(ROWS) == START_S + TURN_S / ROWS
    assert FULL.first_sound_s() == START_S + TURN_S / ROWS
    assert replace(FULL, lendable_rows=1).first_sound_s() == START_S
    assert replace(FULL, in_need=7).first_sound_s(8) == START_S + 16 * TURN_S / ROWS
    assert replace(FULL, waiting=50).first_sound_s() == FULL.first_sound_s()  # of files, which newcomers overtake


def test_without_blocks_first_sound_waits_for_an_end() -> None:
    stats = replace(FULL, free_blocks=0, lendable_rows=ROWS)
    assert stats.first_sound_s() == START_S + stats.whole_s / ROWS
    assert replace(stats, free_blocks=9000 // ROWS + 1).first_sound_s() == START_S


def test_fifty_at_the_same_moment_are_taken_as_far_as_they_will_be_heard_in_time() -> None:
    gate = admission()
    clients = [f"client {n}" for n in range(50)]
    taken = [ticket for client in clients for ticket in admitted(gate, client, IDLE, 1)]
    in_time = ROWS + int((10.0 - START_S) * ROWS / TURN_S)
    assert len(taken) == gate.on_the_way == in_time < 50
    with pytest.raises(Refused) as refused:
        gate.admit("another", replace(FULL, in_need=20), 1024)
    late_s = (20 + in_time + 1) * TURN_S / ROWS + START_S - 10.0
    assert refused.value.retry_s == pytest.approx(late_s) and late_s > 5
    for ticket in taken:
        ticket.arrived()
        ticket.arrived()
    assert gate.on_the_way == 0
    for ticket in taken:
        ticket.close()
    assert not gate.active


def test_those_who_come_one_after_the_other_in_time_are_all_taken() -> None:
    """They come 200 ms apart, and each row is free again after two seconds, so there is one for each."""
    gate = admission()
    for n in range(50):
        held = min(n, ROWS)
        waiting = max(0, n - ROWS - n * ROWS // 10)
        stats = replace(IDLE, running=held, free_rows=ROWS - held, in_need=waiting, waiting=waiting)
        ticket = gate.admit("one", stats, 1024)
        ticket.arrived()


def test_one_client_leaves_room_for_the_others() -> None:
    gate = admission()
    crowd = admitted(gate, "crowd", FULL, 500)
    assert len(crowd) == int((10.0 * OWN_SHARE - START_S) * ROWS / TURN_S)
    with pytest.raises(Refused):
        gate.admit("crowd", FULL, 1024)
    assert len([t for n in range(5) for t in admitted(gate, f"other {n}", FULL, 1)]) == 5
    for ticket in crowd:
        ticket.close()
    assert set(gate.active) == {f"other {n}" for n in range(5)}


@pytest.mark.parametrize(("given", "most"), [(None, ROWS + 20), (3, 3), (100, 100)])
def test_streams_of_one_client_follow_the_rows_unless_a_number_is_given(given: int | None, most: int) -> None:
    gate = admission(max_streams_per_client=given)
    unhurried = replace(IDLE, turn_s=0.0)
    for _ in range(most):
        gate.admit("one", unhurried, 40).arrived()
    with pytest.raises(Refused) as refused:
        gate.admit("one", unhurried, 40)
    assert refused.value.code == "too_many_requests"
    gate.admit("two", unhurried, 40)


def test_a_session_is_not_in_its_own_way() -> None:
    gate = admission()
    late = replace(FULL, in_need=int(0.9 * 10 * ROWS / TURN_S))
    with gate.session("one", late, 1024):
        gate.admit("one", late, 1024, place=False)
        assert gate.active["one"] == 1
    assert not gate.active and not gate.sessions


def test_a_full_queue_counts_those_on_their_way() -> None:
    gate = admission()
    unhurried = replace(FULL, turn_s=0.0)
    for _ in range(4):
        gate.admit("one", unhurried, 4)
    with pytest.raises(Overloaded, match="4 requests are waiting"):
        gate.admit("two", unhurried, 4)
    assert len(admitted(gate, "three", replace(IDLE, turn_s=0.0), ROWS, 4)) == ROWS


BODY = {"input": "hello the world", "voice": "alloy", "response_format": "pcm", "max_frames": 4}


def together(count: int, ask: Callable[[int], None]) -> None:
    threads = [threading.Thread(target=ask, args=(n,)) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)


def test_who_waits_past_the_promise_gets_429_and_a_time(serve: Serve) -> None:
    served = serve("endless toy", engine={"max_rows": 1, "max_parked": 0}, max_first_audio_s=0.8)
    engine = served.supervisor.engine
    with engine.stream("hello the world", seed=1, max_frames=3000) as holder:
        holder.read()
        answers: list[httpx.Response] = []
        began_s = time.monotonic()
        together(3, lambda n: answers.append(served.post(**BODY)))
        assert time.monotonic() - began_s < 5
        file = threading.Thread(target=lambda: answers.append(served.post(**BODY, stream=False)))
        file.start()
        wait_for(lambda: engine.stats().waiting == 1)
        time.sleep(0.9)
        assert file.is_alive()  # a file has no promise of a first sound
    file.join(20)
    assert [a.status_code for a in answers] == [429, 429, 429, 200]
    for answer in answers[:3]:
        assert float(answer.headers["retry-after"]) >= 1 and answer.json()["error"]["code"] == "overloaded"
    rejected = re.findall(r'sonant_rejected_total{reason="(\w+)"} (\d)', httpx.get(f"{served.url}/metrics").text)
    assert dict(rejected).get("too_late") and sum(int(count) for _, count in rejected) == 3
    assert served.post(**BODY).status_code == 200


def test_a_newcomer_is_heard_while_long_texts_have_every_row(serve: Serve) -> None:
    """The texts take far longer than anybody would wait: before rows were lent, no byte came for minutes."""
    served = serve("endless toy", engine={"max_rows": 2, "segment_chars": 100})
    long = {**BODY, "input": "The world is large and so is this text. " * 490, "max_frames": None}
    done = threading.Event()

    def hold(_: int) -> None:
        with httpx.stream("POST", f"{served.url}/v1/audio/speech", json=long, timeout=60) as response:
            for _ in response.iter_raw():
                if done.is_set():
                    return

    holders = threading.Thread(target=together, args=(2, hold))
    holders.start()
    try:
        wait_for(lambda: served.supervisor.engine.stats().free_rows == 0)
        for _ in range(3):
            assert _first_byte_s(served) < 3
        wait_for(lambda: _in_engine(served) >= 2)  # the long texts go on, but for moments between parts
    finally:
        done.set()
        holders.join(20)
    metrics = httpx.get(f"{served.url}/metrics").text
    assert "sonant_parkings_total" in metrics and "sonant_queue_wait_seconds_bucket" in metrics
    assert "sonant_requests_parked" in metrics


def _in_engine(served: Served) -> int:
    stats = served.supervisor.engine.stats()
    return stats.running + stats.parked + stats.waiting


def _first_byte_s(served: Served) -> float:
    began_s = time.monotonic()
    with httpx.stream("POST", f"{served.url}/v1/audio/speech", json=BODY, timeout=20) as response:
        next(response.iter_raw())
        return time.monotonic() - began_s
