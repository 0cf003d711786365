"""The search for the most listeners, against servers whose limit is known."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from bench.samples import failed, level, sample
from sonant.bench.client.capacity import Measure, Promise, Search, needed_requests, share_at_least
from sonant.bench.client.load_level import ClientError, LoadLevel
from sonant.bench.client.sample import Failure, Sample
from sonant.errors import ConfigError


def server(limit: int, bad_share: float = 0.0, slow_from: int = 10**9, seed: int = 0) -> Measure:
    """A server that holds up to `limit` listeners; of their streams `bad_share` are bad at random."""
    rng = random.Random(seed)

    def measure(listeners: int, requests: int) -> LoadLevel:
        def one() -> Sample:
            bad = listeners > limit or rng.random() < bad_share
            return sample(ttfp_s=0.9 if listeners >= slow_from else 0.1, gap_s=0.3 if bad else 0.0)

        return level([one() for _ in range(requests)], listeners)

    return measure


@pytest.mark.parametrize("limit", [1, 2, 3, 37, 64, 100])
def test_the_limit_is_found(limit: int) -> None:
    found = Search(server(limit), Promise()).run()
    assert found.listeners <= limit
    assert found.listeners >= limit - max(1, 0.05 * limit)
    assert found.breaks_at is not None and limit < found.breaks_at <= limit + max(2, 0.1 * limit)
    assert found.probes[-1].confirmed and found.probes[-1].requests >= 436


def test_a_slow_first_sound_is_a_limit_too() -> None:
    found = Search(server(100, slow_from=20), Promise(ttfp_s=0.5)).run()
    assert 17 <= found.listeners < 20


def test_three_bad_in_a_hundred_is_never_confirmed() -> None:
    found = Search(server(50, bad_share=0.03), Promise()).run()
    assert found.listeners == 0
    assert not any(p.holds for p in found.probes if p.confirmed)


def test_a_promise_of_less_takes_it() -> None:
    assert Search(server(50, bad_share=0.03), Promise(share=0.9)).run().listeners >= 47


def test_nothing_holds() -> None:
    found = Search(server(0), Promise()).run()
    assert (found.listeners, found.breaks_at) == (0, 1)


def test_more_than_was_tried() -> None:
    found = Search(server(1000), Promise(), most=24).run()
    assert (found.listeners, found.breaks_at) == (24, None)


def test_a_failed_request_is_not_without_gaps() -> None:
    def measure(listeners: int, requests: int) -> LoadLevel:
        lost = [failed(Failure.STATUS, 429)] * (requests // 10 if listeners > 4 else 0)
        return level([*lost, *([sample()] * (requests - len(lost)))], listeners)

    assert Search(measure, Promise()).run().listeners == 4


def test_sound_of_which_gaps_cannot_be_told() -> None:
    whole = Sample("p", 0.0, end_s=1.0, arrivals_s=(1.0,), durations_s=None, audio_s=2.0, status=200)
    with pytest.raises(ConfigError, match="pcm or wav"):
        Search(lambda listeners, requests: level([whole] * requests, listeners), Promise()).run()


def test_how_sure_it_is() -> None:
    assert needed_requests(Promise()) == 299
    assert share_at_least(299, 299, 0.95) == pytest.approx(0.05 ** (1 / 299), abs=1e-9)  # all good: the n-th root
    assert share_at_least(8, 10, 0.95) == pytest.approx(0.4931, abs=1e-4)  # from tables of Clopper and Pearson
    assert share_at_least(0, 10, 0.95) == 0.0


@pytest.mark.parametrize("listeners", [1, 200])
def test_a_server_just_below_the_promise_is_confirmed_no_more_often_than_the_confidence_says(listeners: int) -> None:
    """However often a confirmation looks at the count. With the full 5 % for each look it was twice as often."""
    promise, trials = Promise(), 300
    below = promise.share - 1e-6
    searches = [Search(server(5000, bad_share=1 - below, seed=n), promise) for n in range(trials)]
    assert sum(search._confirm(listeners) for search in searches) <= 0.05 * trials + 3 * (0.05 * 0.95 * trials) ** 0.5


def test_a_client_that_was_late_in_any_look_is_told() -> None:
    late = [ClientError(0.001, 0.009, 0.02, 0.0), None]

    def measure(listeners: int, requests: int) -> LoadLevel:
        bad = [sample(gap_s=0.3)] * (3 if late else 0)  # so that the first look of the confirmation does not decide
        samples = [*bad, *([sample()] * (requests - len(bad)))]
        return replace(level(samples, listeners), client=late.pop(0) if late else None)

    search = Search(measure, Promise())
    assert search._confirm(1)
    assert [p.client_limited for p in search.probes] == [True]


def test_where_none_may_be_bad_one_is_too_many() -> None:
    def measure(listeners: int, requests: int) -> LoadLevel:
        bad = [sample(gap_s=0.001)] if listeners > 10 else []
        return level([*bad, *([sample()] * (requests - len(bad)))], listeners)

    allowing, strict = Promise(gap_s=0.0, share=0.95), Promise(gap_s=0.0, share=0.95, none_bad=True)
    assert Search(measure, allowing, most=64).run().listeners == 64
    assert Search(measure, strict, most=64).run().listeners == 10
