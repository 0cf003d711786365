"""A prompt as positions: the prompt builder makes it, and prefill packs it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sonant.models.prompt import Ints
from sonant.models.prompt_check import FLOAT32, INT32, check_array, check_whole, misfit
from sonant.types import Samples

TRAILING_TOKENS = 1024  # that a row has room for, of a text that is fed while speech is generated
_MARK = 8  # 32-bit words of a voice's fingerprint


@dataclass(frozen=True)
class Layout:
    text: Ints  # [positions]; -1: no text
    codes: Ints  # [positions, groups]; -1: none; a special id stands alone in column 0
    speaker: Samples | None  # [hidden], added at position `speaker_at`
    speaker_at: int
    trailing: Ints  # text fed one token a frame after the prompt; then padding for ever
    preroll: Ints | None  # [frames, groups] that the codec decodes before the first new frame
    voice_key: str
    spoken_tokens: int  # in the text to be spoken, without the prompt around it

    def __post_init__(self) -> None:
        check_array("text", self.text, INT32, None)
        check_array("codes", self.codes, INT32, len(self.text), None)
        check_array("trailing", self.trailing, INT32, None)
        check_whole("speaker_at", self.speaker_at, most=len(self.text) - 1)
        check_whole("spoken_tokens", self.spoken_tokens)
        if self.preroll is not None:
            check_array("preroll", self.preroll, INT32, None, self.codes.shape[1])
            if self.speaker is None or not len(self.preroll):
                raise misfit("a preroll is frames of a voice")
        if self.speaker is not None:
            check_array("speaker", self.speaker, FLOAT32, None)
        if not isinstance(self.voice_key, str) or len(self.voice_key) != (0 if self.speaker is None else 8 * _MARK):
            raise misfit(f"voice_key must be the fingerprint of its voice, not {self.voice_key!r:.80}")

    def keys(self) -> Ints:
        """[positions, k]: equal rows from the start on mean equal keys and values in the cache."""
        keys = np.zeros((len(self.text), self.key_width), np.int32)
        keys[:, 0], keys[:, 1:-_MARK] = self.text, self.codes
        if self.speaker is not None:
            keys[self.speaker_at, -_MARK:] = np.frombuffer(bytes.fromhex(self.voice_key), np.int32)
        return keys

    @property
    def key_width(self) -> int:
        return 1 + self.codes.shape[1] + _MARK
