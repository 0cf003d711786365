"""A request's numbers stay its own, and plans made from columns are those that one would make request by request."""

from __future__ import annotations

import random

import numpy as np

from engine.test_scheduler import SPEC, ask, make
from sonant.engine.ledger import OFFLINE_SLACK_S, Ledger
from sonant.engine.request import Request, State
from sonant.engine.scheduler import Scheduler


def test_places_are_kept_through_growth_and_start_anew_for_the_next() -> None:
    scheduler = make(max_rows=200, blocks=10_000)
    asked = [ask(scheduler, arrival_s=n) for n in range(200)]
    scheduler.plan(0.0)
    assert sorted(r.place for r in asked) == list(range(200))
    for n, request in enumerate(asked):
        request.launched, request.vocoded, request.first_audio_s = n, n // 2, float(n)
    assert [(r.launched, r.vocoded) for r in asked] == [(n, n // 2) for n in range(200)]
    gone = asked[17]
    place = gone.place
    scheduler.release(gone)
    assert gone.place == -1 and gone.launched == 0 and scheduler.ledger.row[place] == -1
    newcomer = ask(scheduler, arrival_s=300)
    scheduler.plan(0.0)
    assert newcomer.place == place and (newcomer.launched, newcomer.vocoded, newcomer.first_audio_s) == (0, 0, None)
    assert scheduler.ledger.first_audio_s[place] == float("-inf") and scheduler.ledger.total[place] == -1


def test_who_looks_while_it_grows_finds_nobody_who_is_not_there() -> None:
    """Another thread may ask at any moment how many rows could be lent."""
    scheduler, found = make(max_rows=200, blocks=10_000), list[int]()

    class Watched(Ledger):
        def __setattr__(self, name: str, value: object) -> None:
            super().__setattr__(name, value)
            found.append(len(scheduler.sharing.lenders(0.0)) + len(self.with_rows()))

    scheduler.ledger.__class__ = Watched
    for n in range(65):
        ask(scheduler, arrival_s=n)
    scheduler.plan(0.0)
    assert found and max(found) == 64


def test_news_of_one_that_has_ended_reaches_nobody_else() -> None:
    scheduler = make(max_rows=1)
    first = ask(scheduler)
    scheduler.plan(0.0)
    place = first.place
    scheduler.release(first)
    second = ask(scheduler, arrival_s=1)
    scheduler.plan(0.0)
    first.hear(7.0)
    first.show_heard()
    assert second.place == place and second.heard_s == 0.0 and scheduler.ledger.heard_s[place] == 0.0
    second.hear(3.0)
    assert scheduler.ledger.heard_s[place] == 0.0
    second.show_heard()
    assert scheduler.ledger.heard_s[place] == 3.0


def drawn(scheduler: Scheduler, rng: random.Random) -> Request:
    """A request at a random point of its life."""
    options = {"live": rng.random() < 0.7, "priority": rng.choice([0, 0, 1]), "playback_speed": rng.choice([1.0, 1.5])}
    request = ask(scheduler, arrival_s=rng.random(), frames=60, **options)
    scheduler.plan(0.0)
    request.state = rng.choice([State.PREFILL, State.DECODING, State.DECODING, State.DRAINING, State.LEAVING])
    request.launched = rng.randint(0, 61)
    request.vocoded = rng.randint(max(0, request.launched - scheduler.sizes.ring), request.launched)
    request.first_audio_s = None if rng.random() < 0.2 else 10 * rng.random()
    request.heard_s = rng.random()
    if request.state is State.DRAINING:
        request.total = rng.randint(0, 60)
    return request


def chunk_due(scheduler: Scheduler, request: Request, now_s: float, on_host: bool) -> int:
    """The rule for one request, written as plainly as possible."""
    sizes = scheduler.sizes.chunks
    if request.state is State.DRAINING:
        left = (request.total or 0) - request.vocoded
        return next((s for s in sizes if s >= left), sizes[-1]) if left > 0 else 0
    if request.state is not State.DECODING:
        return 0
    ready, want = request.frames_launched - request.vocoded - SPEC.codec_lookahead, sizes[-1]
    if request.live:
        wanted = scheduler.slack_s(request, now_s) / SPEC.frame_s / 2
        if not on_host and request.first_audio_s is not None:
            wanted = max(wanted, ready)
        want = max(s for s in sizes if s == 1 or s <= wanted)
    return want if ready >= want else 0


def test_what_is_planned_for_many_is_what_would_be_planned_for_each() -> None:
    rng = random.Random(1)
    for round_ in range(30):
        scheduler = make(max_rows=40, max_batch=rng.choice([5, 40]), codec_batch_s=rng.choice([1.6, 100.0]))
        requests = [drawn(scheduler, rng) for _ in range(rng.randint(1, 40))]
        now_s = 12 * rng.random()
        places = np.array([r.place for r in requests])
        slacks_s = [scheduler.slack_s(r, now_s) for r in requests]
        ahead_s = scheduler.ledger.slacks_s(places, now_s, SPEC.frame_s)
        np.testing.assert_allclose(ahead_s, slacks_s)
        on_host = round_ % 2 == 0
        if on_host:
            scheduler.telemetry.vocode_s.add(1e-5)
        due = scheduler.codec_batching.chunks_due(places, ahead_s)
        assert due.tolist() == [chunk_due(scheduler, r, now_s, on_host) for r in requests]
        need = {r: (-r.priority, s) for r, s in zip(requests, slacks_s, strict=True)}
        able = [r for r in requests if r.has_steps_left and r.frames_launched - r.vocoded < scheduler.sizes.ring - 1]
        most = scheduler.config.max_batch or 0
        launched = {r: r.launched for r in requests}
        decoding = scheduler.ledger.all_at(scheduler.plan(now_s).decoding)
        assert set(decoding) <= set(able) and len(decoding) == min(most, len(able)), round_
        left_out = [need[r] for r in able if r not in decoding]
        assert not left_out or max(need[r] for r in decoding) <= min(left_out)
        assert all(r.launched == launched[r] + (r in decoding) for r in requests)


def test_a_file_is_as_far_ahead_as_it_is_said_to_be() -> None:
    scheduler = make()
    file = ask(scheduler, live=False)
    scheduler.plan(0.0)
    assert scheduler.ledger.slacks_s(np.array([file.place]), 50.0, SPEC.frame_s).tolist() == [OFFLINE_SLACK_S]


def test_nobody_is_where_nobody_entered() -> None:
    ledger = Ledger()
    assert not len(ledger.with_rows()) and ledger.all_at([]) == []
