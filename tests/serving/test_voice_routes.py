"""Uploading a voice, speaking with it, and deleting it again, as OpenAI's SDK does it."""

from __future__ import annotations

import io
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import soundfile

from clips import reference_clip
from serving.conftest import Serve, Served, wait_for
from serving.same_sound import same_sound


@pytest.fixture(scope="module")
def asserted(serve_once: Serve, tmp_path_factory: pytest.TempPathFactory) -> Served:
    return serve_once("base", voices_folder=tmp_path_factory.mktemp("asserted"), consent="asserted")


def wav() -> bytes:
    out = io.BytesIO()
    soundfile.write(out, *reference_clip(), format="WAV")
    return out.getvalue()


def upload(url: str, clip: bytes, **fields: str) -> httpx.Response:
    return httpx.post(f"{url}/v1/audio/voices", files={"audio_sample": ("clip.wav", clip)}, data=fields, timeout=30)


def test_a_voice_is_uploaded_with_consent_and_spoken_with_after_a_restart(serve: Serve, tmp_path: Path) -> None:
    served = serve("base", voices_folder=tmp_path)
    assert upload(served.url, wav(), name="me", consent="cons_nobody").status_code == 400
    form = {"name": "my consent", "language": "en"}
    recording = {"recording": ("yes.wav", wav())}
    consent = httpx.post(f"{served.url}/v1/audio/voice_consents", files=recording, data=form).json()
    assert consent["object"] == "audio.voice_consent"
    voice = upload(served.url, wav(), name="me", consent=consent["id"], ref_text="the user and the world").json()
    assert voice["object"] == "audio.voice" and voice["name"] == "me"
    assert upload(served.url, wav(), name="ME", consent=consent["id"]).status_code == 409
    body = {"input": "hello", "seed": 1, "max_frames": 4, "response_format": "pcm"}
    heard = served.post(**body, voice={"id": voice["id"]}).content
    served.server.should_exit = True
    again = serve("base", voices_folder=tmp_path)
    assert same_sound(again.post(**body, voice="me").content, heard) and len(heard) == 4 * 2 * 1920
    listed = httpx.get(f"{again.url}/v1/audio/voices").json()["voices"]
    assert [v["id"] for v in listed] == [voice["id"]]
    gone = httpx.delete(f"{again.url}/v1/audio/voices/{voice['id']}")
    assert gone.json() == {"id": voice["id"], "deleted": True, "object": "audio.voice.deleted"}
    assert httpx.delete(f"{again.url}/v1/audio/voices/{voice['id']}").status_code == 404
    assert again.post(**body, voice="me").status_code == 400


def test_a_drain_lets_an_upload_end(serve: Serve, tmp_path: Path) -> None:
    served = serve("base", voices_folder=tmp_path, consent="asserted")
    served.server.config.timeout_graceful_shutdown = 0  # a drain cuts off at once what it does not wait for
    engine, encoding, go_on = served.supervisor.engine, threading.Event(), threading.Event()
    encode = engine.encode

    def slowly(*given: Any) -> Any:
        encoding.set()
        assert go_on.wait(20)
        return encode(*given)

    engine.encode = slowly  # type: ignore[method-assign]
    with ThreadPoolExecutor(1) as client:
        made = client.submit(upload, served.url, wav(), name="me", consent="I agree.")
        assert encoding.wait(20)
        served.server.handle_exit(signal.SIGTERM, None)
        wait_for(lambda: not served.link.ready)
        time.sleep(0.3)  # time for the drain to check three times
        assert not served.server.should_exit
        go_on.set()
        assert made.result().status_code == 200
    wait_for(lambda: served.server.should_exit)


@pytest.mark.parametrize("clip", [b"", b"not sound", b"\0" * 5000])
def test_a_bad_clip_is_refused_and_nothing_is_kept(asserted: Served, clip: bytes) -> None:
    answer = upload(asserted.url, clip, name="me", consent="I agree.")
    assert answer.status_code == 400 and answer.json()["error"]["message"]
    assert httpx.get(f"{asserted.url}/v1/audio/voices").json()["voices"] == []


def test_a_statement_will_do_where_the_operator_says_so(asserted: Served) -> None:
    made = upload(asserted.url, wav(), name="me", consent="I am the speaker and agree.")
    assert made.status_code == 200
    assert httpx.delete(f"{asserted.url}/v1/audio/voices/{made.json()['id']}").status_code == 200


def test_a_model_with_fixed_voices_takes_no_uploads(serve: Serve, tmp_path: Path) -> None:
    served = serve("custom", voices_folder=tmp_path, consent="asserted")
    answer = upload(served.url, wav(), name="me", consent="I agree.")
    assert answer.status_code == 400 and answer.json()["error"]["code"] == "unsupported"


def test_who_names_no_voice_of_a_model_that_clones_is_told_what_to_send(asserted: Served) -> None:
    error = asserted.post(input="hello").json()["error"]
    assert error["code"] == "voice_not_found" and error["param"] == "voice"
    assert "ref_audio" in error["message"] and "--" not in error["message"]  # an HTTP client has no command line


def test_without_a_folder_there_is_no_such_route(serve: Serve) -> None:
    served = serve("base")
    assert upload(served.url, wav(), name="me", consent="x").status_code == 405
