"""A request becomes the positions that the official package gives its language models, or is refused with a reason."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sonant.errors import BadText, UnknownLanguage, UnknownVoice, Unsupported
from sonant.models.voxcpm2.layout import Layout
from sonant.models.voxcpm2.prompt import PromptBuilder
from sonant.models.voxcpm2.tokenizer import TextTokenizer
from sonant.types import SpeechRequest
from sonant.voice import Voice
from voxcpm2_config import config_for
from voxcpm2_inputs import FEAT_DIM, NOT_ADDED, PATCH_SIZE, SPECIALS, latents_of, write_tokenizer

OFFICIAL = json.loads((Path(__file__).parent / "voxcpm2_prompts.json").read_text(encoding="utf-8"))["prompts"]
HELLO = "the inn on the hill"
RIGHT, LEFT = latents_of(1, 4, "right"), latents_of(1, 4, "left")


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> PromptBuilder:
    tokenizer = TextTokenizer(write_tokenizer(tmp_path_factory.mktemp("voxcpm2")).parent)
    return PromptBuilder(config_for(tokenizer), tokenizer)


def voice_of(text: str | None = None, **fields: Any) -> Voice:
    """A voice as the model makes it: with words it has both tensors."""
    tensors = {"reference": RIGHT} if text is None else {"reference": RIGHT, "prompt": LEFT}
    return Voice(**{"tensors": tensors, "text": text, "family": "voxcpm2", **fields})


def voice_as_officially(case: dict[str, Any]) -> Voice | None:
    """The case's voice, with both tensors if it has words. If the case only continues its clip, the reference is
    another clip's."""
    if case["reference"] is None and case["prompt"] is None:
        return None
    tensors = {"reference": latents_of(*(case["reference"] or (99, 2)), "right")}
    if case["prompt"] is not None:
        tensors["prompt"] = latents_of(*case["prompt"], "left")
    return voice_of(case["words"], tensors=tensors)


def same(one: Layout, other: Layout) -> bool:
    return bool(
        np.array_equal(one.keys(), other.keys())
        and np.array_equal(one.patches, other.patches)
        and np.array_equal(one.primer, other.primer)
        and one.spoken_tokens == other.spoken_tokens
    )


@pytest.mark.parametrize("case", OFFICIAL, ids=[case["name"] for case in OFFICIAL])
def test_a_request_is_laid_out_as_officially(builder: PromptBuilder, case: dict[str, Any]) -> None:
    request = SpeechRequest(text=case["text"], instruct=case["instruct"], voice=voice_as_officially(case))
    layout = builder.layout(request, reference=case["reference"] is not None)
    official = case["official"]
    assert layout.text.tolist() == official["ids"]
    assert layout.audio.astype(int).tolist() == official["audio"]
    assert layout.patches[layout.audio].reshape(-1, PATCH_SIZE * FEAT_DIM).tolist() == official["patches"]
    assert not layout.patches[~layout.audio].any()
    assert layout.primer.reshape(-1, PATCH_SIZE * FEAT_DIM).tolist() == official["primer"]
    assert layout.spoken_tokens == official["spoken"]
    assert layout.patches.shape == (len(layout.text), PATCH_SIZE, FEAT_DIM)
    assert layout.primer.shape[1:] == (PATCH_SIZE, FEAT_DIM)
    assert layout.text.dtype == layout.keys().dtype == np.int32
    assert (layout.patches.dtype, layout.primer.dtype, layout.audio.dtype) == (np.float32, np.float32, bool)


def test_which_way_to_speak_follows_from_the_voice(builder: PromptBuilder) -> None:
    def patches(voice: Voice, reference: bool = True) -> list[float]:
        layout = builder.layout(SpeechRequest(text=HELLO, voice=voice), reference)
        return layout.patches[layout.audio][:, 0, 0].tolist()

    clip, prompt = RIGHT[:, 0, 0].tolist(), LEFT[:, 0, 0].tolist()
    assert patches(voice_of("Words.")) == clip + prompt
    assert patches(voice_of("Words."), reference=False) == prompt
    for unknown in (voice_of(), voice_of("Words.", tensors={"reference": RIGHT})):
        assert patches(unknown) == clip
        with pytest.raises(Unsupported, match="only goes on from a clip, and this clip's words are not known"):
            patches(unknown, reference=False)
    for wordless in (voice_of(tensors={"reference": RIGHT, "prompt": LEFT}), voice_of(" \n")):
        with pytest.raises(UnknownVoice, match="the clip's words are not with it: encode the clip again"):
            patches(wordless)


def test_a_voice_keeps_what_it_holds(builder: PromptBuilder) -> None:
    """Many requests on several threads share a voice, so its arrays must not be handed out."""
    layout = builder.layout(SpeechRequest(text=HELLO, voice=voice_of("Words.")))
    assert not any(np.shares_memory(made, held) for made in (layout.patches, layout.primer) for held in (RIGHT, LEFT))


@pytest.mark.parametrize(
    ("instruct", "text"),
    [
        ("a warm voice", f"(a warm voice){HELLO}"),
        (" (very) 慢（点） \n", f"(very 慢点){HELLO}"),
        ("（()）", HELLO),
        ("", HELLO),
    ],
)
def test_a_description_stands_in_brackets_of_its_own(builder: PromptBuilder, instruct: str, text: str) -> None:
    described = SpeechRequest(text=HELLO, instruct=instruct, voice=voice_of())
    assert same(builder.layout(described), builder.layout(SpeechRequest(text=text, voice=voice_of())))


def test_a_description_needs_a_voice_without_words(builder: PromptBuilder) -> None:
    spoken = voice_of("Words.")
    for reference in (True, False):
        with pytest.raises(Unsupported, match="leave instruct out, or clone the clip without its text"):
            builder.layout(SpeechRequest(text=HELLO, instruct="warm", voice=spoken), reference)
    plain = builder.layout(SpeechRequest(text=HELLO, voice=spoken))
    assert same(builder.layout(SpeechRequest(text=HELLO, instruct=" () ", voice=spoken)), plain)
    only_reference = voice_of("Words.", tensors={"reference": RIGHT})
    assert builder.layout(SpeechRequest(text=HELLO, instruct="warm", voice=only_reference)).primer.size == 0


def test_the_lines_of_a_transcript_are_blanks(builder: PromptBuilder) -> None:
    lines, blanks = voice_of("the inn\r\n\n on the\thill.\n"), voice_of("the inn on the hill. ")
    layouts = [builder.layout(SpeechRequest(text="a", voice=voice)) for voice in (lines, blanks)]
    assert same(*layouts)


def test_what_comes_before_the_text_is_found_in_the_cache_again(builder: PromptBuilder) -> None:
    voice = voice_of(tensors={"reference": RIGHT})
    one, other = (builder.layout(SpeechRequest(text=text, voice=voice)).keys() for text in ("a", "b"))
    assert np.array_equal(one[: len(RIGHT) + 2], other[: len(RIGHT) + 2])
    third = builder.layout(SpeechRequest(text="a", voice=voice_of(tensors={"reference": RIGHT + 1}))).keys()
    assert not (one[1:-3] == third[1:-3]).all(axis=1)[: len(RIGHT)].any()


def test_spoken_tokens_are_those_of_the_text_and_its_description(builder: PromptBuilder) -> None:
    count = len(builder.tokenizer.encode(HELLO))
    described = len(builder.tokenizer.encode(f"(warm){HELLO}"))
    assert builder.layout(SpeechRequest(text=HELLO, voice=voice_of("Many words. " * 20))).spoken_tokens == count
    assert builder.layout(SpeechRequest(text=HELLO, instruct="warm", voice=voice_of())).spoken_tokens == described


@pytest.mark.parametrize("token", [*SPECIALS, NOT_ADDED])
def test_a_control_token_in_the_text_is_only_text(builder: PromptBuilder, token: str) -> None:
    everywhere = SpeechRequest(text=f"a {token} b", instruct=f"c {token} d", voice=voice_of())
    words = SpeechRequest(text=f"{token} b", voice=voice_of(f"a {token}"))
    for request, expected in ((everywhere, [103, 104, 101]), (words, [103, 104, 101])):
        layout = builder.layout(request)
        found = layout.text[~layout.audio].tolist()
        assert [i for i in found if i in builder.tokenizer.controls] == expected


@given(text=st.text())
def test_any_text_is_laid_out_or_refused_as_text(builder: PromptBuilder, text: str) -> None:
    try:
        layout = builder.layout(SpeechRequest(text=text, instruct=text))
    except BadText:
        assert not text.strip() or any("\ud800" <= c <= "\udfff" for c in text)
        return
    assert len(layout.text) == len(layout.patches) == len(layout.audio) == layout.spoken_tokens + 1
    assert layout.spoken_tokens > 0


@pytest.mark.parametrize("place", ["text", "instruct"])
def test_an_unpaired_surrogate_is_refused_wherever_it_is(builder: PromptBuilder, place: str) -> None:
    with pytest.raises(BadText, match="not valid Unicode"):
        builder.layout(SpeechRequest(**{"text": HELLO, place: "half a \ud83d pair"}))


@pytest.mark.parametrize("unit", ["word ", "x", "你好", "(", "\n", " \t", "<|audio_start|>", "👋🏽"])
def test_a_huge_text_is_laid_out_at_once(builder: PromptBuilder, unit: str) -> None:
    text = unit * (20_000 // len(unit)) + "end"
    began_s = time.perf_counter()
    layout = builder.layout(SpeechRequest(text=text, instruct=text, voice=voice_of()))
    assert time.perf_counter() - began_s < 2.0  # it takes hundredths; a quadratic algorithm would take much longer
    assert layout.spoken_tokens > 0


@pytest.mark.parametrize(
    ("fields", "error", "words"),
    [
        ({"text": ""}, BadText, "nothing of the text is left"),
        ({"text": " \n\u3000"}, BadText, "nothing of the text is left"),
        ({"text": " ", "instruct": "warm"}, BadText, "nothing of the text is left"),
        ({"text": " ", "voice": voice_of("Words.")}, BadText, "nothing of the text is left"),
        ({"voice": "ryan"}, UnknownVoice, "no voice 'ryan', nor any of its own: give a reference clip"),
        ({"language": "welsh"}, UnknownLanguage, "speaks arabic, .*, vietnamese.*leave language out"),
        ({"language": ""}, UnknownLanguage, "no language ''"),
        ({"streaming_text": True}, Unsupported, "leave streaming_text out"),
    ],
)
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
        {"tensors": {"prompt": LEFT}},
        {"tensors": {"codes": np.ones((3, 8), np.int32)}},
        {"tensors": {"reference": RIGHT, "prompt": LEFT, "codes": RIGHT}},
        {"tensors": {"reference": RIGHT.astype(np.float64)}},
        {"tensors": {"reference": RIGHT.astype(np.int32)}},
        {"tensors": {"reference": RIGHT[0]}},
        {"tensors": {"reference": RIGHT[None]}},
        {"tensors": {"reference": RIGHT[:, :1]}},
        {"tensors": {"reference": RIGHT[:, :, :2]}},
        {"tensors": {"reference": RIGHT.transpose(0, 2, 1)}},
        {"tensors": {"reference": RIGHT, "prompt": LEFT[:, :1]}},
        {"tensors": {"reference": RIGHT, "prompt": LEFT.astype(np.float16)}},
    ],
)
def test_a_voice_of_another_make_is_refused(builder: PromptBuilder, fields: dict[str, Any]) -> None:
    for text in (None, "Words."):
        with pytest.raises(UnknownVoice, match="encode its clip again"):
            builder.layout(SpeechRequest(text=HELLO, voice=voice_of(text, **fields)))


def test_a_voice_that_was_spoiled_later_is_refused(builder: PromptBuilder) -> None:
    held = RIGHT.copy()
    voice = voice_of(tensors={"reference": held})
    held[1, 0, 0] = np.nan
    with pytest.raises(UnknownVoice, match="encode its clip again"):
        builder.layout(SpeechRequest(text=HELLO, voice=voice))


@pytest.mark.parametrize("language", ["auto", "Auto", "English", "en-US", "zh_CN", "vietnamese", "NB", "yue", "fil"])
def test_a_language_it_speaks_may_be_named_and_changes_nothing(builder: PromptBuilder, language: str) -> None:
    plain = builder.layout(SpeechRequest(text=HELLO))
    assert same(builder.layout(SpeechRequest(text=HELLO, language=language, streaming_text=False)), plain)


def test_it_speaks_the_thirty_languages_of_its_card(builder: PromptBuilder) -> None:
    assert len(set(builder.languages)) == 31
    for language in builder.languages:
        builder.layout(SpeechRequest(text=HELLO, language=language))
