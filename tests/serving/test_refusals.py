"""Most of a crowd is refused: that must cost next to nothing, or those that are served suffer."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack

import httpx
import pytest

from serving.conftest import Serve, Served, wait_for

BODY = {"input": "hello the world", "voice": "alloy", "max_frames": 2, "response_format": "pcm"}
ASKED = 20


@pytest.fixture
def full(serve: Serve) -> Iterator[Served]:
    """A server where one request runs and one waits: there is no room for a third, which must not reach the engine."""
    served = serve("endless toy", engine={"max_rows": 1, "max_waiting": 1, "max_parked": 0})
    engine = served.supervisor.engine

    def not_asked(_: object) -> None:
        raise AssertionError("the engine was asked")

    with ExitStack() as resources:
        resources.enter_context(engine.stream("hello the world", seed=1, max_frames=3000))
        wait_for(lambda: engine.stats().running == 1)
        resources.enter_context(engine.stream("hello the world", seed=2, max_frames=3000))
        served.link.engine.submit = not_asked  # type: ignore[assignment, method-assign]
        yield served


def test_a_full_queue_refuses_before_anything_is_done(full: Served) -> None:
    batch = httpx.post(f"{full.url}/v1/audio/speech/batch", json={"items": [BODY]})
    for answer in (full.post(**BODY), batch):
        assert answer.status_code == 429 and answer.headers["retry-after"]
        assert answer.json()["error"]["code"] == "overloaded"
    assert 'sonant_rejected_total{reason="queue_full"} 2.0' in httpx.get(f"{full.url}/metrics").text


def test_a_refusal_is_gone_when_it_is_answered(full: Served) -> None:
    """Objects that only the garbage collector can free add up to a pause that delays everybody."""
    full.post(**BODY)
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        for _ in range(ASKED):
            assert full.post(**BODY).status_code == 429
        gc.collect()
        kinds = Counter(type(thing).__name__ for thing in gc.garbage)
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert max(kinds[name] for name in ("SendWithId", "RequestResponseCycle", "Overloaded")) < ASKED / 2, kinds
