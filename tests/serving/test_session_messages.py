"""What a session cannot follow or speak is an error in its place, and only a bad beginning ends the session."""

from __future__ import annotations

import json

import pytest

from serving.conftest import Serve, Served, wait_for
from serving.session_client import CONFIG, SIX, events, session, sound


@pytest.fixture(scope="module")
def served(serve_once: Serve) -> Served:
    return serve_once("endless toy", engine=SIX)


def test_a_piece_that_cannot_be_spoken_is_told_in_its_place(serve: Serve) -> None:
    served = serve("endless toy", engine={"max_text_chars": 50, **SIX})
    with session(served) as client:
        client.say("session.config", **CONFIG, split_granularity="sentence")
        client.say("input.text", text="Hello the world. This one is too much for what is left of it. ")
        client.say("input.done")
        told = events(client.until("session.done"))
        kinds = [m["type"] for m in told]
        assert kinds == ["audio.start", "audio.done", "audio.start", "error", "audio.done", "session.done"]
        assert [m["error"] for m in told if m["type"] == "audio.done"] == [False, True]
        client.say("session.config", **{**CONFIG, "voice": "nobody"})
        client.say("input.text", text="Hello.")
        client.say("input.done")
        assert "voice_not_found" in [m.get("code") for m in events(client.until("session.done"))]
        client.say("session.config", **CONFIG)
        client.say("input.text", text="Hello.")
        client.say("input.done")
        assert sound(client.until("session.done"))


def test_what_is_refused_is_not_awaited_in_the_queue(served: Served) -> None:
    """A session may stay open for long after that, and others would be refused for it."""
    with session(served) as client:
        client.say("session.config", **{**CONFIG, "voice": "nobody"})
        client.say("input.text", text="Hello the world. And")
        assert "nobody" in json.dumps(client.until("audio.done"))
        wait_for(lambda: served.admission.on_the_way == 0, 3)


def test_text_that_is_not_unicode_is_told_and_the_session_goes_on(served: Served) -> None:
    with session(served) as client:
        client.say("session.config", **CONFIG)
        client.say("input.text", text="Half a character \ud800 is none.")
        client.say("input.done")
        told = events(client.until("session.done"))
        assert [m["type"] for m in told] == ["audio.start", "error", "audio.done", "session.done"]
        client.say("input.text", text="Hello.")
        client.say("input.done")
        assert sound(client.until("session.done"))


@pytest.mark.parametrize(
    "first",
    [
        {"type": "input.text", "text": "hi"},
        {"type": "session.config", "voice": 5},
        {"type": "session.config", "response_format": "exe"},
        {"type": "session.config", "word_timestamps": True},
        {"type": "session.config", "unknown": 1},
        ["session.config"],
        "session.config",
    ],
)
def test_a_session_that_begins_wrong_is_ended(served: Served, first: object) -> None:
    with session(served) as client:
        client.socket.send(json.dumps(first))
        told = client.hear()
        assert isinstance(told, dict) and told["type"] == "error" and told["message"]
        assert client.closed() == 1008


def test_a_bad_message_later_is_told_and_the_session_goes_on(served: Served) -> None:
    with session(served) as client:
        client.say("session.config", **CONFIG)
        for bad in ("{", "5", '{"type": "input.sing"}', '{"type": "input.text"}', "[" * 5000, b"\x00"):
            client.socket.send(bad)
            told = client.hear()
            assert isinstance(told, dict) and told["type"] == "error"
        client.socket.send(json.dumps({"type": "input.text", "text": "x" * 200_000}))
        assert "characters" in client.hear()["message"]  # type: ignore[index, call-overload]
        client.say("input.text", text="Hello.")
        client.say("input.done")
        assert sound(client.until("session.done"))


def test_a_message_over_the_limit_closes(serve: Serve) -> None:
    with session(serve("endless toy", engine=SIX, ws_max_message_bytes=10_000)) as client:
        client.say("session.config", **CONFIG, ref_text="x" * 20_000)
        assert client.closed() == 1009
