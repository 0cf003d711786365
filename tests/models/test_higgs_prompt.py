"""A request becomes the positions that the official processor gives the model, or is refused with a reason."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from higgs_config import BOS, EOS, config_for
from higgs_inputs import SPECIALS, codes_of, write_tokenizer
from sonant.errors import BadRequest, BadText, UnknownLanguage, UnknownVoice, Unsupported
from sonant.models.higgs_audio_v2.prompt import PromptBuilder, delayed
from sonant.models.higgs_audio_v2.spoken_text import clean
from sonant.models.higgs_audio_v2.tokenizer import Control, TextTokenizer
from sonant.types import SpeechRequest, Spoken
from sonant.voice import Voice

GOLDEN = json.loads((Path(__file__).parent / "higgs_prompts.json").read_text(encoding="utf-8"))
HELLO = "Hello there, how are you?"


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> PromptBuilder:
    tokenizer = TextTokenizer(write_tokenizer(tmp_path_factory.mktemp("higgs")).parent)
    return PromptBuilder(config_for(tokenizer), tokenizer)


def voice_of(seed: int = 1, frames: int = 3, text: str | None = None, **fields: Any) -> Voice:
    return Voice(**{"tensors": {"codes": codes_of(seed, frames)}, "text": text, "family": "higgs_audio_v2", **fields})


def speaker_of(given: str | dict[str, Any]) -> str | Voice:
    return given if isinstance(given, str) else voice_of(**given)


def request_of(given: dict[str, Any]) -> SpeechRequest:
    fields = dict(given)
    if "voice" in fields:
        fields["voice"] = voice_of(**fields["voice"])
    fields["speakers"] = tuple(speaker_of(s) for s in fields.get("speakers", ()))
    fields["context"] = tuple(Spoken(s["text"], codes_of(s["seed"], s["frames"])) for s in fields.get("context", ()))
    return SpeechRequest(**fields)


@pytest.mark.parametrize("case", GOLDEN, ids=[case["name"] for case in GOLDEN])
def test_a_request_is_laid_out_as_officially(builder: PromptBuilder, case: dict[str, Any]) -> None:
    layout = builder.layout(request_of(case["request"]))
    assert layout.text[:-1].tolist() == case["ids"]
    audio = layout.audio()
    assert layout.codes[:-1][audio[:-1]].tolist() == case["rows"]
    placeholders = [builder.tokenizer.ids[name] for name in ("<|AUDIO_OUT|>", "<|reserved_special_token_6|>")]
    assert (audio == np.isin(layout.text, placeholders)).all()
    assert (layout.codes[~audio] == -1).all()
    assert layout.text[-1] == placeholders[0]
    assert (layout.codes[-1] == BOS).all()
    assert layout.text.dtype == layout.codes.dtype == layout.keys().dtype == np.int32


def test_a_folder_of_bosons_own_form_has_the_same_prompts(builder: PromptBuilder) -> None:
    of_boson = PromptBuilder(replace(builder.config, audio_delay_token_id=None), builder.tokenizer)
    case = next(case for case in GOLDEN if case["name"] == "clone by turns")
    assert of_boson.layout(request_of(case["request"])).text[:-1].tolist() == case["ids"]


def test_a_clip_alone_in_the_scene_has_bosons_line(builder: PromptBuilder) -> None:
    """The official template would put a blank line between the name and the clip."""
    layout = builder.layout(SpeechRequest(text=HELLO, voice=voice_of(frames=1, text="  "), instruct=""))
    ids = builder.tokenizer.ids
    start, end = (layout.text.tolist().index(ids[f"<|scene_desc_{edge}|>"]) for edge in ("start", "end"))
    opening = builder.tokenizer.encode(["\nSPEAKER0: ", Control("<|audio_out_bos|>")])
    closing = builder.tokenizer.encode([Control("<|audio_eos|>"), "\n"])
    assert layout.text[start + 1 : start + 1 + len(opening)].tolist() == opening
    assert layout.text[end - len(closing) : end].tolist() == closing


def test_one_speaker_is_the_same_as_a_voice(builder: PromptBuilder) -> None:
    one = voice_of(text="It was the night.")
    alone, of_several = SpeechRequest(text=HELLO, voice=one), SpeechRequest(text=HELLO, speakers=(one,))
    assert (builder.layout(alone).keys() == builder.layout(of_several).keys()).all()


def test_a_turn_reads_the_same_when_it_has_become_context(builder: PromptBuilder) -> None:
    """Its keys and values can then be found in the cache."""
    first = builder.layout(SpeechRequest(text="It begins (here) [laugh]  and"))
    second = builder.layout(
        SpeechRequest(text="goes on.", context=(Spoken("It begins (here) [laugh]  and", codes_of(1, 4)),))
    )
    assert (second.keys()[: len(first.text) - 1] == first.keys()[:-1]).all()
    assert (second.codes[len(first.text) - 1] == BOS).all()


def test_speakers_of_earlier_turns_stay_in_the_scene(builder: PromptBuilder) -> None:
    before = (Spoken("[SPEAKER0] Yes. [SPEAKER1] No.", codes_of(1, 2)),)
    first = builder.layout(SpeechRequest(text=before[0].text))
    second = builder.layout(SpeechRequest(text="[SPEAKER1] Still no.", context=before))
    assert (second.text[: len(first.text) - 1] == first.text[:-1]).all()


def test_a_turn_without_sound_is_left_out(builder: PromptBuilder) -> None:
    silent = (Spoken("Nothing came of this.", np.zeros((0, 8), np.int32)),)
    plain = builder.layout(SpeechRequest(text=HELLO))
    assert (builder.layout(SpeechRequest(text=HELLO, context=silent)).keys() == plain.keys()).all()


@settings(deadline=None)
@given(frames=st.integers(1, 12), seed=st.integers(0, 1000))
def test_the_delay_pattern_can_be_undone(frames: int, seed: int) -> None:
    codes = codes_of(seed, frames)
    rows = delayed(codes, BOS, EOS)
    assert rows.shape == (frames + 9, 8)
    for k in range(8):
        assert rows[:, k].tolist() == [BOS] * (k + 1) + codes[:, k].tolist() + [EOS] * (8 - k)


def test_the_last_rows_are_those_of_the_latest_sound(builder: PromptBuilder) -> None:
    reference, said = codes_of(1, 3), codes_of(2, 5)
    request = SpeechRequest(text=HELLO, voice=voice_of(1, 3, "A clip."), context=(Spoken("Then this.", said),))
    both = np.concatenate([delayed(reference, BOS, EOS), delayed(said, BOS, EOS)])
    assert (builder.layout(request).last_rows(7) == both[-7:]).all()
    assert (builder.layout(request).last_rows(20) == both[-20:]).all()
    few = builder.layout(replace(request, context=())).last_rows(20)
    assert (few[:8] == -1).all()
    assert (few[8:] == both[:12]).all()
    assert (builder.layout(SpeechRequest(text=HELLO)).last_rows(3) == -1).all()


def test_spoken_tokens_are_those_of_the_text_alone(builder: PromptBuilder) -> None:
    expected = len(builder.tokenizer.encode(clean(HELLO).pieces))
    for extra in ({}, {"instruct": "A loud bar, with music."}, {"voice": voice_of(text="Long. " * 20)}):
        assert builder.layout(SpeechRequest(text=HELLO, **extra)).spoken_tokens == expected


# A client's text can be in four places; in none of them is it anything but text.
def everywhere(text: str) -> SpeechRequest:
    return SpeechRequest(
        text=f"a {text} b",
        instruct=f"c {text} d",
        speakers=(f"e {text} f", voice_of(text=f"g {text} h")),
        context=(Spoken(f"i {text} j", codes_of(1, 2)),),
    )


def controls(builder: PromptBuilder, request: SpeechRequest) -> list[int]:
    special = set(builder.tokenizer.ids.values())
    return [i for i in builder.layout(request).text.tolist() if i in special]


@pytest.mark.parametrize("token", SPECIALS)
def test_a_control_token_in_the_text_is_only_text(builder: PromptBuilder, token: str) -> None:
    assert controls(builder, everywhere(token)) == controls(builder, everywhere("word"))
    voice = SpeechRequest(text=HELLO, voice=voice_of(text=f"it {token} was"))
    assert controls(builder, voice) == controls(builder, SpeechRequest(text=HELLO, voice=voice_of(text="it was")))


@settings(deadline=None)
@given(pieces=st.lists(st.sampled_from([*SPECIALS, "<|eot", "_id|>", "《SE》", "<SE", ">", "a", "\n"]), min_size=1))
@example(pieces=["<SE>", "《SE》", "</SE>"])
def test_no_mixture_of_pieces_spells_a_control_token(builder: PromptBuilder, pieces: list[str]) -> None:
    assert controls(builder, everywhere("".join(pieces))) == controls(builder, everywhere("word"))


@settings(deadline=None)
@given(text=st.text().filter(lambda text: "[" not in text and "【" not in text))
def test_any_text_is_laid_out_or_refused_as_text(builder: PromptBuilder, text: str) -> None:
    try:
        layout = builder.layout(SpeechRequest(text=text, instruct=text))
    except BadText:
        return
    assert len(layout.text) == len(layout.codes)
    assert layout.spoken_tokens > 0


@pytest.mark.parametrize("place", ["text", "instruct", "speakers", "context"])
def test_an_unpaired_surrogate_is_refused_wherever_it_is(builder: PromptBuilder, place: str) -> None:
    broken = "half a \ud83d pair"
    values = {"speakers": (broken,), "context": (Spoken(broken, codes_of(1, 2)),)}
    with pytest.raises(BadText, match="not valid Unicode"):
        builder.layout(SpeechRequest(**{"text": HELLO, place: values.get(place, broken)}))


@pytest.mark.parametrize(
    "unit", ["word ", "x", "。", "[1]", "[", "[c ring] ", "[laugh]", "[SPEAKER0]a ", "\n", " ", "<|eot_id|>", "👋🏽"]
)
def test_a_huge_text_is_laid_out_at_once(builder: PromptBuilder, unit: str) -> None:
    text = unit * (100_000 // len(unit)) + "end"
    began_s = time.perf_counter()
    layout = builder.layout(SpeechRequest(text=text, instruct=text[:20_000]))
    assert time.perf_counter() - began_s < 5.0  # it takes a few tenths; a quadratic algorithm would take minutes
    assert layout.spoken_tokens > 0


@pytest.mark.parametrize(
    ("fields", "error", "words"),
    [
        ({"text": "( ) \n"}, BadText, "nothing of the text is left"),
        ({"text": "[SPEAKER0] "}, BadText, "nothing of the text is left"),
        ({"text": "[SPEAKER0] a [SPEAKER1] b [SPEAKER2] c", "speakers": ("x", "y")}, BadText,
         r"\[SPEAKER2\], for whom there is no voice: there is \[SPEAKER0\], \[SPEAKER1\]; give"),
        ({"text": "[SPEAKER1] b", "voice": voice_of()}, BadText, r"\[SPEAKER1\], for whom there is no voice"),
        ({"text": "[SPEAKER8] b [SPEAKER1] c"}, BadText, r"\[SPEAKER8\]; a text has 8 speakers at most"),
        ({"text": "b", "context": (Spoken("[SPEAKER1] a", codes_of(1, 2)),), "voice": voice_of()}, BadText,
         r"\[SPEAKER1\]"),
        ({"text": "a [lagh] b"}, BadText, r"no tag \[lagh\]: there are \[laugh\] "),
        ({"voice": "ryan"}, UnknownVoice, "no voice 'ryan', nor any of its own: give a reference clip"),
        ({"voice": voice_of(), "speakers": ("x",)}, BadRequest, "exclude each other"),
        ({"speakers": ("x",) * 9}, BadRequest, "9 speakers, over the limit of 8"),
        ({"speakers": ("x", " \n")}, BadRequest, "speaker 1 has an empty description"),
        ({"speakers": ("x", 3)}, BadRequest, "speaker 1 must be a Voice, or words, not int"),
        ({"language": "french"}, UnknownLanguage, "speaks english, .*, spanish.*leave language out"),
        ({"streaming_text": True}, Unsupported, "leave streaming_text out"),
        ({"context": ("Hello.",)}, BadRequest, "context must hold what was said before, as Spoken, not str"),
        ({"context": (Spoken("a", codes_of(1, 2)[:, :7]),)}, BadRequest, "frames of 8 codes"),
        ({"context": (Spoken("a", codes_of(1, 2) + 1000),)}, BadRequest, "frames of 8 codes"),
    ],
)  # fmt: skip
def test_what_cannot_be_spoken_is_refused(
    builder: PromptBuilder, fields: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        builder.layout(SpeechRequest(**{"text": HELLO, **fields}))


@pytest.mark.parametrize(
    "fields",
    [
        {"family": "qwen3_tts"},
        {"family": None},
        {"tensors": {"embedding": codes_of(1, 3)}},
        {"tensors": {"codes": codes_of(1, 3), "embedding": np.ones(4, np.float32)}},
        {"tensors": {"codes": codes_of(1, 3).astype(np.float32)}},
        {"tensors": {"codes": codes_of(1, 3)[:, :7]}},
        {"tensors": {"codes": codes_of(1, 3)[None]}},
        {"tensors": {"codes": codes_of(1, 3)[0]}},
        {"tensors": {"codes": np.full((3, 8), 1024, np.int32)}},
        {"tensors": {"codes": np.full((3, 8), -1, np.int32)}},
    ],
)
def test_a_voice_of_another_make_is_refused(builder: PromptBuilder, fields: dict[str, Any]) -> None:
    for place in ({"voice": voice_of(**fields)}, {"speakers": ("x", voice_of(**fields))}):
        with pytest.raises(UnknownVoice, match="encode its clip again"):
            builder.layout(SpeechRequest(text=HELLO, **place))


@pytest.mark.parametrize("language", ["auto", "Auto", "English", "en", "en-US", "zh_CN", "korean", "DE"])
def test_a_language_it_speaks_may_be_named_and_changes_nothing(builder: PromptBuilder, language: str) -> None:
    plain = builder.layout(SpeechRequest(text=HELLO)).keys()
    assert (builder.layout(SpeechRequest(text=HELLO, language=language, streaming_text=False)).keys() == plain).all()
