"""A model that speaks at 48 kHz and makes voices up, over HTTP and a WebSocket."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import soundfile

from clips import reference_clip
from serving.conftest import Served, servers
from serving.session_client import events, session, sound
from serving.test_speech import seconds
from serving.test_voice_routes import upload, wav

FRAMES, FRAME_BYTES = 4, 2 * 7680
# Not streamed: sizes of streamed chunks depend on timing, and on a CPU the last bit of a sample depends on them.
BODY: dict[str, Any] = {
    "input": "hello the world", "seed": 5, "max_frames": FRAMES, "response_format": "pcm", "stream": False,
}  # fmt: skip
SAYS = "what the clip says"


@pytest.fixture(scope="module")
def served(tiny_voxcpm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with servers({"voxcpm2": tiny_voxcpm2}) as start:
        each = {"budget_s": FRAMES * 0.16, "budget_s_per_token": 1e-12}  # so many frames for each part of a text
        yield start("voxcpm2", engine=each, voices_folder=tmp_path_factory.mktemp("voices"), consent="asserted")


@pytest.fixture(scope="module")
def usual(served: Served) -> bytes:
    return heard(served)


def heard(served: Served, **fields: Any) -> bytes:
    answer = served.post(**{**BODY, **fields})
    assert answer.status_code == 200, answer.text
    return answer.content


def clip(rate: int = 24_000) -> str:
    held = io.BytesIO()
    soundfile.write(held, *reference_clip(sample_rate=rate), format="WAV")
    return base64.b64encode(held.getvalue()).decode()


def test_it_speaks_at_48_khz_unless_another_rate_is_asked_for(served: Served, usual: bytes) -> None:
    assert len(usual) == FRAMES * FRAME_BYTES
    streamed = served.post(**{**BODY, "stream": True})
    assert streamed.headers["x-sample-rate"] == "48000"
    one, other = (np.frombuffer(made, np.int16).astype(int) for made in (streamed.content, usual))
    assert np.abs(one - other).max() <= 1 < np.abs(one).max()
    for stream in (True, False):
        halved = served.post(**{**BODY, "stream": stream}, sample_rate=24_000)
        assert halved.headers["x-sample-rate"] == "24000"
        assert len(halved.content) == pytest.approx(len(usual) / 2, abs=4)
    for asked, rate in ((None, 48_000), (24_000, 24_000)):
        made = heard(served, response_format="wav", **({"sample_rate": asked} if asked else {}))
        told = soundfile.info(io.BytesIO(made))
        assert (told.samplerate, told.duration) == (rate, pytest.approx(0.16 * FRAMES, abs=0.001))


@pytest.mark.parametrize("form", ["mp3", "opus", "aac", "flac"])
def test_every_format_carries_its_rate(served: Served, form: str) -> None:
    made = heard(served, response_format=form)
    assert seconds(made, form) == pytest.approx(0.16 * FRAMES, abs=0.1)


def test_a_clip_is_imitated_or_gone_on_from(served: Served, usual: bytes) -> None:
    """Four ways to speak, and a description if the clip's words are not given."""
    timbre, both = (heard(served, ref_audio=clip(), **text) for text in ({}, {"ref_text": SAYS}))
    continued = heard(served, ref_audio=clip(), ref_text=SAYS, extra_params={"reference": False})
    described = heard(served, ref_audio=clip(), instructions="a low voice")
    assert len({usual, timbre, both, continued, described, heard(served, instructions="a low voice")}) == 6
    assert heard(served, ref_audio=clip(), ref_text=SAYS, x_vector_only_mode=True) == timbre
    made = upload(served.url, wav(), name="Anna", consent="yes", ref_text=SAYS).json()
    try:
        assert heard(served, voice="anna") == both and heard(served, voice="alloy") == usual
    finally:
        assert httpx.delete(f"{served.url}/v1/audio/voices/{made['id']}").status_code == 200


def test_knobs_are_its_own(served: Served, usual: bytes) -> None:
    for params in ({"inference_timesteps": 4}, {"cfg_value": 3.0}, {"temperature": 0.5}):
        assert heard(served, extra_params=params) != usual
    assert heard(served, extra_params={"inference_timesteps": 10, "cfg_value": 2.0, "temperature": 1.0}) == usual
    facts = httpx.get(f"{served.url}/v1/engine").json()
    assert (facts["sample_rate"], facts["clones"], facts["speaks_without_voice"]) == (48_000, True, True)
    assert {"cfg_value", "inference_timesteps", "reference"} <= {knob["name"] for knob in facts["knobs"]}


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"extra_params": {"inference_timesteps": 7}}, "inference_timesteps must be one of 4, 6, 10, 20, not 7"),
        ({"extra_params": {"cfg_value": 11}}, "cfg_value must be a number from 0 to 10"),
        ({"extra_params": {"top_k": 5}}, "no 'top_k' to set"),
        ({"input": "   "}, "empty"),
        ({"ref_audio": clip(), "extra_params": {"reference": False}}, "this clip's words are not known"),
        ({"ref_audio": clip(), "ref_text": SAYS, "instructions": "low"}, "leave instruct out, or clone the clip"),
        ({"language": "klingon"}, "no language 'klingon'"),
        ({"non_streaming_mode": False}, "reads its whole text before it speaks"),
        ({"sample_rate": 1}, "sample"),
    ],
)
def test_what_cannot_be_is_refused_and_the_next_is_served(
    served: Served, usual: bytes, fields: dict[str, Any], says: str
) -> None:
    answer = served.post(**{**BODY, **fields})
    assert answer.status_code == 400 and says in answer.json()["error"]["message"], answer.text
    assert heard(served) == usual


def test_a_number_that_is_none_is_refused(served: Served, usual: bytes) -> None:
    """Python's json writes NaN, which is not JSON."""
    body = json.dumps({**BODY, "extra_params": {"cfg_value": float("nan")}})
    answer = httpx.post(
        f"{served.url}/v1/audio/speech", content=body, headers={"content-type": "application/json"}, timeout=60
    )
    assert answer.status_code == 400 and "error" in answer.json(), answer.text
    assert heard(served) == usual


def test_a_session_speaks_sentence_by_sentence(served: Served) -> None:
    fields = {name: value for name, value in BODY.items() if name not in ("input", "stream", "max_frames")}
    with session(served) as client:
        client.say("session.config", **fields, ref_audio=clip(), ref_text=SAYS)
        client.say("input.text", text="Hello the world. And another sentence.")
        client.say("input.done")
        told = client.until("session.done")
    starts = [message for message in events(told) if message["type"] == "audio.start"]
    assert [message["sentence_text"] for message in starts] == ["Hello the world.", "And another sentence."]
    assert {message["sample_rate"] for message in starts} == {48_000}
    assert len(sound(told)) == 2 * FRAMES * FRAME_BYTES
