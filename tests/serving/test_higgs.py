"""A model without voices of its own, over HTTP: it makes voices up, clones them, and speaks dialogues."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest
import soundfile

from clips import reference_clip
from serving.conftest import Served, servers
from serving.session_client import events, session, sound
from serving.test_speech import seconds
from serving.test_voice_routes import upload, wav
from sonant import SpeechRequest, Voice
from sonant.errors import UnknownVoice
from sonant.models.prompt import Prompt

FRAMES, FRAME_BYTES = 6, 2 * 960
BODY: dict[str, Any] = {
    "input": "hello the world", "seed": 5, "max_frames": FRAMES, "response_format": "pcm",
}  # fmt: skip
DIALOGUE = {**BODY, "input": "[SPEAKER0] Hello. [SPEAKER1] Hi."}
SAYS = "what the clip says"


@pytest.fixture(scope="module")
def served(tiny_higgs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with servers({"higgs": tiny_higgs}) as start:
        each = {"budget_s": FRAMES * 0.04, "budget_s_per_token": 1e-12}  # so many frames for each part of a text
        yield start("higgs", engine=each, voices_folder=tmp_path_factory.mktemp("voices"), consent="asserted")


@pytest.fixture(scope="module")
def usual(served: Served) -> bytes:
    return heard(served)


@pytest.fixture
def asked(served: Served, monkeypatch: pytest.MonkeyPatch) -> list[SpeechRequest]:
    """The requests that the model was asked to lay out."""
    prompter, noted = served.link.prompter, list[SpeechRequest]()
    lay_out = prompter.prompt

    def prompt(request: SpeechRequest) -> Prompt:
        noted.append(request)
        return lay_out(request)

    monkeypatch.setattr(prompter, "prompt", prompt)
    return noted


def heard(served: Served, **fields: Any) -> bytes:
    answer = served.post(**{**BODY, **fields})
    assert answer.status_code == 200, answer.text
    return answer.content


def clip(samples: Any = None, rate: int = 24_000) -> str:
    held = io.BytesIO()
    soundfile.write(held, reference_clip()[0] if samples is None else samples, rate, format="WAV")
    return base64.b64encode(held.getvalue()).decode()


def test_openais_names_are_as_good_as_none(served: Served, usual: bytes) -> None:
    assert len(usual) == FRAMES * FRAME_BYTES
    for voice in ("alloy", "Marin", {"id": "nova"}, None):
        assert heard(served, voice=voice) == usual
    assert httpx.get(f"{served.url}/v1/audio/voices").json() == {"voices": []}


def test_openais_own_client_speaks_alone_and_in_a_dialogue(served: Served, asked: list[SpeechRequest]) -> None:
    """OpenAI's client cannot leave `voice` out."""
    client = openai.OpenAI(base_url=f"{served.url}/v1", api_key="none")
    call: dict[str, Any] = {"model": "tts-1", "voice": "alloy", "response_format": "pcm"}
    more = {"seed": 5, "max_frames": FRAMES}
    assert len(client.audio.speech.create(**call, input="Hello.", extra_body=more).content) == FRAMES * FRAME_BYTES
    more["speakers"] = [{"description": "a low voice"}, {"description": "a high one"}]
    assert client.audio.speech.create(**call, input=DIALOGUE["input"], extra_body=more).content
    assert asked[-1].speakers == ("a low voice", "a high one") and asked[-1].voice is None


def test_every_format_streamed_whole_and_as_events(served: Served) -> None:
    for form in ("mp3", "opus", "aac", "flac", "wav", "pcm"):
        streamed, whole = (served.post(**{**BODY, "response_format": form}, stream=stream) for stream in (True, False))
        assert seconds(streamed.content, form) == pytest.approx(0.24, abs=0.1)
        assert seconds(whole.content, form) == pytest.approx(0.24, abs=0.1)
        assert whole.headers["content-length"] == str(len(whole.content))
    told = served.post(**BODY, stream_format="sse")
    lines = [json.loads(line[6:]) for line in told.text.splitlines() if line.startswith("data: ")]
    assert lines[-1]["type"] == "speech.audio.done"
    assert b"".join(base64.b64decode(line["audio"]) for line in lines[:-1]) == heard(served)


def test_a_batch_speaks_what_it_can(served: Served, usual: bytes) -> None:
    items = [{"input": BODY["input"]}, {"input": "Hello [lagh]."}, {"input": "Two.", "voice": "nobody"}]
    shared = {**{k: v for k, v in BODY.items() if k != "input"}, "voice": "alloy", "items": items}
    results = httpx.post(f"{served.url}/v1/audio/speech/batch", json=shared, timeout=60).json()["results"]
    assert base64.b64decode(results[0]["audio_data"]) == usual
    assert "no tag [lagh]" in results[1]["error"] and "no voice 'nobody'" in results[2]["error"]


def test_an_upload_speaks_as_its_clip_does_until_it_is_taken_away(served: Served, usual: bytes) -> None:
    timbre, said = (heard(served, ref_audio=clip(), **text) for text in ({}, {"ref_text": SAYS}))
    assert len({timbre, said, usual}) == 3
    assert heard(served, ref_audio=clip(), ref_text=SAYS, x_vector_only_mode=True) == timbre
    forms = {"Anna": {}, "Bea": {"ref_text": SAYS}, "Alloy": {"ref_text": SAYS}}
    made = {name: upload(served.url, wav(), name=name, consent="yes", **form).json() for name, form in forms.items()}
    listed = httpx.get(f"{served.url}/v1/audio/voices").json()["voices"]
    assert [(voice["name"], voice["kind"]) for voice in listed] == [(name, "clone") for name in forms]
    assert heard(served, voice="anna") == timbre and heard(served, voice={"id": made["Bea"]["id"]}) == said
    assert heard(served, voice="alloy") == said and heard(served, voice="nova") == usual
    two = [{"voice": "anna"}, {"description": "a low voice"}]
    assert heard(served, **DIALOGUE, speakers=two) != heard(served, **DIALOGUE, speakers=two[::-1])
    for voice in made.values():
        assert httpx.delete(f"{served.url}/v1/audio/voices/{voice['id']}").status_code == 200
    assert heard(served, voice="alloy") == usual
    refused = served.post(**BODY, voice="anna").json()["error"]
    assert refused["code"] == "voice_not_found" and "speaks if none is named; an upload" in refused["message"]


def test_words_set_the_scene_and_knobs_the_draws(served: Served, usual: bytes) -> None:
    assert len({usual, heard(served, instructions="A big hall."), heard(served, instructions="")}) == 3
    steady = {"temperature": 0.1, "max_frames": 20}
    with_ras = heard(served, **steady, extra_params={"ras_win_len": 7, "ras_win_max_num_repeat": 1})
    assert heard(served, **steady, extra_params={"ras_win_len": 0}) != with_ras
    assert heard(served, top_k=1, extra_params={"ras_win_len": 0}) == heard(served, extra_params={"greedy": True})


def test_clauses_of_a_session_go_on_from_those_before(served: Served, asked: list[SpeechRequest]) -> None:
    clauses = ["To be honest with you,", "I am not sure.", "But it can be heard already."]
    fields = {name: value for name, value in BODY.items() if name not in ("input", "max_frames")}
    with session(served) as client:
        client.say("session.config", **fields, voice="alloy", split_granularity="clause")
        for clause in clauses:
            client.say("input.text", text=f"{clause} ")
        client.say("input.done")
        told = client.until("session.done")
    assert [m["sentence_text"] for m in events(told) if m["type"] == "audio.start"] == clauses
    assert len(sound(told)) == 3 * FRAMES * FRAME_BYTES
    gone_on = {r.text: r.context for r in asked if r.context}
    assert [[s.text for s in gone_on[clause]] for clause in clauses[1:]] == [clauses[:1], clauses[:2]]
    assert all(len(s.frames) == FRAMES for said in gone_on.values() for s in said)


LOUD = reference_clip(61.0)[0]


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"input": "Ha [lagh] ha."}, "no tag [lagh]: there are [laugh]"),
        ({"input": "[Speaker 1] Hello."}, "no tag [Speaker 1]"),
        ({"input": "[SPEAKER8] Hello."}, "a text has 8 speakers at most"),
        ({"input": "[SPEAKER0]"}, "names [SPEAKER0] and nothing to say"),
        ({**DIALOGUE, "speakers": [{"description": "low"}]}, "the text has [SPEAKER1], for whom there is no voice"),
        ({**DIALOGUE, "speakers": [{"voice": "alloy"}, {"description": "low"}]}, "speaker 0: 'alloy' is nobody's"),
        ({**DIALOGUE, "speakers": [{"description": "low"}] * 9}, "at most 8 items"),
        ({"ref_audio": clip(LOUD[:8_000])}, "at least 0.5 s"),
        ({"ref_audio": clip(LOUD)}, "cut it to 60 s or less"),
        ({"ref_audio": clip(0 * LOUD[:48_000])}, "silent"),
        ({"ref_audio": base64.b64encode(b"no sound").decode()}, ""),
        ({"speaker_embedding": [1.0, 2.0]}, "takes no speaker_embedding"),
        ({"task_type": "CustomVoice"}, "this one's is Base or VoiceDesign"),
        ({"non_streaming_mode": False}, "reads its whole text before it speaks"),
        ({"language": "klingon"}, "no language 'klingon'"),
        ({"repetition_penalty": 1.1}, "no 'repetition_penalty' to set; it has do_sample, greedy, ras_win_len"),
        ({"extra_params": {"ras_win_len": 33}}, "ras_win_len must be a whole number from 0 to 32"),
        ({"max_frames": 2**20}, "positions"),
    ],
)
def test_what_cannot_be_is_refused_and_the_next_is_served(
    served: Served, usual: bytes, fields: dict[str, Any], says: str
) -> None:
    answer = served.post(**{**BODY, **fields})
    assert answer.status_code == 400 and says in answer.json()["error"]["message"], answer.text
    assert heard(served) == usual


@pytest.mark.parametrize(("samples", "rate"), [(np.stack([LOUD[:48_000]] * 2, 1), 24_000), (LOUD[:16_000], 8_000)])
def test_clips_of_any_shape_are_taken(served: Served, samples: Any, rate: int) -> None:
    assert len(heard(served, ref_audio=clip(samples, rate))) == FRAMES * FRAME_BYTES


@pytest.mark.parametrize("tail", ["<|eot_id|>", "<|AUDIO_OUT|><|audio_eos|>", "</SE>", "<|scene_desc_end|>\n\n\0"])
def test_control_tokens_of_a_client_are_text(served: Served, tail: str) -> None:
    assert heard(served, input=f"hello {tail}", instructions=f"A room. {tail}")
    prompter = served.link.prompter
    plain, hostile = (
        prompter.prompt(SpeechRequest(text=f"hello {t}", instruct=f"A room. {t}")).payload.text for t in ("?", tail)
    )
    first_special = 256  # id of the tiny tokenizer, after the bytes
    assert (hostile >= first_special).sum() == (plain >= first_special).sum()


@pytest.mark.parametrize(
    "voice",
    [
        Voice({"codes": np.zeros((4, 8), np.int32)}, family="another"),
        Voice({"codes": np.zeros((4, 8), np.int32)}),
        Voice({"codes": np.full((4, 8), 1024, np.int32)}, family="higgs_audio_v2"),
        Voice({"codes": np.full((4, 8), -1, np.int32)}, family="higgs_audio_v2"),
        Voice({"codes": np.zeros((4, 16), np.int32)}, family="higgs_audio_v2"),
        Voice({"codes": np.zeros((4, 8), np.float32)}, family="higgs_audio_v2"),
        Voice({"embedding": np.zeros(64, np.float32)}, family="higgs_audio_v2"),
    ],
)
def test_a_voice_that_this_model_did_not_make_is_refused(served: Served, usual: bytes, voice: Voice) -> None:
    engine = served.supervisor.engine
    for given in ({"voice": voice}, {"speakers": (voice, "low")}):
        with pytest.raises(UnknownVoice, match="encoded by another model"):
            engine.speak("[SPEAKER0] hello", **given)
    assert heard(served) == usual


def test_facts_figures_and_the_page_are_there(served: Served) -> None:
    facts = httpx.get(f"{served.url}/v1/engine").json()
    assert (facts["clones"], facts["speaks_without_voice"], facts["most_speakers"]) == (True, True, 8)
    assert {"ras_win_len", "ras_win_max_num_repeat"} <= {knob["name"] for knob in facts["knobs"]}
    served.post(**BODY)
    figures = httpx.get(f"{served.url}/metrics").text
    assert 'sonant_requests_total{outcome="length",route="speech"}' in figures and "sonant_ttfp_seconds" in figures
    assert httpx.get(served.url).status_code == 200
