"""Rows go to the requests that need them: one that is ahead lends its row, and none waits for ever."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from engine.test_scheduler import SPEC, ask, make
from sonant.engine.request import Request, State
from sonant.engine.row_sharing import (
    HEAD_START_S,
    LOOK_AGAIN_S,
    NEED_S,
    OFFLINE_SLACK_S,
    OVERDUE_S,
    PARK_SLACK_S,
    PARKINGS_A_STEP,
    TENURE_S,
)
from sonant.engine.scheduler import Scheduler

NOW_S = 100.0


def sitting(scheduler: Scheduler, slack_s: float, **options: Any) -> Request:
    """A request that has had its row for long enough to lend it, and is `slack_s` ahead."""
    request = ask(scheduler, arrival_s=0, frames=300, **options)
    scheduler.plan(0.0)
    assert request.row >= 0
    frames = 100
    request.launched = request.vocoded = request.emitted = frames
    request.state, request.preroll = State.DECODING, -1
    request.first_audio_s = NOW_S + slack_s - frames * SPEC.frame_s
    return request


def later_part(scheduler: Scheduler, slack_s: float, **options: Any) -> Request:
    request = ask(scheduler, **options)
    request.continue_stream(NOW_S - 10, 10 + slack_s)
    return request


def seated(*requests: Request) -> list[bool]:
    return [request.row >= 0 for request in requests]


def test_need_decides_who_is_first_in_line() -> None:
    scheduler = make(max_rows=6)
    file = ask(scheduler, arrival_s=1, live=False)
    file.since_s = NOW_S - 0.1
    rich, poor = later_part(scheduler, 3.0), later_part(scheduler, 0.5)
    second, first = ask(scheduler, arrival_s=NOW_S - 1), ask(scheduler, arrival_s=NOW_S - 2)
    vip = ask(scheduler, arrival_s=NOW_S, live=False, priority=1)
    vip.since_s = NOW_S
    line = scheduler.sharing._line(NOW_S)
    assert line == [vip, first, second, poor, rich, file]
    scheduler.plan(NOW_S)
    assert all(seated(*line))


@pytest.mark.parametrize("kind", ["file", "rich"])
def test_whoever_is_due_goes_before_all_who_come_later(kind: str) -> None:
    """The bound on waiting: once a request is due and the head start of new listeners is over, no later arrival goes
    before it."""
    scheduler = make(max_rows=1, max_parked=0)
    sitting(scheduler, 0.0)
    patient = ask(scheduler, live=False) if kind == "file" else later_part(scheduler, OFFLINE_SLACK_S)
    patient.since_s = NOW_S
    before = [ask(scheduler, arrival_s=NOW_S + n) for n in range(10)]  # they arrive before that
    late = [ask(scheduler, arrival_s=NOW_S + OFFLINE_SLACK_S + HEAD_START_S + 0.1 * n) for n in range(1, 20)]
    served = []
    for _ in range(11):
        scheduler.release(scheduler.running[0])
        scheduler.plan(NOW_S + 20)
        served.append(scheduler.running[0])
    assert served == [*before, patient] and not any(seated(*late))


def test_a_newcomer_is_lent_the_row_of_whoever_is_furthest_ahead() -> None:
    scheduler = make(max_rows=3)
    poor, richest, rich = (sitting(scheduler, s) for s in (0.5, PARK_SLACK_S + 9, PARK_SLACK_S + 1))
    row, blocks = richest.row, richest.allocation
    newcomer = ask(scheduler, arrival_s=NOW_S)
    plan = scheduler.plan(NOW_S)
    assert newcomer.row == row and [r for r, _, _ in plan.prefill] == [newcomer]
    assert richest.state is State.PARKED and richest.allocation is blocks and scheduler.parked == [richest]
    users = scheduler.ledger.all_at(plan.users())
    assert richest not in users and {poor, rich} <= set(users)
    another = ask(scheduler, arrival_s=NOW_S)
    scheduler.plan(NOW_S)
    assert another.row >= 0 and rich.state is State.PARKED
    third = ask(scheduler, arrival_s=NOW_S)
    scheduler.plan(NOW_S)
    assert third.state is State.WAITING and poor.state is State.DECODING  # a request that is not ahead keeps its row


def test_a_file_lends_its_row_before_any_listener_and_takes_none_from_another_file() -> None:
    scheduler = make(max_rows=2)
    file, rich = sitting(scheduler, 0, live=False), sitting(scheduler, 60.0)
    newcomer = ask(scheduler, arrival_s=NOW_S)
    scheduler.plan(NOW_S)
    assert newcomer.row >= 0 and file.state is State.PARKED and rich.state is State.DECODING
    scheduler = make(max_rows=1)
    file = sitting(scheduler, 0, live=False)
    other = ask(scheduler, live=False)
    scheduler.plan(NOW_S + 1000)
    assert file.state is State.DECODING and other.state is State.WAITING


def test_a_file_that_has_waited_takes_the_row_of_one_who_is_ahead() -> None:
    scheduler = make(max_rows=1)
    rich = sitting(scheduler, 60.0)
    file = ask(scheduler, live=False)
    file.since_s = NOW_S
    scheduler.plan(NOW_S)
    assert file.state is State.WAITING
    scheduler.plan(NOW_S + OFFLINE_SLACK_S)
    assert file.row >= 0 and rich.state is State.PARKED


def test_where_all_are_poor_time_is_shared() -> None:
    scheduler = make(max_rows=2)
    poor, poorer = sitting(scheduler, 1.0), sitting(scheduler, 0.1)
    newcomer = ask(scheduler, arrival_s=NOW_S - 0.5 * OVERDUE_S)
    scheduler.plan(NOW_S)
    assert newcomer.state is State.WAITING
    scheduler.plan(NOW_S + OVERDUE_S)
    assert newcomer.row >= 0 and poor.state is State.PARKED and poorer.state is State.DECODING


def test_who_has_long_been_dry_waits_for_a_row_only_since_they_lost_it() -> None:
    """In an overload all have run dry: each has its turn, and a new listener goes before those that have just had
    theirs."""
    scheduler = make(max_rows=1)
    dry = sitting(scheduler, -50.0)
    first = ask(scheduler, arrival_s=NOW_S - OVERDUE_S)
    scheduler.plan(NOW_S)
    assert dry.state is State.PARKED and first.row >= 0
    second = ask(scheduler, arrival_s=NOW_S + 3)
    scheduler.release(first)
    scheduler.plan(NOW_S + 3)
    assert second.row >= 0
    third = ask(scheduler, arrival_s=NOW_S + HEAD_START_S + 0.1)
    scheduler.release(second)
    scheduler.plan(NOW_S + HEAD_START_S + 0.1)
    assert seated(dry, third) == [True, False]


def test_on_a_slow_machine_a_second_is_enough_to_have_had_a_row() -> None:
    scheduler = make(max_rows=1)
    listener = sitting(scheduler, 60.0)
    listener.row_s, listener.tenure_at = NOW_S, listener.launched + scheduler.sharing.tenure
    ask(scheduler, arrival_s=NOW_S)
    scheduler.plan(NOW_S)
    scheduler.plan(NOW_S + TENURE_S - 0.01)
    assert listener.state is State.DECODING
    scheduler.plan(NOW_S + TENURE_S + LOOK_AGAIN_S)
    assert listener.state is State.PARKED


def test_priority_lends_only_downwards() -> None:
    scheduler = make(max_rows=1)
    vip = sitting(scheduler, 60.0, priority=1)
    newcomer = ask(scheduler, arrival_s=0)
    scheduler.plan(NOW_S)
    assert newcomer.state is State.WAITING and vip.state is State.DECODING
    scheduler = make(max_rows=1)
    poor = sitting(scheduler, 0.1)
    vip = ask(scheduler, arrival_s=NOW_S, priority=1)
    scheduler.plan(NOW_S)
    assert vip.row >= 0 and poor.state is State.PARKED


@pytest.mark.parametrize("what", ["prefill", "no tenure", "nothing heard", "aborted", "draining"])
def test_who_has_nothing_to_show_for_their_row_is_not_parked(what: str) -> None:
    scheduler = make(max_rows=1)
    request = sitting(scheduler, 60.0)
    if what == "prefill":
        request.state = State.PREFILL
    elif what == "no tenure":
        request.tenure_at = request.launched + 10**6
    elif what == "nothing heard":
        request.first_audio_s = None
    elif what == "aborted":
        request.abort()
    else:
        request.state, request.total = State.DRAINING, 10**6
    newcomer = ask(scheduler, arrival_s=0)
    scheduler.plan(NOW_S)
    assert newcomer.state is State.WAITING and not scheduler.parked


def test_who_came_back_has_their_row_for_a_while() -> None:
    scheduler = make(max_rows=1)
    rich = sitting(scheduler, PARK_SLACK_S)
    newcomer = ask(scheduler, arrival_s=NOW_S)
    scheduler.plan(NOW_S)
    assert rich.state is State.PARKED
    scheduler.release(newcomer)
    scheduler.plan(NOW_S)
    assert rich.state is State.DECODING  # since a row is free
    ask(scheduler, arrival_s=NOW_S)
    steps = 0
    while rich.state is State.DECODING:
        scheduler.plan(NOW_S + steps * LOOK_AGAIN_S)
        steps += 1
    assert steps == scheduler.sizes.chunks[-1]


def test_the_parked_come_back_when_what_they_have_runs_out() -> None:
    scheduler = make(max_rows=2)
    parked, other = sitting(scheduler, PARK_SLACK_S + 1), sitting(scheduler, 100.0, live=False)
    newcomer = ask(scheduler, arrival_s=NOW_S, frames=300)
    scheduler.plan(NOW_S)
    assert other.state is State.PARKED  # the file first; next is the listener
    second = ask(scheduler, arrival_s=NOW_S, frames=300)
    scheduler.plan(NOW_S)
    assert parked.state is State.PARKED
    for request in (newcomer, second):  # both are ahead by now
        request.state, request.launched, request.vocoded, request.first_audio_s = State.DECODING, 200, 200, NOW_S
    scheduler.plan(NOW_S + PARK_SLACK_S + 1 - NEED_S - 0.1)
    assert parked.state is State.PARKED
    scheduler.plan(NOW_S + PARK_SLACK_S + 1 - NEED_S)
    assert parked.state is other.state is State.DECODING  # the file has waited long enough too
    assert scheduler.sharing.telemetry.parkings == 4


def test_without_blocks_the_first_in_line_waits_and_nobody_is_parked_for_it() -> None:
    scheduler = make(max_rows=1, blocks=140)
    rich = sitting(scheduler, 60.0)
    big, small = ask(scheduler, NOW_S - 2, frames=300), ask(scheduler, NOW_S - 1, frames=1)
    scheduler.plan(NOW_S)
    assert seated(rich, big, small) == [True, False, False] and not scheduler.parked
    scheduler.release(rich)
    scheduler.plan(NOW_S)
    assert seated(big, small) == [True, False]


def test_a_parked_request_goes_before_those_who_lack_blocks() -> None:
    scheduler = make(max_rows=1, blocks=140)
    rich = sitting(scheduler, 60.0)
    newcomer = ask(scheduler, NOW_S, frames=1)
    scheduler.plan(NOW_S)
    big = ask(scheduler, NOW_S, frames=300)
    scheduler.release(newcomer)
    scheduler.plan(NOW_S)
    assert rich.state is State.DECODING and big.state is State.WAITING


def test_no_more_are_parked_than_allowed_and_exchanges_go_on() -> None:
    scheduler = make(max_rows=2, max_parked=1)
    first, second = sitting(scheduler, 50.0), sitting(scheduler, 40.0)
    newcomers = [ask(scheduler, arrival_s=NOW_S) for _ in range(2)]
    scheduler.plan(NOW_S)
    assert seated(first, second, *newcomers) == [False, True, True, False]
    first.first_audio_s = NOW_S - 1000  # has run dry
    scheduler.plan(NOW_S)
    assert seated(first, second) == [True, False] and scheduler.parked == [second]


def test_a_step_parks_a_few_and_the_next_ones_the_others() -> None:
    scheduler = make(max_rows=PARKINGS_A_STEP + 4, blocks=10_000)
    for _ in range(PARKINGS_A_STEP + 4):
        sitting(scheduler, 60.0)
    newcomers = [ask(scheduler, arrival_s=NOW_S, length=2) for _ in range(PARKINGS_A_STEP + 4)]
    scheduler.plan(NOW_S)
    assert sum(seated(*newcomers)) == PARKINGS_A_STEP
    scheduler.plan(NOW_S)
    assert all(seated(*newcomers))


def test_who_comes_is_looked_at_at_once_however_many_wait_in_vain() -> None:
    scheduler = make(max_rows=1)
    rich = sitting(scheduler, 60.0)
    rich.tenure_at = 10**6
    first = ask(scheduler, arrival_s=NOW_S)
    scheduler.plan(NOW_S)
    rich.tenure_at = 0
    vip = ask(scheduler, arrival_s=NOW_S, priority=1)
    scheduler.plan(NOW_S)
    assert seated(vip, first) == [True, False]


@pytest.mark.parametrize(("coming", "looks"), [(None, True), (0, False), (1, False), (2, True)])
def test_rows_to_be_lent_are_looked_for_where_free_ones_may_not_do(coming: int | None, looks: bool) -> None:
    scheduler = make(max_rows=4)
    sitting(scheduler, 60.0)
    ask(scheduler, arrival_s=NOW_S)  # three rows are free: for this one, those coming, and one more
    asked: list[float] = []
    scheduler.sharing.lendable = lambda now_s: len(asked.append(now_s) or asked)  # type: ignore[method-assign, func-returns-value]
    stats = scheduler.sharing.stats(0, waiting=1, unseen=0, coming=coming)
    assert (len(asked), stats.lendable_rows) == (looks, looks)


def test_an_engine_may_be_told_not_to_park() -> None:
    scheduler = make(max_rows=1, max_parked=0)
    sitting(scheduler, 60.0)
    newcomer = ask(scheduler, arrival_s=0)
    scheduler.plan(NOW_S)
    assert newcomer.state is State.WAITING and scheduler.sharing.lendable(NOW_S) == 0


def test_an_abort_while_parked_frees_the_blocks() -> None:
    scheduler = make(max_rows=1)
    rich = sitting(scheduler, 60.0)
    newcomer = ask(scheduler, arrival_s=NOW_S)
    scheduler.plan(NOW_S)
    rich.abort()
    scheduler.release(rich)
    scheduler.release(newcomer)
    pool = scheduler.sharing.pool
    assert len(pool.free) == pool.total and len(scheduler.rows.free) == 1 and not scheduler.parked
    assert rich.state is State.DONE


def test_how_long_rows_are_held_is_measured_without_the_queue() -> None:
    scheduler = make(max_rows=1)
    request = ask(scheduler, arrival_s=0)
    for step in range(100):
        plan = scheduler.plan(NOW_S + 0.01 * step)
        for ready in plan.preroll:
            ready.preroll_up_to(-1)
    tenure = scheduler.sizes.chunks[-1]
    assert scheduler.sharing.telemetry.turn_s.value == pytest.approx(0.01 * tenure, rel=0.01)
    np.testing.assert_equal(scheduler.sharing.telemetry.queue_s.counts[-1], 1)  # it had waited a hundred seconds
    assert request.row >= 0
