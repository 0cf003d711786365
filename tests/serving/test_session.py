"""The WebSocket route: text in pieces, sound in order, honest ends."""

from __future__ import annotations

import io
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import numpy as np
import pytest
import soundfile
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from serving.conftest import Serve, Served, wait_for
from serving.test_speech import seconds

CONFIG = {"voice": "alloy", "seed": 5, "max_frames": 6, "response_format": "pcm"}


class Client:
    """A client that remembers what it was told."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket

    def say(self, kind: str, **fields: Any) -> None:
        self.socket.send(json.dumps({"type": kind, **fields}))

    def hear(self, timeout_s: float = 20) -> dict[str, Any] | bytes:
        message = self.socket.recv(timeout_s)
        return message if isinstance(message, bytes) else json.loads(message)

    def until(self, kind: str) -> list[dict[str, Any] | bytes]:
        heard = [self.hear()]
        while isinstance(heard[-1], bytes) or heard[-1]["type"] != kind:
            heard.append(self.hear())
        return heard

    def closed(self, timeout_s: float = 20) -> int:
        """Read to the end; the close code."""
        try:
            while True:
                self.hear(timeout_s)
        except ConnectionClosed as e:
            assert e.rcvd is not None
            return e.rcvd.code


@contextmanager
def session(served: Served, path: str = "", **options: Any) -> Iterator[Client]:
    url = served.url.replace("http://", "ws://") + "/v1/audio/speech/stream" + path
    with connect(url, compression=None, **options) as socket:
        yield Client(socket)


def events(heard: list[dict[str, Any] | bytes]) -> list[dict[str, Any]]:
    return [m for m in heard if isinstance(m, dict)]


def sound(heard: list[dict[str, Any] | bytes]) -> bytes:
    return b"".join(m for m in heard if isinstance(m, bytes))


def files(heard: list[dict[str, Any] | bytes]) -> list[bytes]:
    """The binary frames between each audio.start and its audio.done, joined."""
    out: list[bytes] = []
    for message in heard:
        if isinstance(message, bytes):
            out[-1] += message
        elif message["type"] == "audio.start":
            out.append(b"")
    return out


@pytest.fixture
def served(serve: Serve) -> Served:
    return serve("endless")


def test_an_utterance_in_vllm_omnis_messages(served: Served) -> None:
    with session(served) as client:
        client.say("session.config", **CONFIG, split_granularity="sentence")
        for bit in ("Dr. Lee paid ", "3.", "50 for it. And th", "en he left"):
            client.say("input.text", text=bit)
        client.say("input.done")
        heard = client.until("session.done")
    place = {"utterance_index": 0, "sentence_index": 0}
    told = events(heard)
    assert told[0] == {
        "type": "audio.start", **place, "sentence_text": "Dr. Lee paid 3.50 for it.", "format": "pcm",
        "sample_rate": 24000,
    }  # fmt: skip
    assert told[1] == {"type": "audio.done", **place, "total_bytes": 6 * 2 * 1920, "error": False}
    assert (told[2]["sentence_index"], told[2]["sentence_text"]) == (1, "And then he left")
    assert told[-1] == {"type": "session.done", "utterance_index": 0, "total_sentences": 2}
    assert [len(f) for f in files(heard)] == [6 * 2 * 1920] * 2


def test_speech_starts_at_the_first_clause_while_the_text_is_still_coming(served: Served) -> None:
    with session(served) as client:
        client.say("session.config", **CONFIG)
        client.say("input.text", text="To be honest with you, I am not sure ")
        heard = client.until("audio.done")  # the sentence has not ended, nor was input.done sent
        assert events(heard)[0]["sentence_text"] == "To be honest with you," and sound(heard)
        client.say("input.text", text="that I know.")
        client.say("input.done")
        rest = events(client.until("session.done"))
    assert rest[0]["sentence_text"] == "I am not sure that I know." and rest[-1]["total_sentences"] == 2


def test_none_speaks_the_whole_at_input_done(served: Served) -> None:
    with session(served) as client:
        client.say("session.config", **CONFIG, split_granularity="none")
        client.say("input.text", text="One sentence. Another one. ")
        with pytest.raises(TimeoutError):
            client.hear(0.3)
        client.say("input.done")
        told = events(client.until("session.done"))
    assert told[0]["sentence_text"] == "One sentence. Another one." and told[-1]["total_sentences"] == 1


def test_a_session_serves_utterance_after_utterance_and_another_config_between_them(served: Served) -> None:
    with session(served) as client:
        client.say("session.config", **CONFIG)
        for _ in range(2):  # not waiting for the first to end
            client.say("input.text", text="Hello the world.")
            client.say("input.done")
        first, second = client.until("session.done"), client.until("session.done")
        assert sound(first) == sound(second) and events(second)[-1]["utterance_index"] == 1
        client.say("session.config", **{**CONFIG, "max_frames": 3})
        client.say("input.text", text="Hello the world.")
        client.say("session.config", **CONFIG)  # too late for this one
        client.say("input.done")
        told = client.until("session.done")
        assert len(sound(told)) == 3 * 2 * 1920
        assert [m["code"] for m in events(told) if m["type"] == "error"] == ["invalid_message"]
        client.say("input.done")  # nothing to say is nothing said
        assert events(client.until("session.done")) == [
            {"type": "session.done", "utterance_index": 3, "total_sentences": 0}
        ]
        client.say("session.close")
        assert client.closed() == 1000


def test_pieces_are_the_same_sound_as_one_request_of_all_of_it(serve: Serve) -> None:
    served = serve("endless", engine={"segment_chars": 40})
    sentences = [f"Sentence number {n} is about speech." for n in range(4)]
    body = {"input": " ".join(sentences), **CONFIG}
    whole = np.frombuffer(served.post(**body).content, "<i2").astype(int)
    with session(served) as client:
        client.say("session.config", **CONFIG, split_granularity="sentence")
        client.say("input.text", text=" ".join(sentences))
        client.say("input.done")
        heard = client.until("session.done")
    pieces = np.frombuffer(sound(heard), "<i2").astype(int)
    assert len(files(heard)) == 4 and len(pieces) == len(whole) and np.abs(pieces - whole).max() <= 1


@pytest.mark.parametrize("streams", [True, False])
@pytest.mark.parametrize("form", ["wav", "mp3", "opus", "aac", "flac"])
def test_each_piece_is_a_file_of_its_format(served: Served, form: str, streams: bool) -> None:
    with session(served) as client:
        client.say("session.config", **{**CONFIG, "response_format": form}, stream_audio=streams)
        client.say("input.text", text="Hello the world. And speech again.")
        client.say("input.done")
        heard = client.until("session.done")
    assert len(files(heard)) == 2
    for file in files(heard):
        assert seconds(file, form) == pytest.approx(6 * 0.08, abs=0.1)
    if not streams:
        assert sum(isinstance(m, bytes) for m in heard) == 2
    if form == "wav" and not streams:
        assert len(soundfile.read(io.BytesIO(files(heard)[0]))[0]) == 6 * 1920  # its header tells the true length


def test_a_piece_that_cannot_be_spoken_is_told_in_its_place(serve: Serve) -> None:
    served = serve(engine={"max_text_chars": 50})
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
    with session(serve(ws_max_message_bytes=10_000)) as client:
        client.say("session.config", **CONFIG, ref_text="x" * 20_000)
        assert client.closed() == 1009


def test_silence_is_ended_but_not_while_there_is_speech(serve: Serve) -> None:
    served = serve("endless", ws_idle_s=0.4)
    with session(served) as client:
        client.say("session.config", **{**CONFIG, "max_frames": 150})
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
    served = serve("endless")
    with session(served) as client:
        client.say("session.config", **{**CONFIG, "max_frames": 900})
        client.say("input.text", text="Hello the world. And again it is spoken. ")
        wait_for(lambda: served.host.engine.stats().running == 2)
        client.hear()
        client.socket.close()
        wait_for(lambda: served.host.engine.stats().running == 0, 2.0)
    wait_for(lambda: 'sonant_aborted_total{reason="client_gone"} 1.0' in httpx.get(f"{served.url}/metrics").text)


def test_who_does_not_read_holds_up_only_themselves(serve: Serve) -> None:
    served = serve("endless", engine={"max_rows": 4, "max_text_chars": 4000})
    with session(served, max_queue=1, close_timeout=0.2) as stuck:
        stuck.say("session.config", **{**CONFIG, "max_frames": 400, "sample_rate": 48000}, split_granularity="sentence")

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
            assert served.host.engine.stats().running <= 3  # two pieces of the stuck one, and ours
            time.sleep(0.05)
        assert max(seen) < 5
    writer.join(10)
    wait_for(lambda: served.host.engine.stats().running == 0, 2.0)


def test_over_the_limits_is_an_error_and_1013(serve: Serve) -> None:
    served = serve("endless", engine={"max_rows": 1, "max_waiting": 1}, max_streams_per_client=2, ws_max_sessions=2)
    with session(served) as one, session(served) as two:
        for client in (one, two):
            client.say("session.config", **{**CONFIG, "max_frames": 900})
        with session(served) as third:
            told = third.hear()
            assert isinstance(told, dict) and told["code"] == "too_many_sessions"
            assert third.closed() == 1013
        one.say("input.text", text="Hello the world. And again it is spoken. ")  # one runs, one waits: full
        wait_for(lambda: served.host.engine.stats().waiting == 1)
        two.say("input.text", text="Hello the world. ")
        told = two.hear()
        assert isinstance(told, dict) and told["code"] == "overloaded"
        assert two.closed() == 1013
    text = httpx.get(f"{served.url}/metrics").text
    assert 'sonant_rejected_total{reason="queue_full"} 1.0' in text
    assert 'sonant_rejected_total{reason="too_many_sessions"} 1.0' in text


def test_a_failing_engine_is_told_and_ends_the_session(serve: Serve) -> None:
    served = serve("endless")
    first = served.host.engine

    def broken(*_: object) -> None:
        raise RuntimeError("the device fell off")

    with session(served) as client:
        client.say("session.config", **{**CONFIG, "max_frames": 900})
        client.say("input.text", text="Hello the world. ")
        while not isinstance(client.hear(), bytes):
            pass
        first._loop.runner.frame.run = broken  # type: ignore[assignment]
        told = events(client.until("audio.done"))
        assert told[-1]["error"] and told[-2]["action"] == "discard"
        assert client.closed() == 1011
    wait_for(lambda: served.host.ready and served.host.engine is not first, 30.0)


def test_keys_guard_sessions_too(serve: Serve) -> None:
    served = serve(api_keys=("right",))
    for path, headers in (("", {}), ("?api_key=wrong", {}), ("", {"authorization": "Bearer wrong"})):
        with pytest.raises(InvalidStatus), session(served, path, additional_headers=headers):
            pass
    for path, headers in (("?api_key=right", {}), ("", {"authorization": "Bearer right"})):
        with session(served, path, additional_headers=headers) as client:
            client.say("session.config", **CONFIG)
            client.say("session.close")
            assert client.closed() == 1000


def test_pages_of_other_origins_are_turned_away(serve: Serve) -> None:
    served = serve(cors_origins=("https://friend.example",))
    for origin, welcome in (("https://evil.example", False), ("https://friend.example", True), (served.url, True)):
        with session(served, origin=origin) as client:
            if welcome:
                client.say("session.config", **CONFIG)
                client.say("session.close")
            assert client.closed() == (1000 if welcome else 1008)


def test_many_sessions_at_once_hear_their_own(serve: Serve) -> None:
    served = serve(engine={"max_rows": 4})
    heard: dict[int, bytes] = {}

    def talk(n: int) -> None:
        with session(served) as client:
            client.say("session.config", **{**CONFIG, "seed": n % 2}, split_granularity="sentence")
            for bit in ("Hello the ", "world. And ", "again it is ", "spoken."):
                client.say("input.text", text=bit)
                time.sleep(0.01 * n)
            client.say("input.done")
            heard[n] = sound(client.until("session.done"))

    threads = [threading.Thread(target=talk, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(heard) == 8
    for n in range(8):
        a, b = (np.frombuffer(x, "<i2").astype(int) for x in (heard[n], heard[n % 2]))
        assert len(a) == len(b) and np.abs(a - b).max() <= 1
