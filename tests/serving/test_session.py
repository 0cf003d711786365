"""The WebSocket route: text in pieces, sound in order."""

from __future__ import annotations

import io
import threading
import time

import numpy as np
import pytest
import soundfile

from serving.conftest import Serve, Served
from serving.session_client import CONFIG, SIX, events, files, session, sound
from serving.test_speech import seconds


@pytest.fixture(scope="module")
def served(serve_once: Serve) -> Served:
    return serve_once("endless toy", engine=SIX)


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
        "sample_rate": 48000,
    }  # fmt: skip
    assert told[1] == {"type": "audio.done", **place, "total_bytes": 6 * 2 * 1920, "error": False}
    assert (told[2]["sentence_index"], told[2]["sentence_text"]) == (1, "And then he left")
    assert told[-1] == {"type": "session.done", "utterance_index": 0, "total_sentences": 2}
    assert [len(f) for f in files(heard)] == [6 * 2 * 1920] * 2


def test_speech_starts_at_the_first_clause_while_the_text_is_still_coming(served: Served) -> None:
    with session(served) as client:
        client.say("session.config", **CONFIG)
        client.say("input.text", text="To be honest with you, I am not sure ")
        heard = client.until("audio.done")  # neither has the sentence ended, nor was input.done sent
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
        for _ in range(2):  # the second is sent before the first has ended
            client.say("input.text", text="Hello the world.")
            client.say("input.done")
        first, second = client.until("session.done"), client.until("session.done")
        assert sound(first) == sound(second) and events(second)[-1]["utterance_index"] == 1
        client.say("session.config", **{**CONFIG, "max_frames": 3})
        client.say("input.text", text="Hello the world.")
        client.say("session.config", **CONFIG)  # too late for this utterance
        client.say("input.done")
        told = client.until("session.done")
        assert len(sound(told)) == 3 * 2 * 1920
        assert [m["code"] for m in events(told) if m["type"] == "error"] == ["invalid_message"]
        client.say("input.done")  # an utterance without text has no sound
        assert events(client.until("session.done")) == [
            {"type": "session.done", "utterance_index": 3, "total_sentences": 0}
        ]
        client.say("session.close")
        assert client.closed() == 1000


def test_pieces_are_the_same_sound_as_one_request_of_all_of_it(serve: Serve) -> None:
    served = serve("endless toy", engine={"segment_chars": 40, **SIX})
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
        assert seconds(file, form) == pytest.approx(6 * 0.04, abs=0.1)
    if not streams:
        assert sum(isinstance(m, bytes) for m in heard) == 2
    if form == "wav" and not streams:
        assert len(soundfile.read(io.BytesIO(files(heard)[0]))[0]) == 6 * 1920  # its header states the true length


def test_many_sessions_at_once_hear_their_own(serve: Serve) -> None:
    served = serve("endless toy", engine={"max_rows": 4, **SIX})
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


def test_max_frames_bound_an_utterance_and_not_each_piece(served: Served) -> None:
    with session(served) as client:
        client.say("session.config", **{**CONFIG, "max_frames": 8}, split_granularity="sentence")
        for _ in range(2):  # the next utterance has its own budget
            client.say("input.text", text="Hello the world. And speech again. And more of it. And the rest ")
            heard = client.until("session.done")  # without input.done, since the budget is used up
            client.say("input.text", text="of it all.")
            client.say("input.done")
            assert len(sound(heard)) == 8 * 2 * 1920
            ended = [m for m in events(heard) if m["type"] == "audio.done"]
            assert not any(m["error"] for m in ended) and sum(m["total_bytes"] for m in ended) == 8 * 2 * 1920
