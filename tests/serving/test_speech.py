"""The speech route as clients use it: streamed by default, whole on request, honest when something fails."""

from __future__ import annotations

import base64
import io
import json
import socket
import threading
import time

import av
import httpx
import numpy as np
import openai
import pytest
import soundfile

from clips import reference_clip
from serving.conftest import Serve, Served, break_engine, wait_for
from serving.same_sound import same_sound

BODY = {"model": "tts-1", "input": "hello the world", "voice": "alloy", "seed": 5, "max_frames": 6}


def seconds(data: bytes, form: str) -> float:
    if form == "pcm":
        return len(data) / 2 / 24000
    with av.open(io.BytesIO(data)) as container:
        return sum(frame.samples / frame.sample_rate for frame in container.decode(audio=0))


@pytest.fixture(scope="module")
def served(serve_once: Serve) -> Served:
    return serve_once()


@pytest.fixture(scope="module")
def endless(serve_once: Serve) -> Served:
    """A server that speaks as long as it may, for one request at a time."""
    engine = {"max_rows": 1, "max_waiting": 1, "max_parked": 0}
    # The promised wait is long, so that no request is refused for it on a busy machine.
    return serve_once("endless", engine=engine, max_streams_per_client=3, max_first_audio_s=60.0)


def test_sound_is_streamed_from_the_first_frame_on(served: Served) -> None:
    with httpx.stream("POST", f"{served.url}/v1/audio/speech", json={**BODY, "response_format": "pcm"}) as response:
        assert response.headers["content-type"] == "audio/pcm"
        assert "content-length" not in response.headers
        pieces = list(response.iter_raw())
    assert len(pieces) > 2 and len(pieces[0]) == 2 * 1920
    assert sum(map(len, pieces)) == 6 * 2 * 1920


def test_every_format_in_both_stream_formats_carries_the_same_sound(served: Served) -> None:
    for form in ("mp3", "opus", "aac", "flac", "wav", "pcm"):
        plain = served.post(**BODY, response_format=form)
        assert plain.status_code == 200 and plain.content
        events = served.post(**BODY, response_format=form, stream_format="sse")
        assert events.headers["content-type"].startswith("text/event-stream")
        lines = [json.loads(line[6:]) for line in events.text.splitlines() if line.startswith("data: ")]
        assert lines[-1]["type"] == "speech.audio.done"
        usage = lines[-1]["usage"]
        assert usage["output_tokens"] == 6 and usage["total_tokens"] == 6 + usage["input_tokens"]
        joined = b"".join(base64.b64decode(e["audio"]) for e in lines[:-1])
        # The sizes of chunks, and with them packets, depend on timing; their sound does not.
        assert seconds(joined, form) == pytest.approx(seconds(plain.content, form), abs=1e-3)
        assert seconds(joined, form) == pytest.approx(6 * 0.08, abs=0.1)  # encoders may begin with a silent frame


def test_not_streamed_means_a_length_and_an_exact_wav(served: Served) -> None:
    response = served.post(**BODY, response_format="wav", stream=False)
    assert int(response.headers["content-length"]) == len(response.content)
    samples, rate = soundfile.read(io.BytesIO(response.content))
    assert (len(samples), rate) == (6 * 1920, 24000)


@pytest.mark.parametrize("rate", [8000, 16000, 48000])
def test_other_sample_rates(served: Served, rate: int) -> None:
    response = served.post(**BODY, response_format="wav", stream=False, sample_rate=rate)
    samples, got = soundfile.read(io.BytesIO(response.content))
    assert got == rate and abs(len(samples) / rate - 6 * 0.08) < 0.001


def test_speed_changes_the_length(served: Served) -> None:
    fast = served.post(**{**BODY, "max_frames": 12}, response_format="pcm", speed=2.0)
    assert abs(len(fast.content) / (2 * 24000) - 6 * 0.08) < 0.06


def test_an_engine_knows_how_fast_its_sound_is_heard(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """At twice the speed a listener runs out of sound in half the time."""
    engine, asked = served.supervisor.engine, list[float]()
    assert engine is not None
    post = engine.loop.post
    monkeypatch.setattr(engine.loop, "post", lambda request: asked.append(request.playback_speed) or post(request))
    for speed in (2.0, None):
        assert served.post(**BODY, speed=speed).status_code == 200
    assert asked == [2.0, 1.0]


def test_openai_clients(served: Served) -> None:
    client = openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0)
    options = {"model": "tts-1", "voice": "echo", "input": "hello the world"}
    extra = {"seed": 5, "max_frames": 6}
    whole = client.audio.speech.create(**options, response_format="pcm", extra_body=extra)
    assert len(whole.content) == 6 * 2 * 1920
    with client.audio.speech.with_streaming_response.create(**options, response_format="pcm", extra_body=extra) as r:
        assert same_sound(b"".join(r.iter_bytes()), whole.content)
    with pytest.raises(openai.BadRequestError) as caught:
        client.audio.speech.create(**{**options, "voice": "nobody"})
    assert caught.value.code == "voice_not_found" and caught.value.param == "voice" and caught.value.request_id
    assert "tts-1" in [m.id for m in client.models.list().data]


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"input": ""}, 400, "invalid_input"),
        ({"input": "..."}, 400, "invalid_input"),
        ({"input": "x" * 50_000}, 400, "invalid_input"),
        ({"input": 5}, 400, "invalid_value"),
        ({}, 400, "invalid_value"),
        ({"input": "hi", "voice": "nobody"}, 400, "voice_not_found"),
        ({"input": "hi", "voice": {"id": "nobody"}}, 400, "voice_not_found"),
        ({"input": "hi", "language": "klingon"}, 400, "language_not_found"),
        ({"input": "hi", "response_format": "exe"}, 400, "invalid_value"),
        ({"input": "hi", "speed": 9}, 400, "invalid_value"),
        ({"input": "hi", "temperature": -1}, 400, "invalid_value"),
        ({"input": "hi", "unknown": 1}, 400, "invalid_value"),
        ({"input": "hi", "ref_audio": "http://127.0.0.1/x.wav"}, 400, "invalid_audio"),
        ({"input": "hi", "ref_audio": "!!!"}, 400, "invalid_audio"),
        ({"input": "hi", "seed": -1}, 400, "invalid_value"),
    ],
)
def test_bad_bodies_get_openais_error_json(served: Served, body: dict[str, object], status: int, code: str) -> None:
    response = served.post(**body)
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (status, code)
    assert error["message"] and response.headers["x-request-id"]


def test_other_routes_answer_in_the_same_shape(served: Served) -> None:
    assert httpx.get(f"{served.url}/nope").json()["error"]["code"] == "not_found"
    assert httpx.put(f"{served.url}/v1/audio/speech").json()["error"]["message"]
    not_json = httpx.post(f"{served.url}/v1/audio/speech", content=b"{", headers={"content-type": "application/json"})
    assert not_json.status_code == 400 and not_json.json()["error"]["type"] == "invalid_request_error"
    voices = httpx.get(f"{served.url}/v1/audio/voices").json()["voices"]
    assert {"id", "name"} <= voices[0].keys() and "alloy" in {v["id"] for v in voices}
    assert httpx.get(f"{served.url}/health").json() == {"status": "ok"}
    assert httpx.get(f"{served.url}/ready").status_code == 200
    assert "sonant_requests_running 0.0" in httpx.get(f"{served.url}/metrics").text


def test_keys_guard_every_route_but_those_of_probes(serve: Serve) -> None:
    served = serve(api_keys=("right", "other"))
    for path in ("/v1/models", "/metrics", "/v1/audio/voices", "/nope", "/openapi.json"):
        missing = httpx.get(f"{served.url}{path}")
        assert missing.status_code == 401 and missing.headers["www-authenticate"] == "Bearer"
        assert httpx.get(f"{served.url}{path}", headers={"authorization": "Bearer wrong"}).status_code == 401
    assert httpx.get(f"{served.url}/health").status_code == httpx.get(f"{served.url}/ready").status_code == 200
    assert httpx.get(f"{served.url}/v1/models", headers={"authorization": "Bearer other"}).status_code == 200


def test_a_large_body_is_refused_before_it_is_read(serve: Serve) -> None:
    served = serve(max_body_bytes=1000)
    assert served.post(input="x" * 2000).status_code == 413

    def endless() -> object:
        for _ in range(100):
            yield b"x" * 100

    response = httpx.post(f"{served.url}/v1/audio/speech", content=endless())  # type: ignore[arg-type]
    assert response.status_code == 413


def test_hanging_up_before_or_after_the_first_sound_frees_row_and_place(endless: Served) -> None:
    long = {**BODY, "max_frames": 900}
    stats = endless.supervisor.engine.stats
    with httpx.stream("POST", f"{endless.url}/v1/audio/speech", json=long) as response:
        chunks = response.iter_raw()  # keeps the connection open
        next(chunks)
        assert stats().running == 1
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{endless.url}/v1/audio/speech", json=long, timeout=0.3)
        wait_for(lambda: stats().waiting == 0, 2.0)
        assert stats().running == 1
    wait_for(lambda: stats().running == 0, 2.0)


def test_over_the_limits_is_429_with_a_time_to_come_back(endless: Served) -> None:
    served = endless
    long = {**BODY, "max_frames": 900, "response_format": "pcm"}
    answers: list[httpx.Response] = []
    done = threading.Event()

    def hold() -> None:
        with httpx.stream("POST", f"{served.url}/v1/audio/speech", json=long, timeout=60) as response:
            for _ in response.iter_raw():
                if done.is_set():
                    return

    engine = served.supervisor.engine
    wait_for(lambda: engine.stats().running + engine.stats().waiting == 0)  # the last test's have left
    threads = [threading.Thread(target=hold) for _ in range(2)]
    threads[0].start()
    wait_for(lambda: engine.stats().running == 1)
    threads[1].start()
    wait_for(lambda: engine.stats().waiting == 1)
    answers.append(served.post(**BODY))
    done.set()
    for thread in threads:
        thread.join(20)
    assert answers[0].status_code == 429 and answers[0].headers["retry-after"]
    assert answers[0].json()["error"]["type"] == "rate_limit_error"
    assert served.post(**BODY).status_code == 200


def test_a_failing_engine_breaks_streams_off_and_comes_back(serve: Serve) -> None:
    served = serve("endless")
    first = served.supervisor.engine

    with (
        pytest.raises(httpx.RemoteProtocolError),
        httpx.stream("POST", f"{served.url}/v1/audio/speech", json={**BODY, "max_frames": 900}) as response,
    ):
        pieces = response.iter_raw()
        next(pieces)
        break_engine(first)
        list(pieces)
    wait_for(lambda: served.loaded_anew(first), 30.0)
    assert served.post(**BODY).status_code == 200
    assert "sonant_engine_restarts_total 1.0" in httpx.get(f"{served.url}/metrics").text


def test_a_clip_in_the_request_is_cloned(serve: Serve) -> None:
    served = serve("base")
    clip = io.BytesIO()
    soundfile.write(clip, *reference_clip(), format="WAV")
    encoded = base64.b64encode(clip.getvalue()).decode()
    for ref in (encoded, f"data:audio/wav;base64,{encoded}"):
        for text in (None, "the user and the world"):
            body = {"input": "hello", "seed": 1, "max_frames": 4, "response_format": "pcm"}
            assert len(served.post(**body, ref_audio=ref, ref_text=text).content) == 4 * 2 * 1920
    missing = served.post(input="hello")
    assert missing.status_code == 400 and missing.json()["error"]["code"] == "voice_not_found"


def test_many_listeners_at_once_hear_their_own(serve: Serve) -> None:
    served = serve(engine={"max_rows": 4})
    alone = [served.post(**{**BODY, "seed": n, "response_format": "pcm"}).content for n in range(3)]
    heard: dict[int, bytes] = {}

    def ask(n: int) -> None:
        heard[n] = served.post(**{**BODY, "seed": n % 3, "response_format": "pcm"}).content

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for n in range(12):
        a, b = (np.frombuffer(x, "<i2").astype(int) for x in (heard[n], alone[n % 3]))
        assert len(a) == len(b) and np.abs(a - b).max() <= 1


def test_a_client_that_stops_reading_does_not_hold_others_up(served: Served) -> None:
    body = json.dumps({**BODY, "max_frames": 900, "response_format": "wav"}).encode()
    head = "POST /v1/audio/speech HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {len(body)}\r\n\r\n"
    with socket.create_connection(served.address) as stuck:
        stuck.sendall(head.encode() + body)
        began = time.monotonic()
        assert served.post(**BODY).status_code == 200
        assert time.monotonic() - began < 5
