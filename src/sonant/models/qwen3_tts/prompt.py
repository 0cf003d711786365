"""Lays a request out as the positions that the talker was trained on.

Every position is a text id plus a codec part: nothing, one special id, the speaker vector or a whole reference
frame. The layouts (instruct, role, language and speaker header, then text by mode) are in `layout`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import numpy as np

from sonant.errors import BadText, CheckpointError, UnknownLanguage, UnknownVoice, Unsupported
from sonant.models.prompt import Ints
from sonant.models.published import agree
from sonant.models.qwen3_tts.config import Qwen3TTSConfig
from sonant.models.qwen3_tts.layout import Layout
from sonant.models.qwen3_tts.tokenizer import TextTokenizer
from sonant.types import SpeechRequest
from sonant.voice import Voice

logger = logging.getLogger(__name__)

FAMILY = "qwen3_tts"
FrontEnd = Callable[[str], str]

# Control tokens of each turn stand at fixed places, so that its body can be sliced out: 3 before, 5 or 2 after.
_TURN = "<|im_start|>assistant\n{text}<|im_end|>\n<|im_start|>assistant\n"
_REFERENCE = "<|im_start|>assistant\n{text}<|im_end|>\n"
_INSTRUCT = "<|im_start|>user\n{text}<|im_end|>\n"
_ISO = {
    "zh": "chinese", "en": "english", "de": "german", "it": "italian", "pt": "portuguese", "es": "spanish",
    "ja": "japanese", "ko": "korean", "fr": "french", "ru": "russian",
}  # fmt: skip


class PromptBuilder:
    def __init__(self, config: Qwen3TTSConfig, tokenizer: TextTokenizer, front_end: FrontEnd | None = None) -> None:
        """`front_end` rewrites the text to be spoken; None, as for every published checkpoint, leaves it alone."""
        self.config, self.tokenizer, self.front_end = config, tokenizer, front_end
        self._check_tokenizer()
        talker = config.talker
        self.voices = tuple(talker.spk_id) if config.kind == "custom_voice" else ()
        self._by_key = {name.lower(): name for name in self.voices}  # a fine-tuned voice may be named "Anna"
        self.languages = ("auto", *(name for name in talker.codec_language_id if "dialect" not in name))

    def _check_tokenizer(self) -> None:
        """Raise unless the tokens around a turn, by which a text is cut out of it, are the model's own."""
        c, added, where = self.config, self.tokenizer.added, str(self.tokenizer.path)
        for token, number in (("<|im_start|>", c.im_start_token_id), ("<|im_end|>", c.im_end_token_id)):
            if token not in added:
                raise CheckpointError(f"{where} lacks the token {token}; get the file published with this model")
            agree(where, (token, added[token], "config.json's id", number))

    def layout(self, request: SpeechRequest) -> Layout:
        voice = self._voice(request)
        language = self._language(request.language, voice)
        instruct = self._instruct(request.instruct)
        streaming = request.streaming_text if request.streaming_text is not None else self.config.kind == "base"
        text = request.text if self.front_end is None else self.front_end(request.text)
        ids = self.tokenizer.fill(_TURN, text)
        role, body = ids[:3], ids[3:-5]
        if not body:
            raise BadText("the text has no tokens to speak")
        header, speaker_row = self._header(language, voice)
        c = self.config
        opening = [(i, -1) for i in instruct] + [(i, -1) for i in role]
        texts = [c.tts_pad_token_id] * (len(header) - 1) + [c.tts_bos_token_id]
        opening += list(zip(texts, header, strict=True))
        if isinstance(voice, Voice) and "codes" in voice.tensors:
            ref = self.tokenizer.fill(_REFERENCE, voice.text or "")[3:-2]
            return self._in_context(opening, ref, body, voice, len(instruct) + 3 + speaker_row, streaming)
        pad, bos = c.talker.codec_pad_id, c.talker.codec_bos_id
        if streaming:
            positions, trailing = [*opening, (body[0], bos)], [*body[1:], c.tts_eos_token_id]
        else:
            spoken = [(i, pad) for i in [*body, c.tts_eos_token_id]]
            positions, trailing = [*opening, *spoken, (c.tts_pad_token_id, bos)], []
        clone = voice if isinstance(voice, Voice) else None
        return self._assemble(positions, None, trailing, clone, len(instruct) + 3 + speaker_row, len(body))

    def _in_context(
        self,
        opening: list[tuple[int, int]],
        ref: list[int],
        body: list[int],
        voice: Voice,
        speaker_at: int,
        streaming: bool,
    ) -> Layout:
        """The reference as if it had just been spoken: its text and frames, then the new text."""
        c, codes = self.config, voice.tensors["codes"]
        text = [*ref, *body, c.tts_eos_token_id]
        frames = len(codes)
        spoken = 1 + frames  # bos, then the reference frames
        pad, bos = c.talker.codec_pad_id, c.talker.codec_bos_id
        if not streaming:
            positions = [*opening, *((i, pad) for i in text), (c.tts_pad_token_id, bos)]
            positions += [(c.tts_pad_token_id, -1)] * frames
            return self._assemble(positions, codes, [], voice, speaker_at, len(body))
        beside = text[:spoken] + [c.tts_pad_token_id] * (spoken - len(text))
        positions = [*opening, (beside[0], bos), *((i, -1) for i in beside[1:])]
        return self._assemble(positions, codes, text[spoken:], voice, speaker_at, len(body))

    def _assemble(
        self,
        positions: list[tuple[int, int]],
        frames: Ints | None,
        trailing: list[int],
        voice: Voice | None,
        speaker_at: int,
        spoken_tokens: int,
    ) -> Layout:
        text, first_codes = zip(*positions, strict=True)
        codes = np.full((len(text), self.config.talker.num_code_groups), -1, np.int32)
        codes[:, 0] = first_codes
        if frames is not None:
            codes[-len(frames) :] = frames
        return Layout(
            text=np.array(text, np.int32),
            codes=codes,
            speaker=None if voice is None else voice.tensors["embedding"],
            speaker_at=speaker_at,
            trailing=np.array(trailing, np.int32),
            preroll=None if frames is None else frames.astype(np.int32),
            voice_key="" if voice is None else voice.fingerprint,
            spoken_tokens=spoken_tokens,
        )

    def _header(self, language: int | None, voice: str | Voice | None) -> tuple[list[int], int]:
        """Codec ids before the text, and the index of the speaker among them. The vector of a clone goes where
        its id would stand."""
        t = self.config.talker
        if language is None:
            header = [t.codec_nothink_id, t.codec_think_bos_id, t.codec_think_eos_id]
        else:
            header = [t.codec_think_id, t.codec_think_bos_id, language, t.codec_think_eos_id]
        speaker_row = len(header)
        if isinstance(voice, str):
            header.append(t.spk_id[voice])
        elif voice is not None:
            header.append(-1)
        return [*header, t.codec_pad_id], speaker_row

    def _voice(self, request: SpeechRequest) -> str | Voice | None:
        kind, voice = self.config.kind, request.voice
        if kind == "custom_voice":
            if isinstance(voice, Voice):
                raise Unsupported("this checkpoint has fixed voices and cannot clone; use a Base checkpoint")
            name = self._by_key.get((voice or self.voices[0]).lower())
            if name is None:
                raise UnknownVoice(f"no voice {voice!r}; this checkpoint has {', '.join(self.voices)}")
            return name
        if kind == "voice_design":
            if voice is not None:
                raise Unsupported("this checkpoint designs a voice from `instruct`; it takes no voice")
            return None
        if not isinstance(voice, Voice):
            given = f"has no voice {voice!r}: it" if voice else "has no voices of its own: it"
            raise UnknownVoice(f"this checkpoint {given} clones; give a reference clip (--clone, or engine.clone)")
        if not self._fits(voice):
            raise UnknownVoice("this voice was encoded by another model; encode its clip again with this one")
        return voice

    def _fits(self, voice: Voice) -> bool:
        """Whether this checkpoint can speak with the voice. Files from before families were recorded name none."""
        embedding, codes = voice.tensors.get("embedding"), voice.tensors.get("codes")
        if voice.family not in (None, FAMILY) or embedding is None or set(voice.tensors) - {"embedding", "codes"}:
            return False
        talker, size = self.config.talker, self.config.predictor.vocab_size
        if embedding.shape != (talker.hidden_size,) or embedding.dtype != np.float32:
            return False
        return codes is None or (
            codes.dtype.kind in "iu"
            and codes.shape[1:] == (talker.num_code_groups,)
            and 0 <= codes.min() <= codes.max() < size
        )

    def _language(self, language: str, voice: str | Voice | None) -> int | None:
        t = self.config.talker
        name = language.lower()
        name = _ISO.get(name.replace("_", "-").partition("-")[0], name)  # the language of a tag such as en-US
        if name not in self.languages:
            raise UnknownLanguage(f"no language {language!r}; this checkpoint speaks {', '.join(self.languages)}")
        if name in ("auto", "chinese") and isinstance(voice, str):
            dialect = t.spk_is_dialect.get(voice)
            if isinstance(dialect, str):
                return t.codec_language_id[dialect]
        return None if name == "auto" else t.codec_language_id[name]

    def _instruct(self, instruct: str | None) -> list[int]:
        if not instruct:
            return []
        if self.config.kind == "base":
            raise Unsupported("a Base checkpoint follows its reference clip and takes no instruct")
        if not self.config.instructs:
            logger.warning("this CustomVoice checkpoint was not trained on instruct; it is left out")
            return []
        return self.tokenizer.fill(_INSTRUCT, instruct)
