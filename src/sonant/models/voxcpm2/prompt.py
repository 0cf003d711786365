"""Lays a request out as the positions that the model was trained on: those of the official `VoxCPM.generate`.

A request is laid out in one of four ways:

    text alone      text <audio>                                  the model makes a voice up, or follows a description
    reference       <ref> clip </ref> text <audio>                the clip's voice, whatever it says
    continuation    words+text <audio> clip                       goes on where the clip ends
    both            <ref> clip </ref> words+text <audio> clip     officially the closest clone

The clip's transcript (`words`) and the text are joined as strings before they are tokenised.
"""

from __future__ import annotations

import re

import numpy as np

from sonant.errors import CheckpointError, NothingToSay, UnknownLanguage, UnknownVoice, Unsupported
from sonant.models.prompt import Ints
from sonant.models.voxcpm2.config import VoxCPM2Config
from sonant.models.voxcpm2.layout import PRIMER_PATCHES, Layout
from sonant.models.voxcpm2.tokenizer import AUDIO_START, REFERENCE_END, REFERENCE_START, TextTokenizer
from sonant.types import Samples, SpeechRequest
from sonant.voice import Tensors, Voice

FAMILY = "voxcpm2"
REFERENCE, PROMPT = "reference", "prompt"  # tensors of a voice: its clip padded at the end, and at the start

# Those of the published model card. The model is not told which: it reads the text.
_LANGUAGES = {
    "ar": "arabic", "my": "burmese", "zh": "chinese", "da": "danish", "nl": "dutch", "en": "english", "fi": "finnish",
    "fr": "french", "de": "german", "el": "greek", "he": "hebrew", "hi": "hindi", "id": "indonesian", "it": "italian",
    "ja": "japanese", "km": "khmer", "ko": "korean", "lo": "lao", "ms": "malay", "no": "norwegian", "pl": "polish",
    "pt": "portuguese", "ru": "russian", "es": "spanish", "sw": "swahili", "sv": "swedish", "tl": "tagalog",
    "th": "thai", "tr": "turkish", "vi": "vietnamese",
}  # fmt: skip
# Other codes for what the card has: both written forms of Norwegian, Filipino, and Chinese with its dialects.
_OTHER_CODES = frozenset({"nb", "nn", "fil", "filipino", "cmn", "yue", "cantonese", "wuu", "nan"})
_WHITE_SPACE = re.compile(r"\s+")
_BRACKETS = str.maketrans("", "", "()（）")  # they would end the description

_Run = tuple[Ints, Samples, np.ndarray]  # some positions' text, patches and audio, as a Layout has them


class PromptBuilder:
    languages = ("auto", *_LANGUAGES.values())

    def __init__(self, config: VoxCPM2Config, tokenizer: TextTokenizer) -> None:
        self.config, self.tokenizer = config, tokenizer
        if tokenizer.size > config.lm.vocab_size:
            raise CheckpointError(
                f"{tokenizer.path} has ids up to {tokenizer.size - 1}, but config.json's vocab_size is "
                f"{config.lm.vocab_size}; get both files from one published folder"
            )

    def layout(self, request: SpeechRequest, reference: bool = True) -> Layout:
        """Without `reference` a clip with a transcript is only continued, and not a reference as well."""
        _check_language(request.language)
        if request.streaming_text:
            raise Unsupported("this model reads its whole text before it speaks; leave streaming_text out")
        description = _description(request.instruct)
        if not request.text.strip():
            raise NothingToSay("nothing of the text is left to be said without its blanks; give it words")
        said = _clean(f"({description}){request.text}" if description else request.text)
        tensors, words = self._voice(request.voice)
        if words and description:
            raise Unsupported(
                "a description cannot go with a voice whose clip's words are known: leave instruct out, or clone the "
                "clip without its text"
            )
        if tensors and not words and not reference:
            raise Unsupported(
                "reference is false, which only goes on from a clip, and this clip's words are not known: clone it "
                "with its text, or leave reference out"
            )
        clip = tensors[REFERENCE] if tensors and reference else None
        return self._assemble(clip, words, said, tensors[PROMPT] if words else None)

    def _voice(self, voice: str | Voice | None) -> tuple[Tensors, str]:
        """The voice's tensors, and its clip's transcript if the clip is to be continued."""
        if voice is None:
            return {}, ""
        if isinstance(voice, str):
            raise UnknownVoice(
                f"this checkpoint has no voice {voice!r}, nor any of its own: give a reference clip (--clone, or "
                "engine.clone), or no voice at all, and it makes one up"
            )
        tensors = voice.tensors
        known = voice.family == FAMILY and set(tensors) in ({REFERENCE}, {REFERENCE, PROMPT})
        if not known or not all(map(self._are_patches, tensors.values())):
            raise UnknownVoice("this voice was encoded by another model; encode its clip again with this one")
        words = _clean(voice.text or "") if PROMPT in tensors else ""
        if PROMPT in tensors and not words.strip():
            raise UnknownVoice(
                "this voice goes on from a clip, and the clip's words are not with it: encode the clip again, with its "
                "text or for its timbre only"
            )
        return tensors, words

    def _are_patches(self, found: np.ndarray) -> bool:
        patch = (self.config.patch_size, self.config.feat_dim)
        fits = found.dtype == np.float32 and found.ndim == 3 and found.shape[1:] == patch and len(found) > 0
        return fits and bool(np.isfinite(found).all())

    def _assemble(self, clip: Samples | None, words: str, said: str, prompt: Samples | None) -> Layout:
        spoken = self.tokenizer.encode(said)
        text = self.tokenizer.encode(words + said) if words else spoken
        runs = [self._tokens(*text, AUDIO_START)]
        if clip is not None:
            runs = [self._tokens(REFERENCE_START), _sound(clip), self._tokens(REFERENCE_END), *runs]
        if prompt is not None:
            runs.append(_sound(prompt))
        ids, patches, audio = (np.concatenate(parts) for parts in zip(*runs, strict=True))
        # As officially, the last three patches of sound: some are the reference's if the prompt has one or two.
        primer = patches[audio][-PRIMER_PATCHES:] if prompt is not None else patches[:0]
        return Layout(text=ids, patches=patches, audio=audio, spoken_tokens=len(spoken), primer=primer)

    def _tokens(self, *ids: int) -> _Run:
        patches = np.zeros((len(ids), self.config.patch_size, self.config.feat_dim), np.float32)
        return np.array(ids, np.int32), patches, np.zeros(len(ids), bool)


def _sound(patches: Samples) -> _Run:
    return np.zeros(len(patches), np.int32), patches, np.ones(len(patches), bool)


def _clean(text: str) -> str:
    """Collapse white space, as the official package does in a text, and we in a transcript too, which may have lines.

    A blank at either end stays: it may separate the transcript from the text.
    """
    return _WHITE_SPACE.sub(" ", text)


def _description(instruct: str | None) -> str:
    return (instruct or "").translate(_BRACKETS).strip()


def _check_language(language: str) -> None:
    """Accept names and codes of the languages that it speaks, for clients that always send one."""
    name = language.lower().replace("_", "-").partition("-")[0]
    if name not in _LANGUAGES and name not in PromptBuilder.languages and name not in _OTHER_CODES:
        raise UnknownLanguage(
            f"no language {language!r}: this model speaks {', '.join(_LANGUAGES.values())}, and takes the "
            "language from the text itself; leave language out, and it tries any"
        )
