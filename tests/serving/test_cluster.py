"""Replicas on a real Ray: the whole API through its proxy, stock clients, one voice store, and killed processes.

`cluster_storm.py` does the same with a hundred clients, again and again.
"""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import httpx
import pytest
from websockets.sync.client import connect

from serving.cluster_processes import Cluster, alone, cluster
from serving.cluster_storm import Crowd, under_load
from serving.test_clients import interpreter, run
from serving.test_speech import seconds
from sonant.config import EngineConfig
from sonant.serving.cluster.cluster_options import ClusterOptions
from sonant.serving.cluster.replica import ReplicaSetup
from sonant.serving.options import ModelOptions, ServeOptions
from sonant.serving.ray_app import application

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("ray") is None, reason="sonant[ray] is not installed"),
]
FRAMES = 6
FORMATS = ("mp3", "opus", "aac", "flac", "wav", "pcm")
BODY = {"input": "hello the world", "voice": "alloy", "response_format": "pcm", "seed": 1, "max_frames": FRAMES}
SOUND_BYTES = FRAMES * 2 * 1920


@pytest.fixture(scope="module")
def setup(checkpoints: Mapping[str, Path]) -> ReplicaSetup:
    """Stock clients cannot send `max_frames`, and this model never stops by itself: the budget sets its length."""
    serving = ServeOptions(
        port=8771, log_level="warning", drain_s=20.0, api_keys=("the key",), other_models=("large=/models/large",)
    )
    budget = EngineConfig(budget_s=0.08 * (FRAMES - 1), budget_s_per_token=1e-4)
    return ReplicaSetup(folder=checkpoints["endless"], model=ModelOptions(device="cpu"), serving=serving, engine=budget)


@pytest.fixture(scope="module")
def pair(setup: ReplicaSetup) -> Iterator[Cluster]:
    with alone(), cluster(setup, 2) as made:
        yield made


@pytest.fixture(scope="module")
def client(pair: Cluster) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=pair.url, headers={"authorization": "Bearer the key"}, timeout=60) as made:
        yield made


def test_the_whole_api_goes_through(client: httpx.Client, pair: Cluster) -> None:
    for form in FORMATS:
        answer = client.post("/v1/audio/speech", json={**BODY, "response_format": form})
        assert answer.status_code == 200, answer.text
        assert seconds(answer.content, form) == pytest.approx(FRAMES * 0.08, abs=0.1), form
        assert "," not in answer.headers["x-request-id"]
    events = client.post("/v1/audio/speech", json={**BODY, "stream_format": "sse"}).text.splitlines()
    told = [json.loads(line.removeprefix("data: ")) for line in events if line]
    assert sum(len(base64.b64decode(event["audio"])) for event in told[:-1]) == SOUND_BYTES
    assert told[-1]["type"] == "speech.audio.done"
    batch = {"items": [{"input": "hello"}, {"input": "world"}], "response_format": "pcm", "max_frames": FRAMES}
    assert len(client.post("/v1/audio/speech/batch", json=batch).json()["results"]) == 2
    assert "<html" in client.get("/").text and client.get("/v1/models").json()["data"]
    refused = client.post("/v1/audio/speech", json={**BODY, "voice": "nobody"})
    assert refused.status_code == 400 and refused.json()["error"]["code"] == "voice_not_found"
    assert httpx.post(f"{pair.url}/v1/audio/speech", json=BODY).status_code == 401


def test_sound_is_passed_on_as_it_is_made(client: httpx.Client) -> None:
    """Nothing on the way gathers it: the first frame arrives before the last one is made."""
    body = {**BODY, "max_frames": 200, "input": "hello the world " * 20}
    times = []
    with client.stream("POST", "/v1/audio/speech", json=body) as answer:
        for _ in answer.iter_raw():
            times.append(time.monotonic())
    assert len(times) >= FRAMES // 2 and times[-1] > times[0]


def test_text_comes_bit_by_bit_over_a_websocket(pair: Cluster) -> None:
    address = pair.url.replace("http", "ws") + "/v1/audio/speech/stream"
    heard, kinds = 0, []
    with connect(address, additional_headers={"authorization": "Bearer the key"}) as socket:
        for message in (
            {"type": "session.config", "voice": "alloy", "response_format": "pcm", "max_frames": FRAMES},
            {"type": "input.text", "text": "hello the "},
            {"type": "input.text", "text": "world."},
            {"type": "input.done"},
        ):
            socket.send(json.dumps(message))
        for message in socket:
            if isinstance(message, bytes):
                heard += len(message)
                continue
            kinds.append(json.loads(message)["type"])
            if kinds[-1] == "session.done":
                break
    assert heard == SOUND_BYTES and kinds == ["audio.start", "audio.done", "session.done"]


def test_requests_are_shared_out_and_metrics_are_of_all(client: httpx.Client, pair: Cluster) -> None:
    for _ in range(10):
        with httpx.Client(base_url=pair.url, headers=client.headers, timeout=60) as another:
            assert len(another.post("/v1/audio/speech", json=BODY).content) == SOUND_BYTES
    page = client.get("/metrics").text
    spoken = [
        float(line.rpartition(" ")[2])
        for line in page.splitlines()
        if line.startswith("sonant_requests_total") and 'route="speech"' in line and 'outcome="length"' in line
    ]
    assert len(spoken) == 2 and min(spoken) >= 3, page
    assert page.count("# TYPE sonant_ttfp_seconds histogram") == 1


def test_stock_clients_see_no_difference(pair: Cluster) -> None:
    got = run(interpreter("openai"), "openai_sdk.py", pair.url)
    for way in ("create", "stream_to_file", "iter_bytes", "sse", "async_create", "async_iter_bytes", "async_sse"):
        assert got[way]["bytes"] == SOUND_BYTES, way
    assert got["bad_key"]["code"] == "invalid_api_key"


def test_pipecat_through_ray(pair: Cluster) -> None:
    got = run(interpreter("pipecat-ai"), "pipecat_agent.py", pair.url)
    assert got["alloy"] == {"bytes": SOUND_BYTES, "rates": [24000], "errors": []}


def test_livekit_through_ray(pair: Cluster) -> None:
    got = run(interpreter("livekit-plugins-openai"), "livekit_agent.py", pair.url)
    assert got["default"]["seconds"] == pytest.approx(FRAMES * 0.08, abs=0.1)


def test_another_model_is_another_application_below_a_path(
    pair: Cluster, setup: ReplicaSetup, client: httpx.Client
) -> None:
    from ray import serve

    large = replace(setup, serving=replace(setup.serving, other_models=()))
    built = application(large, ClusterOptions(replicas=1, replica_cpus=0.1))
    serve.run(built, name="large", route_prefix="/models/large")
    try:
        body = {**BODY, "model": "large", "max_frames": 2}
        deadline_s = time.monotonic() + 30
        while httpx.get(f"{pair.url}/models/large/ready").status_code != 200:
            assert time.monotonic() < deadline_s
            time.sleep(0.1)
        answer = client.post("/v1/audio/speech", json=body, follow_redirects=True)
        assert answer.status_code == 200 and len(answer.content) == 2 * 2 * 1920
        assert answer.url.path == "/models/large/v1/audio/speech"
        assert httpx.post(f"{pair.url}/models/large/v1/audio/speech", json=body).status_code == 401
        counted = client.get("/models/large/metrics").text
        assert 'outcome="length",replica=' in counted and "sonant_rows" in counted
    finally:
        serve.delete("large")


def test_what_is_killed_comes_back_and_a_new_version_lets_nobody_down(pair: Cluster, setup: ReplicaSetup) -> None:
    crowd = Crowd(pair.url, FRAMES, SOUND_BYTES, headers={"authorization": "Bearer the key"})

    def kill_replica() -> None:
        victim = pair.kill("replica")
        while victim in pair.pids("replica"):
            time.sleep(0.02)
        time.sleep(1.0)
        pair.wait_whole()

    asyncio.run(under_load(pair, crowd, 3, kill_replica))
    assert crowd.outcomes["whole"] > 10 and not crowd.outcomes["short"], crowd.outcomes
    assert crowd.outcomes["broken"] <= 3 and not crowd.outcomes["unreachable"], crowd.outcomes
    crowd.outcomes.clear()
    before = pair.pids("replica")
    changed = replace(setup, serving=replace(setup.serving, max_requests_per_minute=10**6))
    asyncio.run(under_load(pair, crowd, 3, lambda: pair.deploy(changed)))
    assert set(crowd.outcomes) == {"whole"}, crowd.outcomes
    assert not set(before) & set(pair.pids("replica"))
