"""A model of another shape, made for tests: it has its own rates and its own knobs, and needs no voice."""

from __future__ import annotations

import base64
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import soundfile
import torch

from serving.conftest import Serve, Served
from serving.session_client import events, session, sound
from serving.test_speech import seconds
from serving.test_voice_routes import upload, wav
from sonant import Engine, EngineConfig
from sonant.serving.encode import carried_rate_hz
from sonant.serving.warm_up import warm_up
from toy_family.model import ToyModel

RATE, FRAME_SAMPLES, FRAMES = 48_000, 1920, 6
BODY = {"input": "hello the world", "seed": 5, "max_frames": FRAMES, "extra_params": {"stop_chance": 0}}


@pytest.fixture(scope="module")
def served(serve_once: Serve, tmp_path_factory: pytest.TempPathFactory) -> Served:
    """A server that has been warmed up, which must work for such a model too."""
    return serve_once("toy", warm=True, voices_folder=tmp_path_factory.mktemp("toy"), consent="asserted")


def test_sound_comes_at_the_models_own_rate_unless_another_is_asked_for(served: Served) -> None:
    own = served.post(**BODY, response_format="pcm")
    assert own.headers["x-sample-rate"] == str(RATE) and len(own.content) == 2 * FRAMES * FRAME_SAMPLES
    asked = served.post(**BODY, response_format="pcm", sample_rate=24_000)
    assert asked.headers["x-sample-rate"] == "24000" and len(asked.content) == FRAMES * FRAME_SAMPLES
    for form in ("mp3", "opus", "aac", "flac", "wav"):
        file = served.post(**BODY, response_format=form, stream=False).content
        assert seconds(file, form) == pytest.approx(FRAMES * FRAME_SAMPLES / RATE, abs=0.1), form
    assert (
        soundfile.info(io.BytesIO(served.post(**BODY, response_format="wav", stream=False).content)).samplerate == RATE
    )


def test_a_rate_that_a_format_cannot_carry_is_raised_to_one_that_it_can() -> None:
    wanted = {("pcm", 44_100): 44_100, ("opus", 44_100): 48_000, ("mp3", 44_100): 44_100, ("mp3", 96_000): 48_000}
    assert {(form, hz): carried_rate_hz(form, hz) for form, hz in wanted} == wanted
    device, config = torch.device("cpu"), EngineConfig()
    model = ToyModel(config, device)
    model.spec = replace(model.spec, sample_rate=44_100)
    with Engine(model, config, device) as engine:
        warm_up(engine)


@pytest.mark.parametrize(("asked", "rate"), [(None, RATE), (16_000, 16_000)])
def test_a_session_is_told_the_rate(served: Served, asked: int | None, rate: int) -> None:
    with session(served) as client:
        fields = {name: value for name, value in BODY.items() if name != "input"}
        client.say("session.config", **fields, response_format="pcm", sample_rate=asked, voice="alloy")
        client.say("input.text", text="Hello the world.")
        client.say("input.done")
        heard = client.until("session.done")
    assert events(heard)[0]["sample_rate"] == rate
    assert len(sound(heard)) == 2 * FRAMES * FRAME_SAMPLES * rate // RATE


@pytest.mark.parametrize("voice", [{}, {"voice": "alloy"}, {"voice": "Cedar"}, {"voice": {"id": "nova"}}])
def test_no_voice_and_openais_names_speak_without_one(served: Served, voice: dict[str, Any]) -> None:
    plain = served.post(**BODY, response_format="pcm")
    named = served.post(**BODY, **voice, response_format="pcm")
    assert named.status_code == 200 and named.content == plain.content


def test_a_name_that_is_nobodys_stays_an_error(served: Served) -> None:
    answer = served.post(**BODY, voice="nobody")
    assert answer.status_code == 400 and answer.json()["error"]["code"] == "voice_not_found"


def test_it_clones_all_the_same(served: Served) -> None:
    plain = served.post(**BODY, response_format="pcm").content
    clip = base64.b64encode(wav()).decode()
    cloned = served.post(**BODY, ref_audio=clip, task_type="Base", response_format="pcm").content
    made = upload(served.url, wav(), name="Anna", consent="she agreed").json()
    try:
        assert served.post(**BODY, voice="anna", response_format="pcm").content == cloned != plain
    finally:
        httpx.delete(f"{served.url}/v1/audio/voices/{made['id']}")


def test_a_vector_is_no_voice_to_it(served: Served) -> None:
    answer = served.post(**BODY, speaker_embedding=[1.0] * 64)
    assert answer.status_code == 400 and answer.json()["error"]["code"] == "unsupported"


@pytest.mark.parametrize(
    ("checkpoint", "known"),
    [("toy", {"Base"}), ("base", {"Base"}), ("custom", {"CustomVoice"}), ("design", {"VoiceDesign"})],
)
def test_a_task_is_taken_if_the_model_knows_it(
    served: Served, serve: Serve, tmp_path: Path, checkpoint: str, known: set[str]
) -> None:
    other = served if checkpoint == "toy" else serve(checkpoint)
    clip = {"ref_audio": base64.b64encode(wav()).decode()} if checkpoint == "base" else {}
    for task in ("Base", "CustomVoice", "VoiceDesign"):
        answer = other.post(input="hello", max_frames=2, task_type=task, **clip)
        assert answer.status_code == (200 if task in known else 400), task
        if task not in known:
            assert f"this one's is {' or '.join(known)}" in answer.json()["error"]["message"]


def test_a_models_own_knobs_steer_it(served: Served) -> None:
    def heard(**knobs: float | bool) -> bytes:
        answer = served.post(**{**BODY, "extra_params": {"stop_chance": 0, **knobs}}, response_format="pcm")
        assert answer.status_code == 200, answer.text
        return answer.content

    plain = heard()
    assert heard(refinements=1) == heard(temperature=0.5) == plain
    assert heard(refinements=2) != plain != heard(temperature=0)
    assert served.post(**BODY, temperature=0, response_format="pcm").content == heard(temperature=0)
    soon = served.post(**{**BODY, "extra_params": {"stop_chance": 1}}, response_format="pcm").content
    assert len(soon) < len(plain)


@pytest.mark.parametrize(
    ("params", "says"),
    [
        ({"top_k": 5}, "this model has no 'top_k' to set; it has refinements, stop_chance, temperature"),
        ({"self": 1}, "this model has no 'self'"),
        ({"": 1}, "this model has no ''"),
        ({"refinements": 3}, "refinements must be one of 1, 2, not 3"),
        ({"refinements": True}, "refinements must be one of 1, 2, not True"),
        ({"stop_chance": 1.5}, "stop_chance must be a number from 0 to 1"),
        ({"stop_chance": 10**400}, "stop_chance must be a number from 0 to 1"),
        ({"stop_chance": None}, "extra_params.stop_chance"),
        ({"stop_chance": "0.5"}, "extra_params.stop_chance"),
        ({"stop_chance": [0.5]}, "extra_params.stop_chance"),
        ({"x" * 100: 1}, "at most 64 characters"),
        ({f"knob {n}": 1 for n in range(65)}, "at most 64"),
        ([1], "extra_params"),
    ],
)
def test_knobs_that_cannot_be_set_are_told(served: Served, params: Any, says: str) -> None:
    answer = served.post(**{**BODY, "extra_params": params})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (400, "invalid_value") and says in error["message"], error
    assert len(error["message"]) < 400


def test_a_knob_that_is_set_twice_is_refused(served: Served) -> None:
    answer = served.post(input="hello", temperature=0.5, extra_params={"temperature": 0.5})
    assert answer.status_code == 400 and "temperature is set twice" in answer.json()["error"]["message"]


def test_a_field_that_is_no_knob_of_the_model_is_refused(served: Served) -> None:
    answer = served.post(input="hello", top_k=5)
    assert answer.status_code == 400 and "no 'top_k' to set" in answer.json()["error"]["message"]


def test_a_batch_and_a_session_take_knobs_too(served: Served) -> None:
    items = [{"input": "hello"}, {"input": "hello", "extra_params": {"stop_chance": 2}}]
    shared = {name: value for name, value in BODY.items() if name != "input"}
    body = httpx.post(f"{served.url}/v1/audio/speech/batch", json={"items": items, **shared}, timeout=60).json()
    assert [r["status"] for r in body["results"]] == ["success", "error"]
    assert "stop_chance must be" in body["results"][1]["error"]
    with session(served) as client:
        client.say("session.config", extra_params={"colour": 1})
        client.say("input.text", text="Hello.")
        client.say("input.done")
        told = events(client.until("session.done"))
    assert any("no 'colour' to set" in json.dumps(m) for m in told)


def test_the_engines_facts_name_rates_and_knobs(served: Served) -> None:
    facts = httpx.get(f"{served.url}/v1/engine").json()
    assert (facts["sample_rate"], facts["clip_sample_rate"]) == (RATE, 16_000)
    assert facts["clones"] and facts["speaks_without_voice"] and not facts["instructs"]
    knobs = {knob["name"]: knob for knob in facts["knobs"]}
    assert knobs["refinements"] == {
        "name": "refinements", "type": "int", "default": 1, "low": None, "high": None, "choices": [1, 2],
        "help": "passes over each latent",
    }  # fmt: skip
    assert (knobs["stop_chance"]["type"], knobs["stop_chance"]["low"], knobs["stop_chance"]["high"]) == ("float", 0, 1)
