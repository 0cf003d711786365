"""`speakers`: who says [SPEAKER0], [SPEAKER1] … of a text, on every route."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from serving.conftest import Serve, Served
from serving.session_client import events, session, sound
from serving.test_voice_routes import upload, wav
from sonant import SpeechRequest, Voice
from toy_family.recording import RecordingToy

TEXT = "[SPEAKER0] Hello. [SPEAKER1] Hi."
CLIP = base64.b64encode(wav()).decode()
BODY: dict[str, Any] = {
    "input": TEXT, "seed": 5, "extra_params": {"stop_chance": 0}, "response_format": "pcm",
}  # fmt: skip
FIVE = {"budget_s": 5 * 0.04, "budget_s_per_token": 1e-12}  # an engine's options: five frames for each part
TWO = [{"description": "a low voice"}, {"ref_audio": CLIP, "ref_text": "what it says"}]


@pytest.fixture(scope="module")
def served(serve_once: Serve, tmp_path_factory: pytest.TempPathFactory) -> Served:
    folder = tmp_path_factory.mktemp("dialogue")
    return serve_once("dialogue toy", voices_folder=folder, consent="asserted", engine={"segment_chars": 60, **FIVE})


@pytest.fixture
def asked(served: Served) -> list[SpeechRequest]:
    model = served.supervisor.engine.model
    assert isinstance(model, RecordingToy)
    model.asked.clear()
    return model.asked


def fields_but_text() -> dict[str, Any]:
    return {name: value for name, value in BODY.items() if name not in ("input", "response_format")}


def test_each_kind_of_speaker_reaches_the_model_in_its_place(served: Served, asked: list[SpeechRequest]) -> None:
    made = upload(served.url, wav(), name="Anna", consent="she agreed").json()
    try:
        for named in ("anna", {"id": made["id"]}):
            asked.clear()
            answer = served.post(**BODY, speakers=[*TWO, {"voice": named}])
            assert answer.status_code == 200 and len(answer.content) == 2 * 5 * 1920, answer.text
            low, clone, anna = asked[0].speakers
            assert low == "a low voice" and isinstance(clone, Voice) and clone.text == "what it says"
            assert isinstance(anna, Voice) and anna.name == "Anna" and asked[0].voice is None
    finally:
        httpx.delete(f"{served.url}/v1/audio/voices/{made['id']}")


def test_speakers_and_their_order_are_heard(served: Served) -> None:
    heard = {served.post(**BODY, **given).content for given in ({}, {"speakers": TWO}, {"speakers": TWO[::-1]})}
    assert len(heard) == 3


@pytest.mark.parametrize("mode", [{}, {"x_vector_only_mode": False}, {"x_vector_only_mode": True}], ids=str)
def test_the_timbre_alone_is_a_voice_without_text(
    served: Served, asked: list[SpeechRequest], mode: dict[str, bool]
) -> None:
    said = None if mode.get("x_vector_only_mode") else "what it says"
    assert served.post(**BODY, **mode, ref_audio=CLIP, ref_text="what it says").status_code == 200
    assert served.post(**BODY, **mode, speakers=TWO).status_code == 200
    alone, clone = asked[0].voice, asked[1].speakers[1]
    assert isinstance(alone, Voice) and alone.text == said and isinstance(clone, Voice) and clone.text == said


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"speakers": TWO, "voice": "nobody"}, "voice and speakers exclude each other"),
        ({"speakers": TWO, "ref_audio": CLIP}, "ref_audio and speakers exclude each other"),
        ({"speakers": TWO, "ref_text": "x"}, "ref_text and speakers exclude each other"),
        ({"speakers": TWO, "speaker_embedding": [1.0]}, "speaker_embedding and speakers exclude each other"),
        ({"speakers": []}, "speakers"),
        ({"speakers": [{}]}, "there is none of them"),
        ({"speakers": [{"voice": "a", "description": "b"}]}, "there is voice and description"),
        ({"speakers": [TWO[0], {"description": "b", "ref_text": "c"}]}, "speakers.1: ref_text is what"),
        ({"speakers": [{"description": "x" * 1001}]}, "at most 1000 characters"),
        ({"speakers": [{"description": ""}]}, "at least 1 character"),
        ({"speakers": [{"description": "  "}]}, "speaker 0 has an empty description"),
        ({"speakers": [{"description": "..."}]}, "description of a speaker has no letters"),
        ({"speakers": [{"colour": "red"}]}, "speakers.0.colour"),
        ({"speakers": ["alloy"]}, "speakers.0"),
        ({"speakers": {"description": "x"}}, "speakers"),
        ({"speakers": TWO * 5}, "at most 8 items"),
        ({"speakers": TWO * 2}, "at most 3 speakers in a text, not 4"),
        ({"speakers": [TWO[0], {"voice": "nobody"}]}, "speaker 1: no voice 'nobody'"),
        ({"speakers": [{"voice": "alloy"}]}, "speaker 0: 'alloy' is nobody's voice here"),
        ({"speakers": [TWO[0], {"ref_audio": "!!"}]}, "speaker 1: ref_audio is not base64"),
        ({"speakers": [{"ref_audio": "https://example.com/a.wav"}]}, "speaker 0: ref_audio is an address; fetching is"),
        ({"speakers": [{"ref_audio": "file:///etc/passwd"}]}, "speaker 0: ref_audio is a file address"),
    ],
)
def test_speakers_that_cannot_be_are_refused(served: Served, fields: dict[str, Any], says: str) -> None:
    answer = served.post(**BODY, **fields)
    assert answer.status_code == 400 and says in answer.json()["error"]["message"], answer.text


def test_the_voice_that_openais_clients_must_send_is_nobodys_in_a_dialogue(
    served: Served, asked: list[SpeechRequest]
) -> None:
    """Unless an uploaded voice has that name."""
    answer = served.post(**BODY, speakers=TWO, voice="alloy")
    assert answer.status_code == 200 and asked[0].voice is None and len(asked[0].speakers) == 2, answer.text
    made = upload(served.url, wav(), name="Alloy", consent="she agreed").json()
    try:
        answer = served.post(**BODY, speakers=TWO, voice="alloy")
        assert answer.status_code == 400 and "voice and speakers exclude" in answer.json()["error"]["message"]
    finally:
        httpx.delete(f"{served.url}/v1/audio/voices/{made['id']}")


@pytest.mark.parametrize("checkpoint", ["toy", "custom"])
def test_a_model_of_one_voice_says_so_before_it_fetches(serve: Serve, checkpoint: str) -> None:
    answer = serve(checkpoint).post(input=TEXT, speakers=[{"ref_audio": "!!"}])
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (400, "unsupported") and "one voice at a time" in error["message"]


def test_an_item_of_a_batch_goes_before_the_batch(served: Served, asked: list[SpeechRequest]) -> None:
    items = [
        {"input": "[SPEAKER0] One.", "seed": 1},
        {"input": "Two.", "seed": 2, "voice": "alloy"},
        {"input": "[SPEAKER0] Three.", "seed": 3, "speakers": [{"description": "high"}]},
        {"input": "[SPEAKER0] Four.", "seed": 4, "speakers": TWO * 2},
    ]
    url, shared = f"{served.url}/v1/audio/speech/batch", fields_but_text()
    body = httpx.post(url, json={**shared, "items": items, "speakers": TWO[:1]}, timeout=60).json()
    assert [r["status"] for r in body["results"]] == ["success", "success", "success", "error"]
    assert "at most 3 speakers" in body["results"][3]["error"]
    assert {r.seed: r.speakers for r in asked} == {1: ("a low voice",), 2: (), 3: ("high",)}
    asked.clear()
    body = httpx.post(url, json={**shared, "items": items[2:3], "voice": "alloy", "ref_audio": CLIP}, timeout=60).json()
    assert body["succeeded"] == 1 and asked[0].speakers == ("high",) and asked[0].voice is None


def test_an_item_that_says_who_speaks_replaces_all_that_the_batch_says_of_it(
    served: Served, asked: list[SpeechRequest]
) -> None:
    made = upload(served.url, wav(), name="Anna", consent="she agreed").json()
    items = [
        {"input": "One.", "seed": 1},
        {"input": "Two.", "seed": 2, "voice": "Anna"},
        {"input": "Three.", "seed": 3, "ref_audio": CLIP},
        {"input": "Four.", "seed": 4, "ref_text": "other words"},
    ]
    shared = {**fields_but_text(), "ref_audio": CLIP, "ref_text": "what it says"}
    try:
        body = httpx.post(f"{served.url}/v1/audio/speech/batch", json={**shared, "items": items}, timeout=60).json()
    finally:
        httpx.delete(f"{served.url}/v1/audio/voices/{made['id']}")
    assert body["succeeded"] == 4, body
    heard = {r.seed: r.voice for r in asked}
    assert all(isinstance(voice, Voice) for voice in heard.values())
    assert {seed: (v.name, v.text) for seed, v in heard.items() if isinstance(v, Voice)} == {
        1: ("clone", "what it says"), 2: ("Anna", None), 3: ("clone", None), 4: ("clone", "other words"),
    }  # fmt: skip


def test_a_session_has_speakers_whose_turns_last(served: Served, asked: list[SpeechRequest]) -> None:
    with session(served) as client:
        client.say("session.config", **fields_but_text(), response_format="pcm", speakers=TWO)
        client.say("input.text", text="[SPEAKER0]\nHello there. How are you? [SPEAKER1] Well. ")
        client.say("input.done")
        heard = client.until("session.done")
    assert len(sound(heard)) == 3 * 2 * 5 * 1920
    plain = [r for r in asked if not r.context]
    texts = ["[SPEAKER0]\nHello there.", "[SPEAKER0] How are you?", "[SPEAKER1] Well."]
    assert [r.text for r in plain] == texts and all(len(r.speakers) == 2 for r in asked)
    assert [[s.text for s in r.context] for r in asked if r.context] == [texts[:1], texts[:2]]
    starts = [m["sentence_text"] for m in events(heard) if m["type"] == "audio.start"]
    assert starts == ["[SPEAKER0]\nHello there.", "How are you?", "[SPEAKER1] Well."]


def test_a_session_with_speakers_that_cannot_be_is_told(served: Served) -> None:
    with session(served) as client:
        client.say("session.config", speakers=TWO, voice="nobody")
        client.say("input.text", text="Hello.")
        client.say("input.done")
        told = events(client.until("session.done"))
    assert any("voice and speakers exclude each other" in json.dumps(m) for m in told)


@pytest.mark.parametrize("stream", [True, False])
def test_a_long_text_goes_on_from_what_was_said(served: Served, asked: list[SpeechRequest], stream: bool) -> None:
    parts = [f"Sentence number {n} is about the world and speech." for n in range(3)]
    answer = served.post(**{**BODY, "input": " ".join(parts)}, stream=stream)
    assert answer.status_code == 200 and len(answer.content) == 3 * 2 * 5 * 1920
    assert [[s.text for s in r.context] for r in asked if r.context] == [parts[:1], parts[:2]]


def test_the_engines_facts_tell_of_it(served: Served, serve: Serve) -> None:
    facts = [httpx.get(f"{s.url}/v1/engine").json() for s in (served, serve("toy"))]
    assert [(f["most_speakers"], f["context_segments"]) for f in facts] == [(3, 2), (1, 0)]


def test_a_clip_for_a_speaker_is_fetched_under_the_same_rules(serve: Serve, tmp_path: Path) -> None:
    served = serve("dialogue toy", allow_url=("media.example.com",))
    answer = served.post(**BODY, speakers=[{"ref_audio": "https://other.example.com/a.wav"}])
    assert answer.status_code == 400 and "does not fetch from" in answer.json()["error"]["message"]
