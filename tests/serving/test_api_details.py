"""Small things that stock clients send and ask for, and the errors for bodies that are wrong."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from serving.conftest import Serve, Served
from serving.hostile import SPEECH, clip, refused
from serving.same_sound import same_sound

BODY = {"input": "hello the world", "voice": "alloy", "seed": 5, "max_frames": 2}
JSON = {"content-type": "application/json"}


@pytest.fixture(scope="module")
def served(serve_once: Serve) -> Served:
    return serve_once()


@pytest.fixture(scope="module")
def cloning(serve_once: Serve, tmp_path_factory: pytest.TempPathFactory) -> Served:
    return serve_once("base", voices_folder=tmp_path_factory.mktemp("voices"))


def test_a_model_can_be_asked_for_by_its_name(served: Served) -> None:
    client = openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0)
    for name in ("tiny", "tts-1", "gpt-4o-mini-tts"):
        assert client.models.retrieve(name).id == name
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("gpt-9")
    assert caught.value.code == "model_not_found" and caught.value.param == "model"
    assert refused(httpx.get(f"{served.url}/v1/models/some/body's"), 404)["code"] == "model_not_found"


def test_a_consent_is_renamed(cloning: Served) -> None:
    client = openai.OpenAI(base_url=f"{cloning.url}/v1", api_key="none", max_retries=0)
    made = client.audio.voice_consents.create(name="mine", language="en", recording=("yes.wav", clip(), "audio/wav"))
    assert client.audio.voice_consents.update(made.id, name="ours").name == "ours"
    assert client.audio.voice_consents.retrieve(made.id).name == "ours"
    with pytest.raises(openai.NotFoundError):
        client.audio.voice_consents.update("cons_nobody", name="ours")
    for bad in ({}, {"name": 5}, {"name": ""}, {"name": "x", "language": "de"}):
        refused(httpx.post(f"{cloning.url}/v1/audio/voice_consents/{made.id}", json=bad))


def test_null_is_as_if_it_were_not_there(served: Served) -> None:
    plain = served.post(**BODY)
    nulls = dict.fromkeys(("response_format", "stream_format", "stream", "speed", "instructions", "word_timestamps"))
    answer = served.post(**BODY, **nulls)
    assert (answer.status_code, answer.headers["content-type"]) == (200, "audio/mpeg"), answer.text
    assert answer.content == plain.content
    batch = {"items": [{**BODY, "response_format": None}], "response_format": None}
    assert httpx.post(f"{served.url}{SPEECH}/batch", json=batch).json()["results"][0]["media_type"] == "audio/wav"


@pytest.mark.parametrize(
    ("code", "language"),
    [("a", "en"), ("z", "zh"), ("j", "ja"), ("en-US", "english"), ("zh_CN", "Chinese"), ("", None)],
)
def test_lang_code_is_the_language(served: Served, code: str, language: str | None) -> None:
    meant = served.post(**BODY, response_format="pcm", language=language)
    answer = served.post(**BODY, response_format="pcm", lang_code=code, user="somebody")
    assert answer.status_code == meant.status_code == 200 and same_sound(answer.content, meant.content)


def test_lang_code_is_judged_as_a_language_and_an_items_goes_before_its_batchs(served: Served) -> None:
    assert refused(served.post(**BODY, lang_code="tlh"))["code"] == "language_not_found"
    items = [{"input": "hi", "lang_code": "tlh", "max_frames": 2}, {"input": "hi", "max_frames": 2}]
    batch = {"items": items, "language": "english", "voice": "alloy"}
    answer = httpx.post(f"{served.url}{SPEECH}/batch", json=batch).json()
    assert [r["status"] for r in answer["results"]] == ["error", "success"] and "tlh" in answer["results"][0]["error"]


def test_words_of_a_clip_without_the_clip_are_refused(served: Served, cloning: Served) -> None:
    for server in (served, cloning):
        error = refused(server.post(**BODY, ref_text="what it says"))
        assert "there is no ref_audio" in error["message"]


WRONG: dict[str, tuple[bytes, str]] = {
    "no UTF-8": (b'{"input":"\xff\xfe"}', r"the JSON is not valid UTF-8 at byte \d+"),
    "nested lists": (b"[" * 200_000, "the JSON has lists or objects nested too deeply"),
    "nested objects": (b'{"a":' * 100_000, "nested too deeply"),
    "a long number": (b'{"input":"hi","seed":' + b"9" * 5000 + b"}", "a whole number of over 4,300 digits"),
    "half": (b'{"input":', r"the body is not valid JSON: .* at character \d+"),
    "a large number": (b'{"input":"hi","top_k":' + b"9" * 4000 + b"}", "^top_k"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_json_it_is_not_is_told(served: Served, name: str) -> None:
    content, says = WRONG[name]
    error = refused(httpx.post(f"{served.url}{SPEECH}", content=content, headers=JSON))
    assert re.search(says, error["message"]), error


MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({}, "input: is missing"),
    ({"input": 5}, "input: must be text"),
    ({"input": "hi", "voice": 5}, "voice: must be text or an object"),
    ({"input": "hi", "voice": {"id": 5}}, "voice.id: must be text"),
    ({"input": "hi", "voice": {"id": "a", "x": 1}}, "voice.x: no field has that name"),
    ({"input": "hi", "voice": "x" * 300}, "voice: may have at most 256 characters"),
    ({"input": "hi", "colour": "red"}, "colour: no field has that name"),
    ({"input": "hi", "speed": "fast"}, "speed: must be a number"),
    ({"input": "hi", "speed": 9}, "speed: must be at most 4.0"),
    ({"input": "hi", "seed": -1}, "seed: must be at least 0"),
    ({"input": "hi", "seed": 1.5}, "seed: must be a whole number"),
    ({"input": "hi", "stream": "yes"}, "stream: must be true or false"),
    (
        {"input": "hi", "response_format": "mp4"},
        "response_format: must be 'mp3', 'opus', 'aac', 'flac', 'wav' or 'pcm'",
    ),
    ({"input": "hi", "word_timestamps": True}, "word_timestamps: must be false"),
    ({"input": "hi", "speakers": "a"}, "speakers: must be a list"),
    ({"input": "hi", "speakers": [5]}, "speakers.0: must be an object"),
    ({"input": "hi", "speakers": [{"description": ""}]}, "speakers.0.description: must have at least 1 character"),
    ({"input": "hi", "extra_params": {"top_k": "x"}}, "extra_params.top_k: must be "),
    ({"input": "hi", "speaker_embedding": []}, "speaker_embedding: must have at least 1 item"),
]


@pytest.mark.parametrize(("body", "says"), MISTAKES, ids=[says for _, says in MISTAKES])
def test_a_mistake_is_told_in_plain_words(served: Served, body: dict[str, Any], says: str) -> None:
    error = refused(httpx.post(f"{served.url}{SPEECH}", json=body))
    assert error["message"].startswith(says), error
    assert error["param"] == says.partition(":")[0]
    assert not re.search(r"Input should|Value error|Extra inputs|VoiceId|constrained|Fields|<class", json.dumps(error))


def test_a_file_that_is_none_is_told_in_plain_words(cloning: Served, tmp_path: Path) -> None:
    form = {"name": "x", "consent": "cons_1", "audio_sample": "no file"}
    assert refused(httpx.post(f"{cloning.url}/v1/audio/voices", data=form))["message"] == "audio_sample: must be a file"
    assert refused(httpx.post(f"{cloning.url}/v1/audio/voices", data={"name": "x"}))["message"].endswith(": is missing")
