"""Hostile requests: each is refused with an error of our own, quickly, and leaves nothing behind.

No 500, no crash, no memory kept, nothing written but in the store, nobody else held up.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from serving.conftest import Serve, Served, wait_for
from serving.hostile import (
    ADDRESSES,
    BATCH,
    BODIES,
    CLIPS,
    CONSENTS,
    FORMS,
    JSON,
    NAMES,
    PATHS,
    SPEECH,
    VOICES,
    b64,
    clip,
    refused,
)
from serving.process import resident_mib


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hostile")


@pytest.fixture(scope="module")
def served(serve_once: Serve, folder: Path) -> Served:
    options = {"voices_folder": folder / "store", "consent": "asserted", "allow_url": ("media.example.com",)}
    return serve_once("base", **options)


@pytest.fixture(scope="module")
def client(served: Served) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=served.url, timeout=60) as client:
        yield client


@pytest.mark.parametrize("name", BODIES)
def test_a_bad_body(client: httpx.Client, name: str) -> None:
    began = time.monotonic()
    error = refused(client.post(SPEECH, content=BODIES[name], headers=JSON))
    assert time.monotonic() - began < 2, "the event loop was held up"
    assert len(error["message"]) < 1000


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "é/é", ""])
def test_another_content_type(client: httpx.Client, kind: str) -> None:
    body = b'{"input": "hi"}'
    error = refused(client.post(SPEECH, content=body, headers={"content-type": kind.encode("latin-1")}))
    assert "application/json" in error["message"]


@pytest.mark.parametrize("address", ADDRESSES)
def test_a_clip_from_where_it_must_not_come(client: httpx.Client, address: str) -> None:
    began = time.monotonic()
    assert refused(client.post(SPEECH, json={"input": "hi", "ref_audio": address}))["code"] == "invalid_audio"
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("name", CLIPS)
def test_a_clip_that_is_none_in_a_request_an_upload_and_a_consent(client: httpx.Client, name: str) -> None:
    began, before_mib = time.monotonic(), resident_mib()
    refused(client.post(SPEECH, json={"input": "hi", "ref_audio": b64(CLIPS[name])}))
    upload = {"data": {"name": "x", "consent": "she agreed"}, "files": {"audio_sample": ("x", CLIPS[name])}}
    assert refused(client.post(VOICES, **upload))["param"] == "audio_sample"
    consent = {"data": {"name": "x", "language": "en"}, "files": {"recording": ("x", CLIPS[name])}}
    assert refused(client.post(CONSENTS, **consent))["param"] == "recording"
    assert time.monotonic() - began < 3 and resident_mib() - before_mib < 100


@pytest.mark.parametrize("name", NAMES)
def test_a_name_that_is_a_trick(client: httpx.Client, folder: Path, name: str) -> None:
    upload = {"data": {"name": name, "consent": "she agreed"}, "files": {"audio_sample": (name, clip())}}
    refused(client.post(VOICES, **upload))
    refused(client.post(CONSENTS, data={"name": name, "language": "en"}, files={"recording": (name, clip())}))
    refused(client.post(SPEECH, json={"input": "hi", "voice": name}))
    assert sorted(os.listdir(folder)) == ["store"]


@pytest.mark.parametrize("filename", ["../../evil.wav", "/evil.wav", "a\0b", "x" * 5000])
def test_a_files_own_name_is_of_no_account(client: httpx.Client, folder: Path, filename: str) -> None:
    upload = {"data": {"name": "Anna", "consent": "she agreed"}, "files": {"audio_sample": (filename, clip())}}
    made = client.post(VOICES, **upload)
    if made.status_code == 400:  # a multipart parser may refuse the name
        refused(made)
    else:
        assert client.delete(f"{VOICES}/{made.json()['id']}").status_code == 200
    stored = {path.name for path in folder.rglob("*") if path.is_file()}
    assert all(name.startswith("index.sqlite") for name in stored), stored


@pytest.mark.parametrize("path", PATHS)
def test_a_path_that_is_a_trick(client: httpx.Client, path: str) -> None:
    refused(client.delete(path), 404, 405)
    refused(client.get(path), 404, 405)


@pytest.mark.parametrize("name", FORMS)
def test_a_bad_form(client: httpx.Client, name: str) -> None:
    began = time.monotonic()
    content, headers = FORMS[name]
    for path in (VOICES, CONSENTS):
        refused(client.post(path, content=content, headers=headers))
    assert time.monotonic() - began < 3


def test_thirty_two_bad_items_are_thirty_two_answers_and_no_work(client: httpx.Client, served: Served) -> None:
    steps = served.supervisor.engine.stats().steps
    for item in ({"input": "hi", "voice": "nobody"}, {"input": "..."}, {"input": "hi", "ref_audio": b64(bytes(999))}):
        answer = client.post(BATCH, json={"items": [item] * 32})
        body = answer.json()
        assert (answer.status_code, body["failed"], len(body["results"])) == (200, 32, 32)
        assert all(result["error"] for result in body["results"])
    assert served.supervisor.engine.stats().steps == steps and not served.server.service.in_flight.running


def test_methods_and_paths_that_are_not_there_answer_in_our_shape(client: httpx.Client) -> None:
    for path in (SPEECH, BATCH, VOICES, CONSENTS, "/v1/models", "/v1/engine", "/health", "/ready", "/metrics"):
        for method in ("PATCH", "TRACE", "PUT", "MAKEBELIEVE"):
            refused(client.request(method, path), 405, 400)  # 400: for a method that HTTP does not know
        refused(client.get(path + "/nothing"), 404, 405)


def test_a_body_over_the_limit_is_refused_on_every_route(serve: Serve) -> None:
    served = serve("base", max_body_bytes=1000)
    for path in (SPEECH, BATCH):
        assert refused(httpx.post(served.url + path, content=bytes(2000), headers=JSON), 413)["code"]


def test_keys_of_any_length_and_script(serve: Serve) -> None:
    served = serve(api_keys=("right", "schlüssel-ключ"))

    def status(key: bytes) -> int:
        return httpx.get(f"{served.url}/v1/models", headers={"authorization": b"Bearer " + key}).status_code

    assert status("schlüssel-ключ".encode()) == 200
    assert httpx.get(f"{served.url}/v1/models", params={"api_key": "schlüssel-ключ"}).status_code == 200
    for wrong in (b"x" * 50_000, b"\xff\xfe", "ключ".encode(), b"right\xff", b"right right", b"\x80" * 9000):
        assert status(wrong) == 401
    for query in ("api_key=" + "x" * 50_000, "api_key=%ff", "&" * 9000, "api_key=wrong&api_key=right", "api_key"):
        assert httpx.get(f"{served.url}/v1/models?{query}").status_code == 401


def test_all_of_it_again_and_again_keeps_no_memory(client: httpx.Client, served: Served) -> None:
    def once() -> None:
        for body in BODIES.values():
            client.post(SPEECH, content=body, headers=JSON)
        for data in CLIPS.values():
            client.post(SPEECH, json={"input": "hi", "ref_audio": b64(data)})
        for content, headers in FORMS.values():
            client.post(VOICES, content=content, headers=headers)

    once()
    before_mib = resident_mib()
    for _ in range(3):
        once()
    assert resident_mib() - before_mib < 60
    wait_for(lambda: served.server.service.in_flight.running == 0)
    assert httpx.get(f"{served.url}/health").status_code == 200
