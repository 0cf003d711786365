"""How sessions end or are refused: idle, gone, stuck, over a limit, with a failed engine, without a key."""

from __future__ import annotations

import json
import threading
import time

import httpx
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus

from serving.conftest import Serve, break_engine, wait_for
from serving.session_client import CONFIG, SIX, events, session


def test_silence_is_ended_but_not_while_there_is_speech(serve: Serve) -> None:
    served = serve("endless toy", ws_idle_s=0.4)
    with session(served) as client:
        client.say("session.config", **{**CONFIG, "max_frames": 600})
        client.say("input.text", text="Hello the world.")
        client.say("input.done")
        began = time.monotonic()
        client.until("session.done")
        spoken_s = time.monotonic() - began
        began = time.monotonic()
        assert client.hear()["code"] == "idle_timeout"  # type: ignore[index, call-overload]
        assert client.closed() == 1000 and time.monotonic() - began < 10
        assert spoken_s > 0.4, "the speech was too short for this test to mean anything"


def test_hanging_up_frees_the_rows(serve: Serve) -> None:
    served = serve("endless toy")
    with session(served) as client:
        client.say("session.config", **{**CONFIG, "max_frames": 3000})
        client.say("input.text", text="Hello the world. And again it is spoken. ")
        wait_for(lambda: served.supervisor.engine.stats().running == 2)
        client.hear()
        client.socket.close()
        wait_for(lambda: served.supervisor.engine.stats().running == 0, 2.0)
    wait_for(lambda: 'sonant_aborted_total{reason="client_gone"} 1.0' in httpx.get(f"{served.url}/metrics").text)


def test_who_does_not_read_holds_up_only_themselves(serve: Serve) -> None:
    long = {"budget_s": 400 * 0.04, "budget_s_per_token": 1e-12}  # 400 frames for each piece
    served = serve("endless toy", engine={"max_rows": 4, "max_text_chars": 4000, **long})
    with session(served, max_queue=1, close_timeout=0.2) as stuck:
        stuck.say("session.config", **CONFIG, sample_rate=48000, split_granularity="sentence")

        def write() -> None:
            try:
                for _ in range(400):
                    stuck.say("input.text", text="Hello the world, this is a sentence that nobody reads. ")
            except ConnectionClosed:
                return

        writer = threading.Thread(target=write, daemon=True)
        writer.start()
        seen = []
        for _ in range(10):
            began = time.monotonic()
            assert served.post(input="hello", voice="alloy", max_frames=2).status_code == 200
            seen.append(time.monotonic() - began)
            assert served.supervisor.engine.stats().running <= 3  # two pieces of the stuck session, and our own request
            time.sleep(0.05)
        assert max(seen) < 5
    writer.join(10)
    wait_for(lambda: served.supervisor.engine.stats().running == 0, 2.0)


def test_over_the_limits_is_an_error_and_1013(serve: Serve) -> None:
    one = {"max_rows": 1, "max_waiting": 1, "max_parked": 0}
    served = serve("endless toy", engine=one, max_streams_per_client=2, ws_max_sessions=2)
    with session(served) as one, session(served) as two:
        for client in (one, two):
            client.say("session.config", **{**CONFIG, "max_frames": 3000})
        with session(served) as third:
            told = third.hear()
            assert isinstance(told, dict) and told["code"] == "too_many_sessions"
            assert third.closed() == 1013
        one.say("input.text", text="Hello the world. And again it is spoken. ")  # one runs, one waits: full
        wait_for(lambda: served.supervisor.engine.stats().waiting == 1)
        two.say("input.text", text="Hello the world. ")
        told = two.hear()
        assert isinstance(told, dict) and told["code"] == "overloaded"
        assert two.closed() == 1013
    text = httpx.get(f"{served.url}/metrics").text
    assert 'sonant_rejected_total{reason="queue_full"} 1.0' in text
    assert 'sonant_rejected_total{reason="too_many_sessions"} 1.0' in text


def test_a_failing_engine_is_told_and_ends_the_session(serve: Serve) -> None:
    served = serve("endless toy")
    first = served.supervisor.engine

    with session(served) as client:
        client.say("session.config", **{**CONFIG, "max_frames": 3000})
        client.say("input.text", text="Hello the world. ")
        while not isinstance(client.hear(), bytes):
            pass
        break_engine(first)
        told = events(client.until("audio.done"))
        assert told[-1]["error"] and told[-2]["action"] == "discard"
        assert client.closed() == 1011
    wait_for(lambda: served.loaded_anew(first), 30.0)


def test_keys_guard_sessions_too(serve: Serve) -> None:
    served = serve("endless toy", engine=SIX, api_keys=("right",))
    for path, headers in (("", {}), ("?api_key=wrong", {}), ("", {"authorization": "Bearer wrong"})):
        with pytest.raises(InvalidStatus), session(served, path, additional_headers=headers):
            pass
    for path, headers in (("?api_key=right", {}), ("", {"authorization": "Bearer right"})):
        with session(served, path, additional_headers=headers) as client:
            client.say("session.config", **CONFIG)
            client.say("session.close")
            assert client.closed() == 1000


def test_pages_of_other_origins_are_turned_away(serve: Serve) -> None:
    served = serve("endless toy", engine=SIX, cors_origins=("https://friend.example",))
    for origin in ("https://friend.example", served.url):
        with session(served, origin=origin) as client:
            client.say("session.config", **CONFIG)
            client.say("session.close")
            assert client.closed() == 1000
    for origin in ("https://evil.example", "null"):
        with pytest.raises(InvalidStatus) as refused, session(served, origin=origin):
            pass
        assert refused.value.response.status_code == 403
        assert json.loads(refused.value.response.body)["error"]["code"] == "origin_refused"
