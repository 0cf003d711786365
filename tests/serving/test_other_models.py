"""Several models by name behind one address: requests that name another server's model are redirected there."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest
from openai import OpenAI
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from serving.conftest import Serve, Served
from sonant.errors import ConfigError
from sonant.serving.api.other_models import OtherModels
from sonant.serving.cluster.at_prefix import AtPrefix

BODY = {"input": "hello", "voice": "alloy", "seed": 1, "max_frames": 2, "response_format": "pcm"}


@pytest.fixture(scope="module")
def pair(serve_once: Serve) -> tuple[Served, Served]:
    """Two servers, of which the first knows where the other one is."""
    large = serve_once("custom")
    return serve_once("custom", other_models=(f"Large={large.url}", "small=/models/small/")), large


def spoken(served: Served) -> float:
    page = httpx.get(f"{served.url}/metrics").text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in page if line.startswith("sonant_audio_seconds_total"))


def test_who_names_another_model_is_spoken_to_by_it(pair: tuple[Served, Served]) -> None:
    here, large = pair
    client = OpenAI(base_url=f"{here.url}/v1", api_key="none", max_retries=0)
    before = spoken(here), spoken(large)
    extra = {"seed": 1, "max_frames": 2}
    heard = client.audio.speech.create(
        model="large", voice="alloy", input="hello", response_format="pcm", extra_body=extra
    ).content
    assert len(heard) == 2 * 2 * 1920
    assert (spoken(here), spoken(large)) == (before[0], pytest.approx(before[1] + 0.16))
    client.audio.speech.create(model="tts-1", voice="alloy", input="hello", response_format="pcm", extra_body=extra)
    assert spoken(here) == pytest.approx(before[0] + 0.16)
    assert {"Large", "small", "tts-1"} <= {model.id for model in client.models.list()}


def test_the_body_is_kept_and_the_place_is_of_this_address(pair: tuple[Served, Served]) -> None:
    url = pair[0].url
    sent_on = httpx.post(f"{url}/v1/audio/speech", json={**BODY, "model": "small"})
    assert (sent_on.status_code, sent_on.headers["location"]) == (307, "/models/small/v1/audio/speech")
    assert sent_on.headers["x-request-id"]
    batch = {"items": [{"input": "hello"}], "model": "LARGE", "max_frames": 2, "voice": "alloy"}
    answer = httpx.post(f"{url}/v1/audio/speech/batch", json=batch, follow_redirects=True, timeout=60)
    assert answer.status_code == 200 and len(answer.json()["results"]) == 1


def test_a_batch_goes_where_its_items_models_are(pair: tuple[Served, Served]) -> None:
    url = f"{pair[0].url}/v1/audio/speech/batch"
    item = {"input": "hello", "max_frames": 2}
    one = httpx.post(url, json={"items": [{**item, "model": "small"}] * 2, "model": "tts-1", "voice": "alloy"})
    assert (one.status_code, one.headers["location"]) == (307, "/models/small/v1/audio/speech/batch")
    two = httpx.post(url, json={"items": [item, {**item, "model": "small"}], "voice": "alloy"})
    assert two.status_code == 400 and "a batch for each" in two.json()["error"]["message"]


def test_a_session_is_told_where_its_model_is(pair: tuple[Served, Served]) -> None:
    with connect(f"{pair[0].url.replace('http', 'ws')}/v1/audio/speech/stream") as socket:
        socket.send(json.dumps({"type": "session.config", "model": "small", "voice": "alloy"}))
        told = json.loads(socket.recv(20))
        assert told["type"] == "error" and "/models/small/v1/audio/speech/stream" in str(told)
        with pytest.raises(ConnectionClosed):
            socket.recv(20)


@pytest.mark.parametrize("given", ["large", "=/models/large", "large=models/large", "large=ftp://there"])
def test_a_place_that_is_none_is_refused(given: str) -> None:
    with pytest.raises(ConfigError, match="NAME=/path"):
        OtherModels((given,))


@pytest.mark.parametrize(
    ("root", "path", "within"),
    [("/models/large", "/models/large/health", "/health"), ("/models/large", "/models/large", "/"), ("", "/v1", "/v1")],
)
def test_below_a_prefix_an_app_sees_its_own_paths(root: str, path: str, within: str) -> None:
    """Otherwise a path that needs no key would need one, and one that needs a role would not."""
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope)

    scope = {"type": "http", "root_path": root, "path": path, "raw_path": path.encode()}
    asyncio.run(AtPrefix(app)(scope, None, None))  # type: ignore[arg-type]
    assert (seen[0]["path"], seen[0]["raw_path"], seen[0]["root_path"]) == (within, within.encode(), "")
