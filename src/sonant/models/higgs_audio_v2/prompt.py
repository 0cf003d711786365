"""Lays a request out as the positions that the model was trained on: those of transformers' HiggsAudioV2Processor.

One conversation: the system's turn with a scene, then (text, audio) turns of reference clips and of what was said
before, then the text to be spoken. A clip without a transcript stands in the scene instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from sonant.errors import BadRequest, BadText, CheckpointError, UnknownLanguage, UnknownVoice, Unsupported
from sonant.models.higgs_audio_v2.config import CODEBOOKS, HiggsConfig
from sonant.models.higgs_audio_v2.layout import Layout
from sonant.models.higgs_audio_v2.spoken_text import MOST_SPEAKERS, SpokenText, clean
from sonant.models.higgs_audio_v2.tokenizer import Control, Piece, TextTokenizer
from sonant.models.prompt import Ints
from sonant.models.published import agree
from sonant.types import Frames, SpeechRequest, Spoken
from sonant.voice import Voice

FAMILY = "higgs_audio_v2"
SCENE = "Audio is recorded from a quiet room."  # where a request gives no instruct

_BEGIN, _END_OF_TURN = Control("<|begin_of_text|>"), Control("<|eot_id|>")
_HEADER, _END_OF_HEADER = Control("<|start_header_id|>"), Control("<|end_header_id|>")
_SCENE, _END_OF_SCENE = Control("<|scene_desc_start|>"), Control("<|scene_desc_end|>")
_AUDIO_BOS, _AUDIO_EOS = Control("<|audio_out_bos|>"), Control("<|audio_eos|>")
_AUDIO, _DELAY = "<|AUDIO_OUT|>", "<|reserved_special_token_6|>"
_SOUND_EVENTS = ("<SE>", "</SE>", "<SE_s>", "</SE_s>", "<SE_e>", "</SE_e>")

_SYSTEM = "Generate audio following instruction."
# Boson's own message, for several speakers without voices or descriptions.
_SYSTEM_OF_DIALOGUE = (
    "You are an AI assistant designed to convert text into speech.\n"
    "If the user's message includes a [SPEAKER*] tag, do not read out the tag and generate speech for the following "
    "text, using the specified voice.\n"
    "If no speaker tag is present, select a suitable voice on your own."
)
_MADE_UP_VOICES = ("feminine", "masculine")  # alternately
# Those of the published model card, and Spanish, on which others measure it. The model is not told: it reads the text.
_LANGUAGES = {"en": "english", "zh": "chinese", "de": "german", "ko": "korean", "es": "spanish"}


@dataclass(frozen=True)
class _Audio:
    """Codes of a clip or of what was said before, [frames, codebooks]."""

    codes: Ints


_Part = Piece | _Audio


def delayed(codes: Ints, bos: int, eos: int) -> Ints:
    """[frames + 9, 8]: BOS, codes and EOS of each codebook, one row later than those of the codebook before."""
    frames, books = codes.shape
    rows = np.full((frames + 1 + books, books), eos, np.int32)
    for k in range(books):
        rows[: k + 1, k] = bos
        rows[k + 1 : k + 1 + frames, k] = codes[:, k]
    return rows


class PromptBuilder:
    languages = ("auto", *_LANGUAGES.values())

    def __init__(self, config: HiggsConfig, tokenizer: TextTokenizer) -> None:
        self.config, self.tokenizer = config, tokenizer
        self._check_tokenizer()

    def layout(self, request: SpeechRequest) -> Layout:
        """`request.instruct` is the scene: None is the usual one, and an empty one means that there is none."""
        _check_language(request.language)
        if request.streaming_text:
            raise Unsupported("this model reads its whole text before it speaks; leave streaming_text out")
        said = clean(request.text)
        before = [(clean(s.text), self._codes_said(s)) for s in request.context]
        tagged = said.speakers.union(*(text.speakers for text, _ in before))
        cast = self._cast(request)
        _check_tags(tagged, len(cast))
        by_turns = all(isinstance(one, Voice) and _words(one) for one in cast)
        parts: list[_Part] = [_BEGIN]
        if cast:
            parts += _system(request.instruct, _SYSTEM, [] if by_turns else self._lines(cast))
        elif len(tagged) > 1:
            made_up = [f"SPEAKER{k}: {_MADE_UP_VOICES[i % 2]}" for i, k in enumerate(sorted(tagged))]
            parts += _system(request.instruct, _SYSTEM_OF_DIALOGUE, [[line] for line in made_up])
        else:
            parts += _system(request.instruct, _SYSTEM, [])
        if by_turns:
            parts += self._reference_turns(cast)
        for text, codes in before:
            if len(codes):  # a model may have ended at once: then there was no turn
                parts += [*_turn("user", text.pieces), *_turn("assistant", _sound(codes))]
        parts += [*_turn("user", said.pieces), *_header("assistant"), _AUDIO_BOS]
        return self._assemble(parts, said)

    def _cast(self, request: SpeechRequest) -> tuple[str | Voice, ...]:
        """The speakers, [SPEAKER0] first: each a checked voice, or a description. Empty if the model may choose."""
        if request.speakers:
            if request.voice is not None:
                raise BadRequest("voice and speakers exclude each other; give one of them")
            if len(request.speakers) > MOST_SPEAKERS:
                raise BadRequest(f"{len(request.speakers)} speakers, over the limit of {MOST_SPEAKERS}")
            return tuple(map(self._speaker, request.speakers))
        if request.voice is None:
            return ()
        if isinstance(request.voice, str):
            raise UnknownVoice(
                f"this checkpoint has no voice {request.voice!r}, nor any of its own: give a reference clip (--clone, "
                "or engine.clone), or no voice at all, and it makes one up"
            )
        return (self._checked(request.voice),)

    def _speaker(self, speaker: str | Voice) -> str | Voice:
        if isinstance(speaker, Voice):
            return self._checked(speaker)
        return " ".join(speaker.split())  # one line of the scene

    def _checked(self, voice: Voice) -> Voice:
        fits = voice.family == FAMILY and set(voice.tensors) == {"codes"} and self._are_codes(voice.tensors["codes"])
        if not fits:
            raise UnknownVoice("this voice was encoded by another model; encode its clip again with this one")
        return voice

    def _codes_said(self, spoken: Spoken) -> Ints:
        if not self._are_codes(spoken.frames):
            raise BadRequest(f"context must hold frames of {CODEBOOKS} codes each, as this model spoke them")
        return spoken.frames.astype(np.int32)

    def _are_codes(self, found: Frames) -> bool:
        """Whether they are codes of this model, so that codec and embedding never look up one that they do not have."""
        if not isinstance(found, np.ndarray) or found.dtype.kind not in "iu" or found.shape[1:] != (CODEBOOKS,):
            return False
        return not found.size or bool(0 <= found.min() <= found.max() < self.config.codes)

    def _lines(self, cast: Sequence[str | Voice]) -> list[list[_Part]]:
        return [
            [f"SPEAKER{k}: ", *([one] if isinstance(one, str) else _sound(_codes(one)))] for k, one in enumerate(cast)
        ]

    def _reference_turns(self, cast: Sequence[str | Voice]) -> list[_Part]:
        """The turns of reference clips. A single speaker needs no tag, as in Boson's script."""
        turns: list[_Part] = []
        for k, voice in enumerate(cast):
            assert isinstance(voice, Voice)
            text = f"[SPEAKER{k}] {_words(voice)}" if len(cast) > 1 else _words(voice)
            turns += [*_turn("user", [text]), *_turn("assistant", _sound(_codes(voice)))]
        return turns

    def _assemble(self, parts: Sequence[_Part], said: SpokenText) -> Layout:
        c = self.config
        texts: list[Sequence[int]] = []
        codes: list[Ints] = []
        for is_audio, run in groupby(parts, key=lambda part: isinstance(part, _Audio)):
            if is_audio:
                for audio in (part for part in run if isinstance(part, _Audio)):
                    codes.append(delayed(audio.codes, c.stream_bos, c.stream_eos))
                    texts.append([c.audio_token_id] * (len(codes[-1]) - CODEBOOKS + 1) + self._delay_tokens)
            else:
                texts.append(self.tokenizer.encode(part for part in run if not isinstance(part, _Audio)))
                codes.append(np.full((len(texts[-1]), CODEBOOKS), -1, np.int32))
        texts.append([c.audio_token_id])
        codes.append(np.full((1, CODEBOOKS), c.stream_bos, np.int32))
        return Layout(
            text=np.concatenate([np.array(ids, np.int32) for ids in texts]),
            codes=np.concatenate(codes),
            spoken_tokens=len(self.tokenizer.encode(said.pieces)),
        )

    @property
    def _delay_tokens(self) -> list[int]:
        return [self.tokenizer.ids[_DELAY]] * (CODEBOOKS - 1)

    def _check_tokenizer(self) -> None:
        c, ids, where = self.config, self.tokenizer.ids, str(self.tokenizer.path)
        needed = [_BEGIN, _END_OF_TURN, _HEADER, _END_OF_HEADER, _SCENE, _END_OF_SCENE, _AUDIO_BOS, _AUDIO_EOS]
        for name in (*(control.token for control in needed), _AUDIO, _DELAY, *_SOUND_EVENTS):
            if name not in ids:
                raise CheckpointError(f"{where} lacks the token {name}; get the file published with this model")
        agree(
            where,
            (_AUDIO, ids[_AUDIO], "config.json's audio_token_id", c.audio_token_id),
            (_AUDIO_BOS.token, ids[_AUDIO_BOS.token], "config.json's audio_bos_token_id", c.audio_bos_token_id),
        )
        if c.audio_delay_token_id is not None:
            agree(where, (_DELAY, ids[_DELAY], "config.json's audio_delay_token_id", c.audio_delay_token_id))
        if self.tokenizer.size > c.llama.vocab_size:
            raise CheckpointError(
                f"{where} has ids up to {self.tokenizer.size - 1}, but config.json's vocab_size is "
                f"{c.llama.vocab_size}; get both files from one published folder"
            )


def _header(role: str) -> list[_Part]:
    return [_HEADER, role, _END_OF_HEADER, "\n\n"]


def _turn(role: str, parts: Iterable[_Part]) -> list[_Part]:
    return [*_header(role), *parts, _END_OF_TURN]


def _sound(codes: Ints) -> list[_Part]:
    return [_AUDIO_BOS, _Audio(codes), _AUDIO_EOS]


def _system(instruct: str | None, message: str, lines: list[list[_Part]]) -> list[_Part]:
    """The system's turn: in its scene, first the scene's own words, then a line for each speaker described there."""
    scene = SCENE if instruct is None else instruct.strip()
    if not scene and not lines:
        return _turn("system", [message])
    inside: list[_Part] = [scene]
    for i, line in enumerate(lines):
        inside += ["\n" if i else "\n\n" if scene else "", *line]
    return _turn("system", [f"{message}\n\n", _SCENE, "\n", *inside, "\n", _END_OF_SCENE])


def _words(voice: Voice) -> str:
    return (voice.text or "").strip()


def _codes(voice: Voice) -> Ints:
    return voice.tensors["codes"].astype(np.int32)


def _check_tags(tagged: Iterable[int], voices: int) -> None:
    """Raise if a tag lacks a voice. With no voices at all the model makes one up for each tag."""
    lacking = [k for k in sorted(tagged) if k >= (voices or MOST_SPEAKERS)]
    if not lacking:
        return
    if not voices:
        raise BadText(f"the text has [SPEAKER{lacking[0]}]; a text has {MOST_SPEAKERS} speakers at most, from 0 on")
    there = ", ".join(f"[SPEAKER{k}]" for k in range(voices))
    raise BadText(
        f"the text has [SPEAKER{lacking[0]}], for whom there is no voice: there is {there}; "
        "give one in speakers for each tag, or change the tag"
    )


def _check_language(language: str) -> None:
    """Accept names and codes of the languages that it speaks, for clients that always send one."""
    name = language.lower().replace("_", "-").partition("-")[0]
    if name not in _LANGUAGES and name not in PromptBuilder.languages:
        raise UnknownLanguage(
            f"no language {language!r}: this model speaks {', '.join(_LANGUAGES.values())}, and takes the "
            "language from the text itself; leave language out, and it tries any"
        )
