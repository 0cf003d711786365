"""The batch route: every item in its place, whatever became of the others."""

from __future__ import annotations

import base64
import json
import socket
import threading
from typing import Any

import httpx
import numpy as np
import pytest

from serving.conftest import Serve, Served, break_engine, wait_for
from serving.test_speech import seconds

SHARED = {"voice": "alloy", "seed": 5, "max_frames": 6}


@pytest.fixture(scope="module")
def served(serve_once: Serve) -> Served:
    return serve_once("endless", engine={"max_rows": 3})


def post(served: Served, items: list[dict[str, Any]], **shared: Any) -> httpx.Response:
    return httpx.post(f"{served.url}/v1/audio/speech/batch", json={"items": items, **shared}, timeout=60)


def test_items_in_order_with_their_own_settings_before_the_shared_ones(served: Served) -> None:
    items = [
        {"input": "hello the world"},
        {"input": "hello again", "response_format": "mp3", "max_frames": 12},
        {"input": "hello", "speaker": "ryan", "response_format": "pcm", "speed": 2.0},
    ]
    answer = post(served, items, **SHARED, model="tts-1", task_type="CustomVoice")
    body = answer.json()
    assert answer.status_code == 200 and body["id"].startswith("speech-batch-")
    assert (body["total"], body["succeeded"], body["failed"]) == (3, 3, 0)
    forms = ("wav", "mp3", "pcm")
    for index, (result, form, frames) in enumerate(zip(body["results"], forms, (6, 12, 3), strict=True)):
        assert (result["index"], result["status"], "error" in result) == (index, "success", False)
        assert seconds(base64.b64decode(result["audio_data"]), form) == pytest.approx(frames * 0.08, abs=0.1)
    assert [r["media_type"] for r in body["results"]] == ["audio/wav", "audio/mpeg", "audio/pcm"]
    assert body["results"][1]["usage"]["output_tokens"] == 12


def test_an_items_length_goes_before_the_batchs_by_either_of_its_names(served: Served) -> None:
    items = [{"input": "hello"}, {"input": "hello", "max_new_tokens": 3}, {"input": "hello", "max_frames": 4}]
    for shared in ({"max_frames": 8}, {"max_new_tokens": 8}):
        body = post(served, items, **{"voice": "alloy", "seed": 5, **shared}).json()
        assert [r["usage"]["output_tokens"] for r in body["results"]] == [8, 3, 4]


def test_one_bad_item_spoils_nothing(served: Served) -> None:
    items = [{"input": "hello"}, {"input": "..."}, {"input": "hello", "voice": "nobody"}, {"input": "again"}]
    body = post(served, items, **SHARED).json()
    assert [r["status"] for r in body["results"]] == ["success", "error", "error", "success"]
    assert "nobody" in body["results"][2]["error"] and "audio_data" not in body["results"][2]
    assert (body["succeeded"], body["failed"]) == (2, 2)


def test_items_are_spoken_at_once_and_sound_as_alone(served: Served) -> None:
    items = [{"input": f"number {n}", "seed": n} for n in range(5)]
    most = 0
    done = threading.Event()

    def watch() -> None:
        nonlocal most
        while not done.wait(0.002):
            most = max(most, served.supervisor.engine.stats().running)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        body = post(served, items, **SHARED, response_format="pcm").json()
    finally:
        done.set()
        watcher.join()
    assert most == 3
    for n, result in enumerate(body["results"]):
        alone = served.post(**{**SHARED, **items[n]}, response_format="pcm").content
        a, b = (np.frombuffer(x, "<i2").astype(int) for x in (base64.b64decode(result["audio_data"]), alone))
        assert len(a) == len(b) and np.abs(a - b).max() <= 1


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"items": []},
        {"items": [{"input": "hi"}] * 33},
        {"items": [{"voice": "alloy"}]},
        {"items": [{"input": "hi", "speed": 9}]},
        {"items": [{"input": "hi", "unknown": 1}]},
        {"items": [{"input": "x" * 60_000}] * 2},
        {"items": [{"input": "hi"}], "response_format": "exe"},
    ],
)
def test_a_bad_batch_is_refused_whole(served: Served, body: dict[str, Any]) -> None:
    answer = httpx.post(f"{served.url}/v1/audio/speech/batch", json=body, timeout=20)
    assert answer.status_code == 400 and answer.json()["error"]["message"]


def test_hanging_up_stops_every_item(served: Served) -> None:
    body = json.dumps({**SHARED, "max_frames": 900, "items": [{"input": "hello"}] * 6}).encode()
    head = "POST /v1/audio/speech/batch HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    with socket.create_connection(served.address) as client:
        client.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        wait_for(lambda: served.supervisor.engine.stats().running == 3)
    wait_for(lambda: served.supervisor.engine.stats().running + served.supervisor.engine.stats().waiting == 0, 2.0)


def test_a_failing_engine_is_503_for_the_whole(serve: Serve) -> None:
    served = serve("endless")
    first = served.supervisor.engine

    break_engine(first)
    answer = post(served, [{"input": "hello"}, {"input": "again"}], **SHARED)
    assert answer.status_code == 503 and answer.json()["error"]["code"] == "engine_unavailable"
    wait_for(lambda: served.loaded_anew(first), 30.0)
    assert post(served, [{"input": "hello"}], **SHARED).json()["succeeded"] == 1


def test_a_full_queue_is_told_item_by_item(serve: Serve) -> None:
    served = serve("endless", engine={"max_rows": 1, "max_waiting": 1, "max_parked": 0})
    body = post(served, [{"input": "hello"}] * 12, **{**SHARED, "max_frames": 40}).json()
    errors = [r["error"] for r in body["results"] if r["status"] == "error"]
    assert body["succeeded"] >= 1 and errors and all("waiting" in e for e in errors)


def test_a_batch_counts_as_many_requests_as_it_has_items(serve: Serve) -> None:
    served = serve(max_requests_per_minute=4)
    assert post(served, [{"input": "hello"}] * 3, **SHARED).status_code == 200
    refused = post(served, [{"input": "hello"}] * 3, **SHARED)
    assert refused.status_code == 429 and refused.json()["error"]["code"] == "rate_limited"
    assert 0 < int(refused.headers["retry-after"]) <= 60
    assert served.post(**SHARED, input="hello").status_code == 200  # the one request that is left this minute
    assert served.post(**SHARED, input="hello").status_code == 429
