"""Clients that others wrote, unchanged but for the address.

Those that are too heavy to install with the tests run if SONANT_CLIENTS names interpreters that have them:
SONANT_CLIENTS=/opt/pipecat/bin/python:/opt/livekit/bin/python:/opt/openai2/bin/python make test
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import av
import httpx
import numpy as np
import pytest
import soundfile

from serving.conftest import Serve, Served
from serving.process import server_processes
from serving.test_speech import seconds

CLIENTS = Path(__file__).parent / "clients"
KEY = {"Authorization": "Bearer the key"}
FRAMES = 6


def installed(python: str, package: str) -> str | None:
    ask = f"from importlib.metadata import version; print(version({package!r}))"
    answer = subprocess.run([python, "-c", ask], capture_output=True, text=True)
    return answer.stdout.strip() if answer.returncode == 0 else None


def interpreter(package: str, major: str = "") -> str:
    """Return an interpreter that has the package, of that major version if one is given, or skip the test."""
    named = [python for python in os.environ.get("SONANT_CLIENTS", "").split(os.pathsep) if python]
    for python in (sys.executable, *named):
        if (found := installed(python, package)) and found.startswith(major):
            return python
    pytest.skip(f"no interpreter in SONANT_CLIENTS has {package} {major}")


def run(python: str, script: str, url: str) -> dict[str, Any]:
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "http_proxy", "https_proxy")}
    command = [python, str(CLIENTS / script), url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@dataclass(frozen=True)
class Address:
    url: str


@pytest.fixture(scope="module", params=["one process", "three front ends"])
def served(
    request: pytest.FixtureRequest, serve_once: Serve, checkpoints: Mapping[str, Path], tmp_path_factory: Any
) -> Iterator[Served | Address]:
    """Stock clients cannot send `max_frames`, and this model never stops by itself: the budget sets its length."""
    budget = {"budget_s": 0.08 * (FRAMES - 1), "budget_s_per_token": 1e-4}  # rounded up to whole frames
    if request.param == "one process":
        yield serve_once("endless", engine=budget, api_keys=("the key",))
        return
    folder = tmp_path_factory.mktemp("named") / "tiny"
    folder.symlink_to(checkpoints["endless"])
    options = [f"--{name.replace('_', '-')}={value}" for name, value in budget.items()]
    with server_processes(ready_s=120) as run:
        _, url = run(folder, "--workers", "3", "--api-key", "the key", *options)
        yield Address(url)


@pytest.mark.parametrize("major", ["2.", "3."])
def test_openai_sdk(served: Served, major: str) -> None:
    got = run(interpreter("openai", major), "openai_sdk.py", served.url)
    assert got["version"].startswith(major)
    whole = got["create"]
    assert whole["bytes"] == FRAMES * 2 * 1920 and got["content_type"] == "audio/pcm"
    for way in ("stream_to_file", "iter_bytes", "sse", "async_create", "async_iter_bytes", "async_sse"):
        assert got[way]["bytes"] == whole["bytes"], way
    assert got["iter_bytes"]["largest"] == 1024
    assert got["sse"]["last"]["type"] == "speech.audio.done" and got["sse"]["last"]["usage"]["output_tokens"] == FRAMES
    assert got["async_at_once"] == [whole["bytes"]] * 8
    assert "tts-1" in got["models"]
    assert got["bad_voice"]["code"] == "voice_not_found" and got["bad_voice"]["param"] == "voice"
    assert got["bad_voice"]["id"] and "nobody" in got["bad_voice"]["message"]
    assert got["bad_key"]["code"] == "invalid_api_key" and got["bad_key"]["id"]


def test_livekits_tts_in_every_format(served: Served) -> None:
    got = run(interpreter("livekit-plugins-openai"), "livekit_agent.py", served.url)
    for way in ("default", "tts-1", "opus", "aac", "flac", "wav", "pcm"):
        assert got[way]["rate"] == 24000, way
        assert got[way]["seconds"] == pytest.approx(FRAMES * 0.08, abs=0.1), way  # encoders add a frame of silence


def test_pipecats_tts_service(served: Served) -> None:
    got = run(interpreter("pipecat-ai"), "pipecat_agent.py", served.url)
    for voice in ("alloy", "cedar"):
        assert got[voice] == {"bytes": FRAMES * 2 * 1920, "rates": [24000], "errors": []}


def test_open_webui(served: Served) -> None:
    """Do as its server does: list models and voices, post what it was given with aiohttp, and read the whole body."""

    async def speak() -> tuple[dict[str, Any], dict[str, Any], str, bytes]:
        async with aiohttp.ClientSession(trust_env=True, headers=KEY) as session:
            async with session.get(f"{served.url}/v1/audio/models") as r:
                models = await r.json()
            async with session.get(f"{served.url}/v1/audio/voices") as r:
                voices = await r.json()
            body = {"model": models["models"][0]["id"], "input": "hello the world", "voice": voices["voices"][0]["id"]}
            async with session.post(f"{served.url}/v1/audio/speech", json=body) as r:
                r.raise_for_status()
                return models, voices, r.headers["content-type"], await r.read()

    models, voices, kind, sound = asyncio.run(speak())
    assert models["models"] == [{"id": "tiny", "name": "tiny"}]
    assert all({"id", "name"} <= voice.keys() for voice in voices["voices"])
    assert kind == "audio/mpeg" and seconds(sound, "mp3") == pytest.approx(FRAMES * 0.08, abs=0.1)


@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl here")
@pytest.mark.parametrize("form", ["mp3", "opus", "aac", "flac", "wav", "pcm"])
def test_curl_into_a_file(served: Served, tmp_path: Path, form: str) -> None:
    body = json.dumps({"model": "tts-1", "input": "hello the world", "voice": "alloy", "response_format": form})
    file = tmp_path / f"speech.{form}"
    headers = ["-H", f"Authorization: {KEY['Authorization']}", "-H", "content-type: application/json"]
    command = ["curl", "-sS", "--fail", "--no-buffer", f"{served.url}/v1/audio/speech", *headers, "-d", body]
    subprocess.run([*command, "-o", str(file)], check=True, timeout=60)
    assert seconds(file.read_bytes(), form) == pytest.approx(FRAMES * 0.08, abs=0.1)


@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl here")
def test_curl_without_a_content_type_is_told_to_send_one(served: Served) -> None:
    command = ["curl", "-sS", f"{served.url}/v1/audio/speech", "-H", f"Authorization: {KEY['Authorization']}"]
    done = subprocess.run([*command, "-d", '{"input": "hi"}'], capture_output=True, check=True, timeout=60)
    assert "content-type: application/json" in json.loads(done.stdout)["error"]["message"]


def test_a_streamed_wav_is_read_by_what_reads_files(served: Served) -> None:
    """Its header cannot state a length; libsndfile and libav must not mind."""
    body = {"input": "hello the world", "response_format": "wav"}
    data = httpx.post(f"{served.url}/v1/audio/speech", json=body, headers=KEY, timeout=60).content
    samples = np.frombuffer(data[44:], "<i2")
    assert len(samples) == FRAMES * 1920
    assert np.array_equal(soundfile.read(io.BytesIO(data), dtype="int16")[0], samples)
    with av.open(io.BytesIO(data)) as container:
        assert sum(frame.samples for frame in container.decode(audio=0)) == len(samples)
